"use strict";
// The programs of a compilation: operators at each step, their boxes, and what is visible of them. Knows no page.

const BOX = 40; // operators of a box that only their places make
const MANY = 60; // operators without a name scope of their own above which they get such boxes
const READABLE = 16; // nodes of a picture that nobody has unfolded yet
const READABLE_OF_FEW = 24; // those of a program without so many operators: it opens in no time

function makeModel(facts) {
  const FIELDS = ["type", "inputs", "outputs", "attrs", "role", "scope", "site", "rank", "block", "rewriter"];
  const states = facts.states.map((row, id) => {
    const op = { id };
    FIELDS.forEach((field, i) => {
      op[field] = row[i];
    });
    op.writes = op.outputs.flatMap(([, values]) => values);
    op.reads = op.inputs.flatMap(([, values]) => values);
    op.name = op.writes.length ? facts.values[op.writes[0]][0] : "";
    op.facts = JSON.stringify(row.slice(0, 7));
    return op;
  });
  const data = new Set(facts.data.map((v) => facts.values[v][0]));
  const made = new Map(),
    gone = new Map(); // state -> step that made it, that took it out
  facts.steps.forEach((step, i) => {
    for (const [, before, after] of step.changes) {
      if (after >= 0) made.set(after, i + 1);
      if (before >= 0) gone.set(before, i + 1);
    }
  });

  function keyed(step) {
    const now = new Map(facts.initial);
    for (const { changes } of facts.steps.slice(0, step)) {
      for (const [key, , after] of changes) {
        if (after < 0) now.delete(key);
        else now.set(key, after);
      }
    }
    return now;
  }

  const kept = new Map();
  function at(step) {
    // operators in their order, each with its key
    if (!kept.has(step)) {
      if (kept.size > 8) kept.clear();
      const ops = [...keyed(step)].map(([key, id]) => ({ key, ...states[id] }));
      ops.sort((a, b) => a.rank - b.rank);
      kept.set(step, ops);
    }
    return kept.get(step);
  }

  const home = (op) => [op.role, ...op.scope.split("/").filter((part) => part)];
  const sizes = new Map(); // operators of a home in the first program
  for (const op of at(0)) {
    const name = home(op).join("/");
    sizes.set(name, (sizes.get(name) || 0) + 1);
  }

  function path(op) {
    // names of the boxes around an operator, outermost first
    const names = home(op),
      size = sizes.get(names.join("/")) || 0;
    for (let width = BOX; width < size && size > MANY; width *= BOX) {
      const first = Math.floor(op.block / width) * width;
      names.splice(home(op).length, 0, `${first} to ${first + width - 1}`);
    }
    return names;
  }

  function boxes(step) {
    // path of each box -> how many operators it has, and the boxes in it
    const found = new Map([["", { count: 0, inner: new Set(), own: 0 }]]);
    for (const op of at(step)) {
      let outer = "";
      found.get("").count += 1;
      for (const name of path(op)) {
        const inner = `${outer}/${name}`;
        if (!found.has(inner)) found.set(inner, { count: 0, inner: new Set(), own: 0 });
        found.get(inner).count += 1;
        found.get(outer).inner.add(inner);
        outer = inner;
      }
      found.get(outer).own += 1;
    }
    return found;
  }

  function unfolded(step, most = at(0).length > MANY ? READABLE : READABLE_OF_FEW) {
    // the boxes that can be open while the picture has at most so many nodes
    const all = boxes(step),
      open = new Set();
    let nodes = all.get("").inner.size;
    let waiting = [...all.get("").inner];
    while (waiting.length) {
      const next = [];
      for (const box of waiting) {
        const more = all.get(box).inner.size + all.get(box).own - 1;
        if (nodes + more <= most) {
          nodes += more;
          open.add(box);
          next.push(...all.get(box).inner);
        }
      }
      waiting = next;
    }
    return open;
  }

  function view(step, open, other) {
    // nodes and edges to draw; those whose operator `other` has not are changed
    const old = new Map((other === undefined ? [] : at(other)).map((op) => [op.key, op.facts]));
    const all = boxes(step),
      nodes = new Map(),
      edges = new Map(),
      writer = new Map();
    function add(node) {
      if (!nodes.has(node.id)) nodes.set(node.id, node);
      return nodes.get(node.id);
    }
    function shown(op) {
      // the node that stands for an operator
      let outer = "";
      for (const name of path(op)) {
        const box = `${outer}/${name}`;
        if (all.get(box).count === 1) break; // the operator itself says more
        const node = add({
          id: `box:${box}`,
          kind: open.has(box) ? "open" : "box",
          box,
          name,
          role: op.role,
          parent: outer ? `box:${outer}` : undefined,
          count: 0,
          changed: false,
        });
        node.count += 1;
        node.changed = node.changed || isChanged(op);
        if (!open.has(box)) return node;
        outer = box;
      }
      return add({
        id: `op:${op.key}`,
        kind: "op",
        op,
        name: op.type,
        role: op.role,
        parent: outer ? `box:${outer}` : undefined,
        changed: isChanged(op),
      });
    }
    function isChanged(op) {
      return other !== undefined && old.get(op.key) !== op.facts;
    }
    for (const op of at(step)) {
      const node = shown(op);
      for (const value of op.reads) {
        const name = facts.values[value][0];
        let from = writer.get(name);
        if (from === undefined && data.has(name)) {
          from = add({ id: `data:${name}`, kind: "data", name, value }).id;
        }
        if (from !== undefined && from !== node.id) {
          const far = nodes.get(from).kind !== "data" && nodes.get(from).role !== node.role;
          edges.set(`${from} ${node.id}`, { from, to: node.id, far });
        }
      }
      for (const value of op.writes) writer.set(facts.values[value][0], node.id);
    }
    return { nodes: [...nodes.values()], edges: [...edges.values()] };
  }

  function around(op) {
    // the boxes that must be open to see an operator
    return path(op).map((_, i, names) => names.slice(0, i + 1).reduce((outer, name) => `${outer}/${name}`, ""));
  }

  function search(text, step) {
    const words = text
      .toLowerCase()
      .split(/\s+/)
      .filter((word) => word);
    if (!words.length) return [];
    return at(step).filter((op) => {
      const names = op.writes.concat(op.reads).map((v) => facts.values[v][0]);
      const file = op.site < 0 ? "" : `${facts.sites[op.site][0]}:${facts.sites[op.site][1]}`;
      const line = [op.type, op.scope, file, ...names].join(" ").toLowerCase();
      return words.every((word) => line.includes(word));
    });
  }

  return { facts, states, at, view, unfolded, boxes, around, search, made, gone, last: facts.steps.length };
}

if (typeof module !== "undefined") module.exports = { makeModel };
