"use strict";
// Search runs in a worker, which a browser does not start from file://. Here a hidden frame does its work.

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const load = (source) =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script");
          script.addEventListener("load", done);
          script.addEventListener("error", failed);
          script.src = source;
          inside.document.head.append(script);
        });
      const told = (target, data) => target.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...sources) => Promise.all(sources.map(load));
      inside.postMessage = (data) => told(this, data);
      this.ready = load(url);
      this.postMessage = (data) => this.ready.then(() => told(inside, data));
    }
  };
}
