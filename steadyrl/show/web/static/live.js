// Keeps an open page up to date: asks again and again for the part that changes, and gets an answer where it did.
"use strict";
(() => {
  const root = document.getElementById("live");
  if (!root || !root.dataset.every) return;
  const mark = document.getElementById("live-mark");
  const text = document.getElementById("live-text");
  let version = `"${root.dataset.version}"`;

  function address() {
    if (root.dataset.part) return root.dataset.part;
    const here = new URL(location.href);
    here.searchParams.set("part", "1");
    return here.pathname + here.search;
  }

  // What changes stands in one place, or in two: the findings of a run stand below its first curves.
  const more = document.getElementById("what");
  const inside = (selector) => [root, more].filter(Boolean).flatMap((place) => [...place.querySelectorAll(selector)]);
  const reachable = () => inside("a, button, input, select, summary");

  // What the reader has opened, marked or focused stays so.
  function remember() {
    return {
      focus: reachable().indexOf(document.activeElement),
      open: new Set(inside("details[open]").map(nameOf)),
      marked: new Set(inside("input[type=checkbox]:checked").map((box) => `${box.name}=${box.value}`)),
      texts: new Map(inside("input:not([type=checkbox], [type=hidden])").map((box) => [box.name, box.value])),
      scroll: root.querySelector(".scroll")?.scrollLeft ?? 0,
      known: new Set(inside("details").map(nameOf)),
    };
  }

  function nameOf(details) {
    return details.dataset.name || details.className;
  }

  function restore(held) {
    for (const details of inside("details")) {
      if (held.known.has(nameOf(details))) details.open = held.open.has(nameOf(details));
    }
    for (const box of inside("input[type=checkbox]")) box.checked = held.marked.has(`${box.name}=${box.value}`);
    for (const box of inside("input:not([type=checkbox], [type=hidden])")) box.value = held.texts.get(box.name) ?? box.value;
    const scroll = root.querySelector(".scroll");
    if (scroll) scroll.scrollLeft = held.scroll;
    if (held.focus >= 0) reachable()[held.focus]?.focus({ preventScroll: true });
  }

  async function refresh() {
    try {
      const answer = await fetch(address(), { headers: { accept: "text/html", "if-none-match": version } });
      say("live", true);
      if (answer.status !== 200) return; // nothing is new
      version = answer.headers.get("etag");
      const part = new DOMParser().parseFromString(await answer.text(), "text/html");
      const held = remember();
      const below = part.getElementById("what");
      if (more && below) {
        more.replaceChildren(...below.childNodes);
        below.remove();
      }
      root.replaceChildren(...part.body.childNodes);
      restore(held);
      document.dispatchEvent(new CustomEvent("run-changed"));
    } catch (error) {
      say("connection lost", false);
    }
  }

  function say(word, alive) {
    mark.hidden = false;
    mark.classList.toggle("is-off", !alive);
    text.textContent = word;
  }

  async function follow() {
    if (!document.hidden) await refresh(); // what is new while nobody looks is fetched when somebody does
    setTimeout(follow, Number(root.dataset.every)); // milliseconds
  }
  follow();
})();
