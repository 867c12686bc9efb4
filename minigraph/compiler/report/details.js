"use strict";
// What a click shows, and the tables below the pictures.
// Text becomes text nodes only: no name of a program is ever read as markup.

const SHOWN = 2000; // rewrites in the table; the slider has all

function el(tag, facts, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(facts || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

function sourceLines(model, site) {
  if (site < 0) return [];
  const [file, line, first, lines] = model.facts.sites[site];
  const shown = lines.map((text, i) =>
    el(first + i === line ? "b" : "span", {}, `${String(first + i).padStart(5)}  ${text}\n`),
  );
  return [
    el("h3", {}, `${file}:${line}`),
    lines.length ? el("pre", {}, shown) : el("p", {}, "The file cannot be read."),
  ];
}

function slots(model, title, given, seek) {
  if (!given.length) return [];
  const rows = given.flatMap(([slot, values]) => [
    el("dt", {}, slot),
    el(
      "dd",
      {},
      values.flatMap((v, i) => {
        const [name, type] = model.facts.values[v];
        const link = el("button", { class: "link", onclick: () => seek(name) }, name);
        return [i ? "\n" : "", link, ` : ${type}`];
      }),
    ),
  ]);
  return [el("h3", {}, title), el("dl", {}, rows)];
}

function stepLink(model, number, go) {
  const step = model.facts.steps[number - 1];
  return el("button", { class: "link", onclick: () => go(number) }, `${number}. ${step.flag}, ${step.rule}`);
}

function rewrite(model, title, number, side, go) {
  // the rewrite that made an operator, or took it out
  if (number === undefined) return [];
  const step = model.facts.steps[number - 1];
  const others = step.changes
    .map((change) => change[side])
    .filter((id) => id >= 0)
    .map((id) => model.states[id]);
  others.sort((a, b) => a.rank - b.rank);
  const items = others.map((op) => el("li", {}, `${op.type} ${op.name}`));
  return [el("h3", {}, title), stepLink(model, number, go), el("p", {}, step.reason), el("ul", {}, items)];
}

function refusals(model, op) {
  const own = model.facts.refusals.filter((r) => r.where === `${op.type} ${op.name}`);
  if (!own.length) return [];
  return [
    el("h3", {}, "Refused"),
    el(
      "ul",
      {},
      own.map((r) => el("li", {}, `${r.flag}, ${r.rule}: ${r.reason}`)),
    ),
  ];
}

function refused(model, { seek }) {
  // what was not rewritten and why, the first thing that a page tells
  const all = model.facts.refusals;
  if (!all.length) return [];
  const items = all.slice(0, 20).map((r) => {
    const name = r.where.slice(r.where.indexOf(" ") + 1);
    const link = el("button", { class: "link", onclick: () => seek(name) }, r.where);
    return el("li", {}, link, `, ${r.flag}: ${r.reason} `, el("span", { class: "site" }, place(model, r.site)));
  });
  const more = all.length > 20 ? [el("p", {}, `${all.length - 20} more in the table below`)] : [];
  return [el("h2", {}, "Refused"), el("ul", {}, items), ...more];
}

function place(model, site) {
  return site < 0 ? "" : `${model.facts.sites[site][0]}:${model.facts.sites[site][1]}`;
}

function milliseconds(seconds) {
  return `${(seconds * 1e3).toFixed(4)} ms`;
}

function percent(share) {
  return share === null ? "" : `${Math.round(share * 100)} %`;
}

function launches(model, row) {
  // the calls of an operator: kernel, blocks, threads, tiles, stream
  const calls = model.facts.timeline ? model.facts.timeline.calls.filter((call) => call[0] === row.name) : [];
  const line = ([, kernel, , stream, , , grid, block, tiles]) =>
    [kernel, grid && `${grid} blocks of ${block}`, tiles, `stream ${stream}`].filter((x) => x).join("; ");
  return row.kernels.length && calls.length ? calls.map(line).join("\n") : row.kernels.join("\n");
}

function measured(model, op) {
  // what a profile says of an operator
  const row = (model.facts.times || []).find((r) => r.name === `${op.type} ${op.name}`);
  if (row === undefined) return [];
  const facts = [
    ["time", `${milliseconds(row.seconds)}, ${percent(row.share)} of a run`],
    ["roofline", percent(row.roofline)],
    ["FLOPs", row.flops === null ? "" : row.flops.toLocaleString("en")],
    ["bytes", row.nbytes === null ? "" : bytes(row.nbytes)],
    ["kernels", launches(model, row)],
  ].filter(([, value]) => value);
  return [
    el("h3", {}, "Measured"),
    el(
      "dl",
      {},
      facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    ),
  ];
}

function times(model, { seek }) {
  // all rows of a profile, the longest first
  const rows = model.facts.times || [];
  if (!rows.length) return [];
  const total = rows.reduce((sum, r) => sum + r.seconds, 0);
  const cells = rows.slice(0, SHOWN).map((r) => {
    const link = el("button", { class: "link", onclick: () => seek(r.name.slice(r.name.indexOf(" ") + 1)) }, r.name);
    return [link, milliseconds(r.seconds), percent(r.share), percent(r.roofline), r.kernels.join(", "), r.line];
  });
  const heads = ["operator", "time", "share", "roofline", "kernels", "line"];
  return [part(`Times of a run: ${milliseconds(total)}`, true, table(heads, cells, [1, 2, 3]))];
}

function opDetails(model, op, { go, seek }) {
  const isText = ([, value]) => value.includes("\n"); // a block, or the body of a fused operator
  const short = op.attrs.filter((attr) => !isText(attr)),
    attrs = short.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
  const texts = op.attrs.filter(isText).flatMap(([name, value]) => [el("h3", {}, name), el("pre", {}, value)]);
  return [
    el("h2", {}, op.type),
    el(
      "p",
      {},
      [op.role, op.scope && `in ${op.scope}`, op.rewriter && `made by ${op.rewriter}`].filter((x) => x).join(", "),
    ),
    ...slots(model, "Outputs", op.outputs, seek),
    ...slots(model, "Inputs", op.inputs, seek),
    ...(attrs.length ? [el("h3", {}, "Attributes"), el("dl", {}, attrs)] : []),
    ...texts,
    ...measured(model, op),
    ...refusals(model, op),
    ...rewrite(model, "Made of", model.made.get(op.id), 1, go),
    ...rewrite(model, "Became", model.gone.get(op.id), 2, go),
    ...sourceLines(model, op.site),
  ];
}

function dataDetails(model, node) {
  return [el("h2", {}, node.name), el("p", {}, `data : ${model.facts.values[node.value][1]}`)];
}

function boxDetails(model, node, toggle) {
  const text = node.kind === "open" ? "Fold this box" : "Unfold this box";
  return [
    el("h2", {}, node.box.slice(1)),
    el("p", {}, `${node.count} operators`),
    el("button", { onclick: () => toggle(node.box) }, text),
  ];
}

function found(ops, text, choose) {
  const items = ops
    .slice(0, 200)
    .map((op) => el("li", {}, el("button", { class: "link", onclick: () => choose(op) }, `${op.type} ${op.name}`)));
  const more = ops.length > 200 ? [el("p", {}, `${ops.length - 200} more`)] : [];
  return [el("h2", {}, `${ops.length} operators with “${text}”`), el("ul", {}, items), ...more];
}

function table(headers, rows, numbers = []) {
  const kind = (i) => (numbers.includes(i) ? { class: "number" } : {});
  const head = el(
    "tr",
    {},
    headers.map((h, i) => el("th", kind(i), h)),
  );
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      row.map((cell, i) => el("td", kind(i), cell)),
    ),
  );
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

function part(title, isOpen, ...content) {
  return el("details", isOpen ? { open: "" } : {}, el("summary", {}, title), ...content);
}

function later(title, make) {
  // a folded part that is made when it is opened
  const made = part(title, false);
  made.addEventListener("toggle", () => made.append(make()), { once: true });
  return made;
}

function tables(model, { go, seek }) {
  const { facts } = model;
  const steps = () =>
    facts.steps.slice(0, SHOWN).map((s, i) => [stepLink(model, i + 1, go), s.what, s.reason, place(model, s.site)]);
  const refusedRows = facts.refusals.map((r) => {
    const name = r.where.slice(r.where.indexOf(" ") + 1);
    return [
      r.flag,
      r.rule,
      el("button", { class: "link", onclick: () => seek(name) }, r.where),
      r.reason,
      place(model, r.site),
    ];
  });
  const passes = facts.passes.map((p) => [p.flag, String(p.applied), String(p.refused), p.miss]);
  const [headers, before, after] = facts.summary;
  const sums = [
    ["before", ...before],
    ["after", ...after],
  ].map((row) => [row[0], row[1], ...row.slice(4)]);
  return [
    ...times(model, { seek }),
    part("Totals", true, table(["", "operators", ...headers.slice(3)], sums, [2, 3, 4])),
    part(
      `Refusals: ${refusedRows.length}`,
      refusedRows.length > 0 && refusedRows.length < 30,
      table(["pass", "rule", "operator", "reason", "line"], refusedRows),
    ),
    later(`Rewrites: ${facts.steps.length}`, () => table(["rewrite", "result", "equation", "line"], steps())),
    part(`Passes: ${passes.length}`, false, table(["pass", "applied", "refused", "nearest miss"], passes, [1, 2])),
  ];
}
