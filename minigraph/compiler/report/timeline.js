"use strict";
// A run as a timeline: a row for each stream of the captured graph, a box for each call.

const ROW = 26; // pixels of a stream
const LANE = 1000; // units across a run

function lanes(calls) {
  // where each call stands: [stream, begin, width] in units
  const end = calls.reduce((most, call) => Math.max(most, call[4] + call[5]), 0) || 1;
  return calls.map((call) => [call[3], (LANE * call[4]) / end, (LANE * call[5]) / end]);
}

function busy(calls) {
  // share of the run in which each stream works
  const end = calls.reduce((most, call) => Math.max(most, call[4] + call[5]), 0) || 1;
  const sums = new Map();
  for (const call of calls) sums.set(call[3], (sums.get(call[3]) || 0) + call[5] / end);
  return [...sums].sort((a, b) => a[0] - b[0]);
}

function callFacts(call) {
  const [operator, kernel, , stream, begin, seconds, grid, block, tiles] = call;
  const launched = grid && `${grid} blocks of ${block} threads`;
  return [
    ["operator", operator],
    ["kernel", kernel],
    ["launched as", launched],
    ["tiles", tiles],
    ["stream", String(stream)],
    ["begins at", milliseconds(begin)],
    ["takes", milliseconds(seconds)],
  ].filter(([, value]) => value);
}

function timelinePart(model, { seek }) {
  const run = model.facts.timeline;
  if (!run || !run.calls.length) return [];
  const streams = busy(run.calls),
    row = new Map(streams.map(([stream], i) => [stream, i]));
  const SVG = "http://www.w3.org/2000/svg";
  const make = (tag, facts, ...children) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(facts)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const shown = el("div", { id: "call" });
  const boxes = lanes(run.calls).map(([stream, x, width], i) => {
    const facts = { x, width: Math.max(width, 0.2), y: ROW * row.get(stream) + 2, height: ROW - 4 };
    return make("rect", { ...facts, class: run.calls[i][2], "data-call": i });
  });
  const chart = make(
    "svg",
    {
      id: "streams",
      viewBox: `0 0 ${LANE} ${ROW * streams.length}`,
      preserveAspectRatio: "none",
      role: "slider",
      tabindex: "0",
      "aria-label": "Call of the run",
      "aria-valuemin": 1,
      "aria-valuemax": boxes.length,
      style: `height:${ROW * streams.length}px`,
    },
    ...boxes,
  );
  let chosen = 0;
  function choose(wanted) {
    boxes[chosen].classList.remove("chosen");
    chosen = Math.min(Math.max(wanted, 0), boxes.length - 1);
    boxes[chosen].classList.add("chosen");
    const call = run.calls[chosen];
    chart.setAttribute("aria-valuenow", chosen + 1);
    chart.setAttribute("aria-valuetext", `${call[0]} ${milliseconds(call[5])}`);
    const name = call[0].slice(call[0].indexOf(" ") + 1);
    const link = el("button", { class: "link", onclick: () => seek(name) }, "Show it in the picture");
    const rows = callFacts(call).flatMap(([what, value]) => [el("dt", {}, what), el("dd", {}, value)]);
    shown.replaceChildren(el("h3", {}, `Call ${chosen + 1} of ${boxes.length}`), el("dl", {}, rows), link);
  }
  chart.addEventListener("click", (event) => {
    if (event.target.dataset.call !== undefined) choose(Number(event.target.dataset.call));
  });
  chart.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: boxes.length - 1 };
    if (event.key in moves) {
      choose(moves[event.key]);
      event.preventDefault();
      event.stopPropagation();
    }
  });
  const wider = el("input", { type: "range", min: 1, max: 50, value: 1, "aria-label": "Wider" });
  wider.addEventListener("input", () => {
    chart.style.width = `${100 * Number(wider.value)}%`;
  });
  choose(run.calls.reduce((most, call, i) => (call[5] > run.calls[most][5] ? i : most), 0));
  const works = streams.map(([stream, share]) => `stream ${stream} works ${percent(share)} of it`).join(", ");
  const end = run.calls.reduce((most, call) => Math.max(most, call[4] + call[5]), 0);
  const order = () => {
    const launched = run.calls.some((call) => call[1]) ? ["kernel", "blocks", "threads", "tiles"] : []; // none on a CPU
    const rows = run.calls.slice(0, SHOWN).map(([operator, kernel, , stream, begin, seconds, ...sizes], i) => {
      const facts = [kernel, ...sizes].slice(0, launched.length);
      return [String(i + 1), operator, ...facts, String(stream), milliseconds(begin), milliseconds(seconds)];
    });
    const heads = ["", "operator", ...launched, "stream", "begins at", "takes"];
    return table(heads, rows, [0, heads.length - 3, heads.length - 2, heads.length - 1]);
  };
  return [
    part(
      `A run on ${run.device}: ${run.calls.length} calls, ${milliseconds(end)}`,
      true,
      el("p", {}, `${works}. Calls are timed one by one. `, el("label", {}, "wider ", wider)),
      el("div", { class: "scroll" }, chart),
      shown,
    ),
    later(`Launch order: ${run.calls.length}`, order),
  ];
}

if (typeof module !== "undefined") module.exports = { lanes, busy };
