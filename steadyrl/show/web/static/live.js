// Keeps an open page up to date: the server says that something changed, and this fetches the part that shows it.
"use strict";
(() => {
  const root = document.getElementById("live");
  if (!root || !root.dataset.events || !window.EventSource) return;
  const mark = document.getElementById("live-mark");
  const text = document.getElementById("live-text");
  const apart = 900; // milliseconds between two refreshes: a run with many steps a second must not cost it time
  let last = -apart;
  let waiting = false;
  let missed = false;

  function address() {
    if (root.dataset.part) return root.dataset.part;
    const here = new URL(location.href);
    here.searchParams.set("part", "1");
    return here.pathname + here.search;
  }

  const reachable = () => [...root.querySelectorAll("a, button, input, summary")];

  // What the reader has opened, marked or focused stays so.
  function remember() {
    return {
      focus: reachable().indexOf(document.activeElement),
      open: new Set([...root.querySelectorAll("details[open]")].map(nameOf)),
      marked: new Set([...root.querySelectorAll("input:checked")].map((box) => box.value)),
      scroll: root.querySelector(".scroll")?.scrollLeft ?? 0,
      known: new Set([...root.querySelectorAll("details")].map(nameOf)),
    };
  }

  function nameOf(details) {
    const owner = details.closest("li");
    return (owner ? owner.querySelector("strong")?.textContent + "/" : "") + details.className;
  }

  function restore(held) {
    for (const details of root.querySelectorAll("details")) {
      if (held.known.has(nameOf(details))) details.open = held.open.has(nameOf(details));
    }
    for (const box of root.querySelectorAll("input[type=checkbox]")) box.checked = held.marked.has(box.value);
    const scroll = root.querySelector(".scroll");
    if (scroll) scroll.scrollLeft = held.scroll;
    if (held.focus >= 0) reachable()[held.focus]?.focus({ preventScroll: true });
  }

  async function refresh() {
    waiting = false;
    last = performance.now();
    try {
      const answer = await fetch(address(), { headers: { accept: "text/html" } });
      if (answer.ok) {
        const part = new DOMParser().parseFromString(await answer.text(), "text/html");
        const held = remember();
        root.replaceChildren(...part.body.childNodes);
        restore(held);
        document.dispatchEvent(new CustomEvent("run-changed"));
      }
    } catch (error) {
      say("offline", false);
    }
  }

  function changed() {
    missed = document.hidden; // nobody looks; what is new is fetched when somebody does
    if (missed || waiting) return;
    waiting = true;
    setTimeout(refresh, Math.max(0, last + apart - performance.now()));
  }

  function say(word, alive) {
    mark.hidden = false;
    mark.classList.toggle("is-off", !alive);
    text.textContent = word;
  }

  const events = new EventSource(root.dataset.events);
  events.addEventListener("begin", () => say("live", true));
  events.addEventListener("changed", changed);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && missed) changed(); });
  events.onerror = () => say("connection lost", false);
  addEventListener("pagehide", () => events.close());
})();
