"use strict";
// The page: which two programs are shown, what is picked, and the ways to say so by mouse, touch and keyboard.

const MOST = 120; // nodes of a picture that the page unfolds by itself

(() => {
  const byId = (id) => document.getElementById(id);
  const model = makeModel(JSON.parse(byId("facts").textContent));
  const now = {
    stepping: false,
    step: model.last,
    open: model.unfolded(0),
    picked: null,
    searched: "",
    hits: [],
    hit: -1,
  };
  const left = makePane(byId("left"), (node) => pick(node, 0)),
    right = makePane(byId("right"), (node) => pick(node, 1));
  const panes = [left, right];
  const actions = {
    go: (step) => {
      now.stepping = true;
      show(step);
    },
    seek,
  };

  function shownSteps() {
    return now.stepping ? [Math.max(now.step - 1, 0), now.step] : [0, now.step];
  }

  function draw(fit = true) {
    const [a, b] = shownSteps();
    left.show(model.view(a, now.open, b), true);
    right.show(model.view(b, now.open, a), false);
    if (fit) panes.forEach((pane) => (now.stepping ? pane.look() : pane.fit()));
    if (now.picked) panes.forEach((pane) => pane.select(now.picked));
  }

  function show(step) {
    now.step = Math.min(Math.max(step, 0), model.last);
    const [a, b] = shownSteps(),
      told = model.facts.steps[now.step - 1];
    if (now.stepping && told) reveal(told);
    byId("step").value = now.step;
    byId("step").disabled = model.last === 0;
    byId("whole").setAttribute("aria-pressed", String(!now.stepping));
    byId("steps").setAttribute("aria-pressed", String(now.stepping));
    const title = (i) => (i === 0 ? "Before" : i === model.last ? "After" : `After ${i} of ${model.last} rewrites`);
    byId("left-title").textContent = `${title(a)}: ${model.at(a).length} operators`;
    byId("right-title").textContent = `${title(b)}: ${model.at(b).length} operators`;
    byId("left").setAttribute("aria-label", `Picture of the program: ${title(a)}`);
    byId("right").setAttribute("aria-label", `Picture of the program: ${title(b)}`);
    byId("told").textContent =
      !told || !now.stepping
        ? `Rewrites: ${model.last}, refusals: ${model.facts.refusals.length}`
        : `${now.step} of ${model.last}: ${told.flag}, ${told.rule}: ${told.what}   (${told.reason})`;
    draw();
  }

  function reveal(step) {
    // open the boxes around what a rewrite changes, while that is not too much
    const ids = step.changes.flatMap(([, before, after]) => [before, after]).filter((id) => id >= 0);
    now.open = model.unfolded(0, 12);
    for (const id of ids.slice(0, 12)) model.around(model.states[id]).forEach((box) => now.open.add(box));
  }

  function pick(node) {
    now.picked = node ? node.id : null;
    panes.forEach((pane) => pane.select(node ? node.id : undefined));
    const details = byId("details");
    if (!node) details.replaceChildren(help());
    else if (node.kind === "op") details.replaceChildren(...opDetails(model, node.op, actions));
    else if (node.kind === "data") details.replaceChildren(...dataDetails(model, node));
    else if (node.kind === "box") toggle(node.box);
    else details.replaceChildren(...boxDetails(model, node, toggle));
  }

  function toggle(box) {
    if (now.open.has(box)) now.open.delete(box);
    else now.open.add(box);
    draw();
    const node = [...right.cy.nodes(), ...left.cy.nodes()].map((n) => n.data("node")).find((n) => n.box === box);
    byId("details").replaceChildren(...(node ? boxDetails(model, node, toggle) : [help()]));
  }

  function choose(op) {
    // an operator of the right program, or of the left one
    model.around(op).forEach((box) => now.open.add(box));
    now.picked = `op:${op.key}`;
    draw(false);
    panes.forEach((pane) => {
      pane.fit();
      pane.near(now.picked);
    });
    byId("details").replaceChildren(...opDetails(model, op, actions));
  }

  function hitsOf(text) {
    const [a, b] = shownSteps(),
      after = model.search(text, b),
      known = new Set(after.map((op) => op.key));
    return after.concat(model.search(text, a).filter((op) => !known.has(op.key)));
  }

  function search(text) {
    now.searched = text;
    now.hits = hitsOf(text);
    now.hit = -1;
    byId("details").replaceChildren(...(text.trim() ? found(now.hits, text, choose) : [help()]));
  }

  function nextHit(by) {
    if (!now.hits.length) return;
    now.hit = (now.hit + by + now.hits.length) % now.hits.length;
    choose(now.hits[now.hit]);
  }

  function seek(name) {
    // the operator that writes a value
    const [a, b] = shownSteps();
    const writes = (op) => op.writes.some((v) => model.facts.values[v][0] === name);
    const op = [...model.at(b)].reverse().find(writes) || [...model.at(a)].reverse().find(writes);
    if (op) choose(op);
    else {
      byId("search").value = name;
      search(name);
    }
  }

  function help() {
    return el(
      "div",
      {},
      refused(model, actions),
      el("h2", {}, "Click an operator"),
      el("p", {}, "A box holds the operators of a name scope; a click unfolds it."),
      el(
        "dl",
        {},
        [
          ["/", "search; Enter and Shift Enter go through what is found"],
          ["← →", "rewrites, one by one"],
          ["f", "fit"],
          ["+ −", "zoom"],
          ["w a s d", "move"],
          ["u", "unfold"],
          ["c", "fold"],
          ["Esc", "nothing picked"],
        ].flatMap(([key, what]) => [el("dt", {}, key), el("dd", {}, what)]),
      ),
    );
  }

  function theme() {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    panes.forEach((pane) => pane.restyle());
  }

  function fold() {
    now.open = new Set();
    draw();
  }
  function unfold() {
    now.open = model.unfolded(0, MOST);
    draw();
  }
  const zoom = (factor) => panes.forEach((pane) => pane.zoomBy(factor));
  const pan = (x, y) => panes.forEach((pane) => pane.panBy(x, y));
  const KEYS = {
    "/": () => byId("search").focus(),
    ArrowLeft: () => actions.go(now.step - 1),
    ArrowRight: () => actions.go(now.step + 1),
    f: () => panes.forEach((pane) => pane.fit()),
    "+": () => zoom(1.25),
    "=": () => zoom(1.25),
    "-": () => zoom(0.8),
    w: () => pan(0, 60),
    s: () => pan(0, -60),
    a: () => pan(60, 0),
    d: () => pan(-60, 0),
    u: unfold,
    c: fold,
    Escape: () => pick(null),
  };

  document.addEventListener("keydown", (event) => {
    const typing = event.target.tagName === "INPUT";
    if (event.target === byId("search") && event.key === "Enter") nextHit(event.shiftKey ? -1 : 1);
    else if (event.target === byId("search") && event.key === "Escape") event.target.blur();
    else if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey && event.key in KEYS) {
      KEYS[event.key]();
      event.preventDefault();
    }
  });
  const clicks = {
    whole: () => {
      now.stepping = false;
      now.step = model.last;
      show(now.step);
    },
    steps: () => actions.go(Math.min(now.step, model.last) === model.last ? Math.min(1, model.last) : now.step),
    previous: () => actions.go(now.step - 1),
    next: () => actions.go(now.step + 1),
    fold,
    unfold,
    fit: KEYS.f,
    theme,
  };
  for (const [id, action] of Object.entries(clicks)) byId(id).addEventListener("click", action);
  byId("step").max = model.last;
  byId("step").addEventListener("input", (event) => actions.go(Number(event.target.value)));
  byId("search").addEventListener("input", (event) => search(event.target.value));
  window.addEventListener("resize", () => panes.forEach((pane) => pane.cy.resize()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    panes.forEach((pane) => pane.restyle()),
  );
  window.addEventListener("beforeprint", () =>
    panes.forEach((pane) => {
      const size = pane.cy.elements().boundingBox(),
        scale = Math.min(2, 4000 / Math.max(size.w, size.h, 1));
      pane.cy
        .container()
        .append(el("img", { class: "print", alt: "", src: pane.cy.png({ full: true, bg: "#ffffff", scale }) }));
    }),
  );
  window.addEventListener("afterprint", () =>
    document.querySelectorAll(".print").forEach((image) => image.remove()),
  );

  byId("title").textContent = `minigraph: ${model.facts.name}`;
  pick(null);
  show(model.last);
  window.report = { model, now, panes }; // for scripts that look at the page
  window.addEventListener("load", () => {
    // what stands below the pictures does not keep them waiting
    byId("tables").replaceChildren(...timelinePart(model, actions), ...memoryPart(model), ...tables(model, actions));
    document.documentElement.dataset.ready = "true";
  });
})();
