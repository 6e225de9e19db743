// The arrow keys lead to the previous and the next rollout or step.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea, .scroll, .columns") || event.altKey || event.ctrlKey || event.metaKey) return;
  const go = { ArrowLeft: "go-previous", ArrowRight: "go-next" }[event.key];
  if (go) document.getElementById(go)?.click();
});
