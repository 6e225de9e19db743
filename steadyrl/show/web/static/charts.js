// Draws the curves of one or several runs. One board has many panels; they share the steps that are shown.
"use strict";
(() => {
  const root = document.getElementById("board");
  if (!root || typeof uPlot === "undefined") return;
  const sources = JSON.parse(root.dataset.sources);
  const several = sources.length > 1;
  const note = document.getElementById("curves-note");
  const colours = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6", "--line-7"];
  const dashes = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 2], [1, 2]];
  const view = { from: null, to: null, smooth: true, log: false };
  const panels = [];
  let held = sources.map(() => null); // what the server answered, by source
  let pins = [];
  let asking = 0;
  const MOST_ADDED = 200; // steps, one by one, before all are fetched again
  const added = sources.map(() => 0);

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faint = (colour, share) => colour + Math.round(share * 255).toString(16).padStart(2, "0");

  function digits(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
    if (size >= 1000) return Math.round(value).toLocaleString("en-US");
    return String(+value.toPrecision(4));
  }

  // The same smoothing as in the report: a rolling median over a fifteenth of the steps, with as many values after the
  // first ones as before them.
  function rollingMedian(values, width) {
    const reach = width >> 1;
    return values.map((value, i) => {
      if (value === null) return null;
      const near = [];
      for (let j = Math.max(0, i - reach); j <= Math.min(values.length - 1, i + Math.min(i, reach)); j++) {
        if (values[j] !== null && values[j] !== undefined) near.push(values[j]);
      }
      near.sort((a, b) => a - b);
      const middle = near.length >> 1;
      return near.length % 2 ? near[middle] : (near[middle - 1] + near[middle]) / 2;
    });
  }

  function widthOf(count) {
    return count < 10 ? 1 : Math.max(5, Math.floor(count / 15)) | 1;
  }

  // Of each line: what is drawn faintly (every step, or the lowest and highest of several), and what strongly.
  function tables(panel) {
    const found = [];
    sources.forEach((source, s) => {
      const data = held[s];
      if (!data) return;
      panel.metrics.forEach(([metric, label], m) => {
        const line = data.lines[metric];
        if (!line || !line[0].some((value) => value !== null)) return;
        const seen = line[0].map((v, i) => (v === null ? -1 : i)).filter((i) => i >= 0);
        const x = seen.map((i) => data.steps[i]);
        const mean = seen.map((i) => line[0][i]);
        const low = line.length > 1 ? seen.map((i) => line[1][i]) : null;
        const high = line.length > 1 ? seen.map((i) => line[2][i]) : null;
        const width = view.smooth ? widthOf(x.length) : 1;
        const strong = width > 1 ? rollingMedian(mean, width) : mean;
        found.push({
          x, low: low || (width > 1 ? mean : null), high, strong, raw: mean, few: x.length < 10,
          colour: css(colours[(several ? s : m) % colours.length]),
          dash: dashes[(several ? m : 0) % dashes.length],
          label: [several ? source.name : "", label].filter(Boolean).join(" · ") || "",
        });
      });
    });
    return found;
  }

  function build(panel) {
    const lines = tables(panel);
    panel.plot.replaceChildren();
    panel.chart = null;
    panel.lines = lines;
    if (!lines.length) {
      panel.plot.textContent = "no values in these steps";
      legend(panel, null);
      return;
    }
    const series = [{}];
    const bands = [];
    const blocks = [];
    for (const line of lines) {
      blocks.push([line.x, line.strong, ...(line.low ? [line.low] : []), ...(line.high ? [line.high] : [])]);
      const strong = {
        stroke: line.colour, width: 2, dash: line.dash, spanGaps: true, points: { show: line.few, size: 6 },
      };
      series.push(strong);
      if (line.low && line.high) {
        series.push({ stroke: faint(line.colour, 0.25), width: 1, spanGaps: true, points: { show: false } });
        series.push({ stroke: faint(line.colour, 0.25), width: 1, spanGaps: true, points: { show: false } });
        bands.push({ series: [series.length - 1, series.length - 2], fill: faint(line.colour, 0.16) });
      } else if (line.low) {
        series.push({ stroke: faint(line.colour, 0.38), width: 1, spanGaps: true, points: { show: false } });
      }
    }
    const ends = extent();
    const positive = lines.every((line) => line.strong.every((value) => value === null || value > 0));
    const axis = {
      stroke: css("--soft"), font: "11px system-ui, sans-serif", size: 54, gap: 4,
      grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false },
    };
    const options = {
      width: Math.max(panel.plot.clientWidth, 200),
      height: panel.figure.classList.contains("is-large") ? 380 : 190,
      series, bands,
      legend: { show: false },
      padding: [10, 8, 0, 0],
      cursor: { drag: { x: true, y: false, dist: 6 }, sync: { key: "steps", scales: ["x", null] }, points: { size: 7 } },
      scales: {
        x: { time: false, range: () => [view.from ?? ends[0], Math.max(view.to ?? ends[1], (view.from ?? ends[0]) + 1)] },
        y: view.log && positive ? { distr: 3 } : { range: (u, min, max) => {
          if (min === null) return [0, 1];
          if (max - min > 1e-9 * Math.max(Math.abs(min), Math.abs(max))) return uPlot.rangeNum(min, max, 0.08, true);
          const room = Math.abs(min) / 10 || 1; // a constant
          return [min - room, max + room];
        } },
      },
      axes: [
        { ...axis, size: 26, values: (u, ticks) => ticks.map((t) => (Number.isInteger(t) ? t.toLocaleString("en-US") : "")) },
        { ...axis, values: (u, ticks) => ticks.map((t) => (t === null ? "" : digits(t))) },
      ],
      hooks: {
        setSelect: [(u) => {
          if (u.select.width < 6) return;
          zoom(Math.floor(u.posToVal(u.select.left, "x")), Math.ceil(u.posToVal(u.select.left + u.select.width, "x")));
        }],
        setCursor: [(u) => legend(panel, u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null)],
        draw: [(u) => drawPins(panel, u)],
      },
    };
    panel.chart = new uPlot(options, joined(blocks), panel.plot);
    panel.chart.over.addEventListener("dblclick", () => zoom(null, null));
    legend(panel, null);
  }

  const joined = (blocks) => (blocks.length > 1 ? uPlot.join(blocks) : blocks[0]);

  // The last value at or before a step: what a reader of the curve at that place wants to know.
  function at(line, step) {
    if (step === null) return [line.raw[line.raw.length - 1], line.x[line.x.length - 1]];
    let low = 0;
    let high = line.x.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (line.x[middle] <= step + 0.5) low = middle; else high = middle - 1;
    }
    return [line.raw[low], line.x[low]];
  }

  function legend(panel, step) {
    const parts = panel.lines.map((line) => {
      const [value, where] = at(line, step);
      const part = document.createElement("span");
      const mark = document.createElement("i");
      // The mark is dashed as the line is.
      const [on, off] = line.dash.length ? [Math.min(line.dash[0], 5), Math.min(line.dash[1], 3)] : [9, 0];
      mark.style.background = `repeating-linear-gradient(90deg, ${line.colour} 0 ${on}px, transparent ${on}px ${on + off}px)`;
      const number = document.createElement("b");
      number.textContent = digits(value);
      part.append(mark, line.label ? `${line.label} ` : "", number);
      if (panel.lines.length === 1 || line === panel.lines[0]) part.title = `step ${where}`;
      return part;
    });
    if (step !== null && panel.lines.length) {
      const where = document.createElement("span");
      where.className = "soft";
      where.textContent = `step ${at(panel.lines[0], step)[1].toLocaleString("en-US")}`;
      parts.push(where);
    }
    panel.legend.replaceChildren(...parts);
  }

  function drawPins(panel, u) {
    for (const old of u.over.querySelectorAll(".pin")) old.remove();
    let last = -99;
    for (const pin of pins) {
      const left = u.valToPos(pin.step, "x");
      if (!(left >= 0 && left <= u.over.clientWidth) || left - last < 2) continue;
      last = left;
      const mark = document.createElement("button");
      mark.type = "button";
      mark.className = `pin is-${["critical", "warning", "info", "action"].includes(pin.kind) ? pin.kind : "other"}`;
      mark.style.left = `${left}px`;
      mark.tabIndex = -1;
      mark.title = `step ${pin.step}: ${pin.title}`;
      mark.addEventListener("mousedown", (event) => event.stopPropagation());
      mark.addEventListener("click", () => around(pin.step));
      u.over.append(mark);
    }
  }

  function extent() {
    const known = held.filter((data) => data && data.steps.length);
    return [Math.min(...known.map((d) => d.steps[0])), Math.max(...known.map((d) => d.steps[d.steps.length - 1]))];
  }

  function around(step) {
    if (!held.some((data) => data && data.steps.length)) return;
    const [first, last] = full || extent();
    const reach = Math.max(10, Math.round((last - first) / 12));
    zoom(Math.max(0, step - reach), step + reach);
    root.querySelector(".chart")?.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  let full = null; // first and last step of everything, while only a part is shown

  function zoom(from, to) {
    if (from !== null && view.from === null) full = extent();
    if (from !== null && to - from < 2) return;
    view.from = from === null ? null : Math.max(0, from);
    view.to = to;
    if (from === null) full = null;
    document.getElementById("zoom-from").value = view.from ?? "";
    document.getElementById("zoom-to").value = view.to ?? "";
    load();
  }

  // An open page asks for the steps that it does not have. Of a run that made steps anew it needs all of them again, and
  // so it does after some time, for a screen shows no more than some points.
  async function curvesOf(source, s, part) {
    const old = held[s];
    const more = part === "" && old && old.whole && old.complete && old.version && old.last !== null && added[s] < MOST_ADDED;
    const asked = more ? `after=${old.last}` : part;
    const answer = await fetch(source.url + (source.url.includes("?") ? "&" : "?") + asked);
    if (!answer.ok) return null;
    const data = await answer.json();
    if (!more) {
      added[s] = 0;
      return { ...data, whole: part === "" };
    }
    if (data.version !== old.version) {
      held[s] = null;
      return curvesOf(source, s, part);
    }
    added[s] += data.steps.length;
    return withMore(old, data);
  }

  function withMore(old, more) {
    const unknown = (count) => new Array(count).fill(null);
    const lines = {};
    for (const name of new Set([...Object.keys(old.lines), ...Object.keys(more.lines)])) {
      const before = old.lines[name] || new Array(old.single ? 1 : 3).fill(unknown(old.steps.length));
      const fresh = more.lines[name] || [unknown(more.steps.length)];
      lines[name] = before.map((line, i) => line.concat(fresh[i] || fresh[0]));
    }
    return { ...old, pins: more.pins, steps: old.steps.concat(more.steps), lines, last: more.last ?? old.last };
  }

  async function load() {
    const mine = ++asking;
    const part = view.from === null ? "" : `from=${view.from}&to=${view.to}`;
    const answers = await Promise.all(sources.map((source, s) => curvesOf(source, s, part))).catch(() => null);
    if (mine !== asking || !answers) return;
    held = answers;
    pins = several || !held[0] ? [] : held[0].pins;
    const partial = held.some((data) => data && !data.complete);
    const many = held.some((data) => data && !data.single);
    note.textContent = partial ? "A sample of the steps; the rest is being read."
      : many ? "Bands show the lowest and highest of several steps." : "";
    drawAll();
    if (partial) setTimeout(load, 700);
  }

  function drawAll() {
    for (const panel of panels) {
      panel.stale = true;
      if (panel.visible) draw(panel);
    }
  }

  function draw(panel) {
    panel.stale = false;
    build(panel);
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const panel = panels.find((one) => one.figure === entry.target);
      panel.visible = entry.isIntersecting;
      if (panel.visible && panel.stale && held.some(Boolean)) draw(panel);
    }
  }, { rootMargin: "300px" });

  function keys(panel, event) {
    const u = panel.chart;
    if (!u) return;
    const [first, last] = view.from === null ? extent() : [view.from, view.to];
    const shown = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : (first + last) / 2;
    const reach = (last - first) / 2;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const by = (event.key === "ArrowLeft" ? -1 : 1) * Math.max(1, (last - first) / (event.shiftKey ? 10 : 60));
      const left = u.valToPos(Math.min(last, Math.max(first, shown + by)), "x");
      u.setCursor({ left, top: u.over.clientHeight / 2 });
    } else if (event.key === "+" || event.key === "=") {
      zoom(Math.round(shown - reach / 2), Math.round(shown + reach / 2));
    } else if (event.key === "-") {
      zoom(Math.max(0, Math.round(shown - 2 * reach)), Math.round(shown + 2 * reach));
    } else if (event.key === "0" || event.key === "Escape") {
      zoom(null, null);
    } else return;
    event.preventDefault();
  }

  for (const figure of root.querySelectorAll(".chart")) {
    const panel = {
      figure, plot: figure.querySelector(".plot"), legend: figure.querySelector(".legend"),
      metrics: JSON.parse(figure.dataset.metrics), lines: [], visible: false, stale: true, chart: null,
    };
    panels.push(panel);
    figure.querySelector(".grow").addEventListener("click", () => {
      figure.classList.toggle("is-large");
      draw(panel);
    });
    panel.plot.addEventListener("keydown", (event) => keys(panel, event));
    seen.observe(figure);
  }

  const toolbar = document.getElementById("toolbar");
  toolbar.hidden = false;
  const from = document.getElementById("zoom-from");
  const to = document.getElementById("zoom-to");
  for (const box of [from, to]) {
    box.addEventListener("change", () => {
      const [first, last] = full || extent();
      const a = from.value.trim() === "" ? first : parseInt(from.value, 10);
      const b = to.value.trim() === "" ? last : parseInt(to.value, 10);
      if (Number.isFinite(a) && Number.isFinite(b) && b > a) zoom(a, b);
    });
  }
  document.getElementById("zoom-all").addEventListener("click", () => zoom(null, null));
  document.getElementById("smoothing").addEventListener("change", (event) => {
    view.smooth = event.target.value === "auto";
    drawAll();
  });
  document.getElementById("log-scale").addEventListener("change", (event) => {
    view.log = event.target.checked;
    drawAll();
  });
  document.getElementById("metric-filter").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const panel of panels) {
      const said = `${panel.figure.dataset.title} ${panel.metrics.map((one) => one[0]).join(" ")}`.toLowerCase();
      panel.figure.hidden = !words.every((word) => said.includes(word));
    }
    for (const topic of root.querySelectorAll(".topic")) {
      topic.hidden = [...topic.querySelectorAll(".chart")].every((figure) => figure.hidden);
    }
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.step");
    if (button) around(parseInt(button.dataset.step, 10));
  });
  document.addEventListener("run-changed", () => { if (view.from === null) load(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let resizing = 0;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(drawAll, 150); });
  load();
})();
