"use strict";
// One picture of a program: cytoscape draws it, dagre lays it out. `picked` is called with the node that was clicked.

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function drawingStyle() {
  const text = { "font-size": 11, "font-family": "system-ui, sans-serif", color: colour("text") };
  return [
    {
      selector: "node",
      style: {
        ...text,
        label: "data(label)",
        shape: "round-rectangle",
        width: "data(width)",
        height: "data(height)",
        "text-valign": "center",
        "text-halign": "center",
        "text-wrap": "wrap",
        "background-color": colour("data"),
        "border-width": 1,
        "border-color": colour("line"),
      },
    },
    ...["forward", "backward", "optimize"].map((role) => ({
      selector: `node[role = "${role}"]`,
      style: { "background-color": colour(role) },
    })),
    {
      selector: 'node[kind = "box"]',
      style: { "border-width": 3, "border-style": "double", "border-color": colour("edge") },
    },
    { selector: 'node[kind = "data"]', style: { shape: "ellipse" } },
    { selector: "node[?changed]", style: { "border-color": colour("new"), "border-width": 4 } },
    { selector: 'node[?changed][kind = "op"]', style: { "background-color": colour("new") } },
    { selector: "node.gone[?changed]", style: { "border-color": colour("gone") } },
    { selector: 'node.gone[?changed][kind = "op"]', style: { "background-color": colour("gone") } },
    {
      selector: 'node[kind = "open"]',
      style: {
        label: "data(label)",
        "text-valign": "top",
        "background-color": colour("group"),
        "background-opacity": 0.12,
        "border-width": 1,
        padding: 8,
        "font-weight": "bold",
      },
    },
    {
      selector: "edge",
      style: {
        width: 1.2,
        "line-color": colour("edge"),
        "target-arrow-color": colour("edge"),
        "target-arrow-shape": "triangle",
        "arrow-scale": 0.8,
        "curve-style": "bezier",
      },
    },
    { selector: "edge[?far]", style: { "line-style": "dashed", opacity: 0.45 } },
    { selector: "node:selected", style: { "border-color": colour("picked"), "border-width": 4 } },
    {
      selector: ".near",
      style: { "line-color": colour("picked"), "target-arrow-color": colour("picked"), width: 2.4 },
    },
  ];
}

function makePane(container, picked) {
  const cy = cytoscape({ container, style: drawingStyle(), minZoom: 0.03, maxZoom: 4, boxSelectionEnabled: false });
  cy.on("tap", "node", (event) => picked(event.target.data("node")));
  cy.on("tap", (event) => {
    if (event.target === cy) picked(null);
  });
  cy.on("select", "node", (event) => event.target.connectedEdges().addClass("near"));
  cy.on("unselect", "node", (event) => event.target.connectedEdges().removeClass("near"));

  function label(node) {
    if (node.kind === "op") return node.op.name ? `${node.name}\n${shortened(node.op.name)}` : node.name;
    if (node.kind === "data") return shortened(node.name);
    return `${shortened(node.name)} (${node.count})`;
  }
  function element(node) {
    const text = label(node),
      lines = text.split("\n");
    const width = Math.max(...lines.map((line) => line.length)) * 6.3 + 16;
    const { id, parent, kind, role, changed } = node;
    return { data: { id, parent, kind, role, changed, label: text, width, height: lines.length * 14 + 10, node } };
  }
  function show(view, isGone) {
    cy.startBatch();
    cy.elements().remove();
    cy.add(view.nodes.map(element));
    cy.add(
      view.edges.map(({ from, to, far }) => ({ data: { id: `${from} ${to}`, source: from, target: to, far } })),
    );
    if (isGone) cy.nodes().addClass("gone");
    cy.endBatch();
    const own = cy.elements("node, edge[!far]"); // forward, backward and updates stand beside each other
    own.layout({ name: "dagre", nodeSep: 14, rankSep: 30, ranker: "tight-tree", animate: false, fit: false }).run();
  }
  function fit() {
    cy.resize();
    cy.fit(undefined, 16);
    if (cy.zoom() > 1.3) {
      cy.zoom(1.3);
      cy.center();
    }
    if (cy.zoom() < 0.25) {
      // too large to read: its beginning
      cy.zoom(0.6);
      cy.center(
        cy
          .nodes('[kind != "open"]')
          .filter((node) => node.data("role") === "forward")
          .first(),
      );
    }
  }
  function look() {
    // at what has changed, where that is only a part
    const changed = cy.nodes("[?changed][kind != 'open']");
    if (!changed.length) {
      fit();
      return;
    }
    cy.resize();
    cy.fit(changed.union(changed.neighborhood("node[kind != 'open']")), 30);
    if (cy.zoom() > 1) {
      cy.zoom(1);
      cy.center(changed);
    }
    if (cy.zoom() < 0.35) {
      cy.zoom(0.6);
      cy.center(changed.first());
    }
  }
  function select(id) {
    cy.elements().unselect();
    const node = id === undefined ? cy.collection() : cy.getElementById(id);
    if (!node.length) return false;
    node.select();
    const box = node.renderedBoundingBox(),
      seen = box.x1 > 0 && box.y1 > 0 && box.x2 < cy.width() && box.y2 < cy.height();
    if (!seen) cy.center(node);
    return true;
  }
  function near(id) {
    // select it, large enough to read
    if (!select(id)) return;
    cy.zoom(Math.max(cy.zoom(), 0.9));
    cy.center(cy.$(":selected"));
  }
  function zoomBy(factor) {
    cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } });
  }
  function panBy(x, y) {
    cy.panBy({ x, y });
  }
  return { cy, show, fit, look, near, select, zoomBy, panBy, restyle: () => cy.style(drawingStyle()) };
}

function shortened(text) {
  return text.length > 34 ? `${text.slice(0, 22)}…${text.slice(-11)}` : text;
}
