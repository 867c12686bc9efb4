"use strict";
// The memory plan as a timeline: bytes that live at each step, and what they are.

function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit ? number.toFixed(2) : number} ${units[unit]}`;
}

function liveBytes(residents) {
  // of each step
  const last = residents.reduce((most, r) => Math.max(most, r[4]), 0);
  const changes = new Array(last + 2).fill(0);
  for (const [, , nbytes, first, end] of residents) {
    changes[Math.max(first, 0)] += nbytes;
    changes[end + 1] -= nbytes;
  }
  let live = 0;
  return changes.slice(0, last + 1).map((change) => (live += change));
}

function memoryPart(model) {
  const memory = model.facts.memory;
  if (memory === null) return [];
  if (memory.why !== undefined)
    return [part("Memory: not known", false, el("p", {}, `${memory.why}. ${memory.hint}`))];
  const live = liveBytes(memory.residents),
    most = Math.max(1, ...live);
  const shown = el("div", { id: "living" }),
    heading = el("h3", { id: "living-title" });
  const SVG = "http://www.w3.org/2000/svg";
  const make = (tag, facts) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(facts)) made.setAttribute(name, value);
    return made;
  };
  const points = live.flatMap((b, i) => [i, i + 1].map((x) => `L${x} ${(100 - (96 * b) / most).toFixed(2)}`));
  const chart = make("svg", {
    id: "lives",
    viewBox: `0 0 ${Math.max(1, live.length)} 100`,
    preserveAspectRatio: "none",
    role: "slider",
    tabindex: "0",
    "aria-label": "Step of the run",
  });
  const cursor = make("line", { y1: 0, y2: 100 });
  chart.append(make("path", { d: `M0 100 ${points.join(" ")} L${live.length} 100 Z` }), cursor);
  let step = 0;
  function choose(wanted) {
    step = Math.min(Math.max(wanted, 0), Math.max(live.length - 1, 0));
    cursor.setAttribute("x1", step + 0.5);
    cursor.setAttribute("x2", step + 0.5);
    chart.setAttribute("aria-valuenow", step);
    const here = memory.residents
      .filter((r) => Math.max(r[3], 0) <= step && step <= r[4])
      .sort((a, b) => b[2] - a[2]);
    const peak = step === Math.max(memory.at, 0) ? ", the peak" : "";
    const lives = `${bytes(live[step] || 0)} live in ${here.length} blocks`;
    heading.textContent = `Step ${step} of ${live.length}${peak}: ${lives}`;
    const bar = (r) => el("span", { class: "bar", style: `width:${Math.round((120 * r[2]) / most)}px` });
    const steps = (r) => `${Math.max(r[3], 0)} to ${r[4]}`; // a feed is there before the first one
    const rows = here.slice(0, 100).map((r) => [r[0], r[1], r[5], bytes(r[2]), bar(r), steps(r)]);
    shown.replaceChildren(table(["value", "type", "written by", "size", "", "steps"], rows, [3]));
  }
  chart.addEventListener("pointerdown", (event) => {
    const box = chart.getBoundingClientRect();
    choose(Math.floor(((event.clientX - box.left) / box.width) * live.length));
  });
  chart.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: step - 1, ArrowRight: step + 1, Home: 0, End: live.length - 1 };
    if (event.key in moves) {
      choose(moves[event.key]);
      event.preventDefault();
      event.stopPropagation();
    }
  });
  choose(memory.at);
  const figures = [
    ["planned", bytes(memory.planned)],
    ["live at the most", bytes(memory.live)],
    ["without sharing", bytes(memory.apart)],
    ["parameters and states", bytes(memory.persistable)],
  ];
  const ranks = memory.ranks.length ? el("pre", { id: "ranks" }, memory.ranks.join("\n")) : "";
  const peak = el("button", { id: "peak", onclick: () => choose(memory.at) }, "What lives at the peak");
  return [
    part(
      `Memory on ${memory.place}: ${bytes(memory.planned)} planned`,
      true,
      table(["", "bytes"], figures, [1]),
      ranks,
      peak,
      ` reached in ${memory.running.join(", ")}`,
      chart,
      heading,
      shown,
    ),
  ];
}

if (typeof module !== "undefined") module.exports = { bytes, liveBytes };
