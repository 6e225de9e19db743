// Sends a pasted or dropped log to the doctor of this machine, and shows what it says.
"use strict";
(() => {
  const form = document.getElementById("paste");
  const log = document.getElementById("log");
  const file = document.getElementById("file");
  const choose = document.getElementById("choose");
  const note = document.getElementById("doctor-note");
  const result = document.getElementById("result");
  choose.hidden = false;
  choose.addEventListener("click", () => file.click());

  async function send(body, name) {
    note.textContent = "Reading the log …";
    try {
      const answer = await fetch(`/doctor?part=1&name=${encodeURIComponent(name)}`, {
        method: "POST", body, headers: { "content-type": "application/octet-stream", accept: "text/html" },
      });
      const part = new DOMParser().parseFromString(await answer.text(), "text/html");
      result.replaceChildren(...part.body.childNodes);
      note.textContent = name ? `read: ${name}` : "";
    } catch (error) {
      note.textContent = "The server does not answer; is `steadyrl web` still running?";
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(log.value, "");
  });
  file.addEventListener("change", () => { if (file.files.length) send(file.files[0], file.files[0].name); });
  const over = (event) => { event.preventDefault(); document.body.classList.add("is-dropping"); };
  addEventListener("dragover", over);
  addEventListener("dragleave", () => document.body.classList.remove("is-dropping"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("is-dropping");
    const dropped = event.dataTransfer.files[0];
    if (dropped) { send(dropped, dropped.name); return; }
    const text = event.dataTransfer.getData("text");
    if (text) { log.value = text; send(text, ""); }
  });
})();
