// Draws the curves of one or several runs. One board has many panels; they share the steps that are shown.
"use strict";
(() => {
  const root = document.getElementById("board");
  if (!root || typeof uPlot === "undefined") return;
  const inside = document.getElementById("board-data"); // a page that is sent as a file has its curves inside
  const sources = JSON.parse(inside ? inside.textContent : root.dataset.sources);
  const several = sources.length > 1;
  const note = document.getElementById("curves-note");
  const colours = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6", "--line-7"];
  const dashes = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 2], [1, 2]];
  const view = { x: "step", from: null, to: null, smooth: true, log: false, show: "", each: false, hide: new Set(), open: new Set(), own: [] };
  const panels = [];
  let held = sources.map(() => null); // what is shown of each source, as the server answered
  let whole = sources.map(() => null); // all steps of each source
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

  // A number of an axis, with as many digits as tell it from the next.
  function onAxis(value, ticks) {
    const size = Math.max(...ticks.map((tick) => Math.abs(tick ?? 0)));
    const apart = Math.abs(ticks[1] - ticks[0]) / size;
    if (ticks.length < 2 || size < 1e-3 || !(apart > 0 && apart < 1e-3)) return digits(value);
    return value.toPrecision(Math.min(12, 2 - Math.floor(Math.log10(apart))));
  }

  // What a reader has chosen stands in the address, so that it outlives a reload and can be sent to somebody.
  const number = (text) => (text === null || text.trim() === "" || !Number.isFinite(Number(text)) ? null : Number(text));
  const packed = (name) => name.replaceAll("%", "%25").replaceAll(",", "%2C"); // a run may be named with commas
  const unpacked = (name) => name.replaceAll("%2C", ",").replaceAll("%25", "%");
  const words = (text) => new Set((text || "").split(",").map((word) => word.trim()).filter(Boolean));

  function readAddress() {
    const query = new URLSearchParams(location.search);
    if (["tokens", "time"].includes(query.get("x"))) view.x = query.get("x");
    [view.from, view.to] = [number(query.get("from")), number(query.get("to"))];
    if (view.from === null || view.to === null || view.to <= view.from) [view.from, view.to] = [null, null];
    view.smooth = query.get("smooth") !== "none";
    view.log = query.get("log") === "1";
    view.show = query.get("show") || "";
    [view.hide, view.open] = ["hide", "open"].map((name) => new Set([...words(query.get(name))].map(unpacked)));
    view.own = [...words(query.get("chart"))];
    for (const source of sources) if (source.hidden) view.hide.add(source.name);
  }

  function writeAddress() {
    if (inside) return; // browsers refuse another address to a file
    const address = new URL(location.href);
    const said = {
      x: view.x === "step" ? "" : view.x, from: view.from ?? "", to: view.to ?? "", smooth: view.smooth ? "" : "none",
      log: view.log ? "1" : "", show: view.show, hide: [...view.hide].map(packed).join(","), open: [...view.open].map(packed).join(","),
      chart: view.own.join(","),
    };
    for (const [name, value] of Object.entries(said)) {
      if (value === "") address.searchParams.delete(name); else address.searchParams.set(name, value);
    }
    history.replaceState(null, "", address);
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

  const FEW = 120; // steps of a part, each of which can be seen: a median would hide a short dip

  function widthOf(count) {
    if (!view.smooth || count < 10 || (view.from !== null && count <= FEW)) return 1;
    return Math.max(5, Math.floor(count / 15)) | 1;
  }

  const xsOf = (data) => (view.x === "step" ? data.steps : data.axes?.[view.x]);

  // The place of a step on the x that is shown: that of the last known step up to it.
  function xOf(data, step) {
    const xs = data && xsOf(data);
    if (view.x === "step" || !xs || !xs.length) return step;
    const after = data.steps.findIndex((one) => one > step);
    return xs[after < 0 ? xs.length - 1 : Math.max(0, after - 1)];
  }

  function xText(value) {
    if (view.x === "step") return Number.isInteger(value) ? value.toLocaleString("en-US") : "";
    if (view.x === "tokens") {
      const [size, unit] = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]].find(([one]) => Math.abs(value) >= one) || [1, ""];
      return `${+(value / size).toPrecision(4)}${unit}`;
    }
    const longest = extent()[1];
    const [size, unit] = longest > 7200 ? [3600, "h"] : longest > 180 ? [60, "min"] : [1, "s"];
    return `${+(value / size).toPrecision(3)} ${unit}`;
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
        const key = several ? source.name : metric;
        const xs = xsOf(data);
        if (!xs) return;
        let last = -Infinity; // what was done twice may lie before
        const seen = line[0].map((v, i) => (v !== null && xs[i] !== null && xs[i] > last ? ((last = xs[i]), i) : -1)).filter((i) => i >= 0);
        const x = seen.map((i) => xs[i]);
        const mean = seen.map((i) => line[0][i]);
        const low = line.length > 1 ? seen.map((i) => line[1][i]) : null;
        const high = line.length > 1 ? seen.map((i) => line[2][i]) : null;
        const width = widthOf(x.length);
        const strong = width > 1 ? rollingMedian(mean, width) : mean;
        found.push({
          key, metric, run: source.name, source, steps: seen.map((i) => data.steps[i]), shown: !view.hide.has(key),
          x, low: low || (width > 1 ? mean : null), high, strong, raw: mean, few: x.length < 10,
          colour: source.colour || css(colours[(several ? s : m) % colours.length]),
          runs: (source.runs || []).filter((run) => run.lines[metric]).map((run) => [run.steps, run.lines[metric][0]]),
          dash: dashes[(several ? m : 0) % dashes.length],
          label: [several ? source.name : "", several && panel.metrics.length === 1 ? "" : label].filter(Boolean).join(" · "),
        });
      });
    });
    return found;
  }

  // The metrics that the first one's axis does not suit: on one axis, one of the two would fill less than a third of it.
  function flattened(lines) {
    const ends = (metric) => {
      const values = lines.filter((line) => line.metric === metric).flatMap((line) => line.strong.filter((value) => value !== null));
      return [Math.min(...values), Math.max(...values)];
    };
    const [first, ...others] = new Set(lines.map((line) => line.metric));
    return new Set(others.filter((metric) => {
      const [[low, high], [least, most]] = [ends(first), ends(metric)];
      const whole = Math.max(high, most) - Math.min(low, least);
      return [high - low, most - least].some((extent) => extent > 0 && extent < whole / 3);
    }));
  }

  function build(panel) {
    const every = tables(panel);
    const lines = every.filter((line) => line.shown);
    panel.plot.replaceChildren();
    panel.chart = null;
    panel.lines = lines;
    const right = "mixed" in panel.figure.dataset ? flattened(lines) : new Set();
    for (const line of lines) line.scale = right.has(line.metric) ? "right" : "y";
    drawLegend(panel, every);
    if (!lines.length) {
      panel.plot.textContent = every.length ? "all lines are off" : "no values here";
      return;
    }
    const series = [{}];
    const bands = [];
    const blocks = [];
    for (const line of [...lines].reverse()) { // the first metric is drawn last, so that no other covers it
      blocks.push([line.x, line.strong, ...(line.low ? [line.low] : []), ...(line.high ? [line.high] : [])]);
      const strong = {
        scale: line.scale, stroke: line.colour, width: 2, dash: line.dash, spanGaps: true, points: { show: line.few, size: 6 },
      };
      const thin = (share) => ({ scale: line.scale, stroke: faint(line.colour, share), width: 1, spanGaps: true, points: { show: false } });
      series.push(strong);
      if (view.each && line.runs.length > 1) {
        blocks[blocks.length - 1].splice(2);
        for (const run of line.runs) {
          blocks.push(run);
          series.push(thin(0.6));
        }
      } else if (line.low && line.high) {
        series.push(thin(0.25), thin(0.25));
        bands.push({ series: [series.length - 1, series.length - 2], fill: faint(line.colour, 0.16) });
      } else if (line.low) {
        series.push(thin(0.38));
      }
    }
    const ends = extent();
    const positive = lines.every((line) => line.strong.every((value) => value === null || value > 0));
    const axis = {
      stroke: css("--soft"), font: "11px system-ui, sans-serif", size: 54, gap: 4,
      grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false },
    };
    const upright = {
      ...axis, values: (u, ticks) => ticks.map((t) => (t === null ? "" : onAxis(t, ticks))),
      size: (u, texts) => Math.max(axis.size, 12 + 6.5 * Math.max(...(texts || []).map((text) => text.length))),
    };
    const scale = view.log && positive ? { distr: 3 } : { range: (u, min, max) => {
      if (min === null) return [0, 1];
      if (max - min > 1e-9 * Math.max(Math.abs(min), Math.abs(max))) return uPlot.rangeNum(min, max, 0.08, true);
      if (min === 0) return [0, 1]; // a constant
      const room = Math.abs(min) / 10;
      return [min - room, max + room];
    } };
    const options = {
      width: Math.max(panel.plot.clientWidth, 200),
      height: panel.figure.classList.contains("is-large") ? 380 : 190,
      series, bands,
      legend: { show: false },
      padding: [10, right.size ? 0 : 24, 0, 0],
      cursor: { drag: { x: true, y: false, dist: 6 }, sync: { key: "steps", scales: ["x", null] }, points: { size: 7 } },
      scales: {
        x: { time: false, range: () => [view.from ?? ends[0], Math.max(view.to ?? ends[1], (view.from ?? ends[0]) + (view.x === "step" ? 1 : 1e-6))] },
        y: scale,
        ...(right.size ? { right: scale } : {}),
      },
      axes: [
        { ...axis, size: 26, values: (u, ticks) => ticks.map(xText) },
        upright,
        ...(right.size ? [{ ...upright, scale: "right", side: 1, grid: { show: false } }] : []),
      ],
      hooks: {
        setSelect: [(u) => {
          if (u.select.width < 6) return;
          zoom(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
        }],
        setCursor: [(u) => values(panel, u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null)],
        draw: [(u) => drawPins(panel, u)],
      },
    };
    panel.chart = new uPlot(options, joined(blocks), panel.plot);
    panel.chart.over.addEventListener("dblclick", () => zoom(null, null));
    panel.chart.over.addEventListener("click", () => {
      if (panel.chart.select.width < 6) pick(panel);
    });
    values(panel, null);
  }

  const joined = (blocks) => (blocks.length > 1 ? uPlot.join(blocks) : blocks[0]);

  // The number of the last point at or before a place, which a reader of the curve wants to know.
  function at(line, x) {
    if (x === null) return line.x.length - 1;
    const half = view.x === "step" ? 0.5 : 0;
    let low = 0;
    let high = line.x.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (line.x[middle] <= x + half) low = middle; else high = middle - 1;
    }
    return low;
  }

  // The lines with the most points first: in a chart of a sparse and a dense line the dense one knows the step of a place.
  const byPoints = (lines) => [...lines].sort((a, b) => b.x.length - a.x.length);

  function drawLegend(panel, every) {
    panel.values = new Map();
    const parts = every.map((line) => {
      const part = document.createElement("button");
      const mark = document.createElement("i");
      const value = document.createElement("b");
      part.type = "button";
      part.className = "series";
      part.title = line.shown ? "Click to leave this line out" : "Click to draw this line";
      part.setAttribute("aria-pressed", String(line.shown));
      // The mark is dashed as the line is.
      const [on, off] = line.dash.length ? [Math.min(line.dash[0], 5), Math.min(line.dash[1], 3)] : [9, 0];
      mark.style.background = `repeating-linear-gradient(90deg, ${line.colour} 0 ${on}px, transparent ${on}px ${on + off}px)`;
      part.append(mark, line.label ? `${line.label}${line.scale === "right" ? " (right axis)" : ""} ` : "", value);
      part.addEventListener("click", () => {
        if (!view.hide.delete(line.key)) view.hide.add(line.key);
        writeAddress();
        drawAll();
      });
      if (line.shown) panel.values.set(line, value);
      return part;
    });
    panel.where = document.createElement("span");
    panel.where.className = "soft";
    panel.legend.replaceChildren(...parts, panel.where);
  }

  function values(panel, x) {
    for (const [line, value] of panel.values) {
      const i = at(line, x);
      const smooth = x !== null && line.strong !== line.raw && line.strong[i] !== line.raw[i];
      value.textContent = digits(line.raw[i]) + (smooth ? ` (median ${digits(line.strong[i])})` : "");
    }
    const [line] = byPoints(panel.lines);
    if (x === null || !line) {
      panel.where.textContent = "";
      return;
    }
    const i = at(line, x);
    const place = view.x === "step" ? "" : `, ${xText(line.x[i])}${view.x === "tokens" ? " tokens" : ""}`;
    panel.where.textContent = `step ${line.steps[i].toLocaleString("en-US")}${place}`;
  }

  // From a point of a curve to the rollouts of its step.
  function pick(panel) {
    const u = panel.chart;
    if (!u || u.cursor.left < 0) return [];
    const x = u.posToVal(u.cursor.left, "x");
    const links = new Map();
    for (const line of byPoints(panel.lines)) {
      if (!line.source.rollouts || links.has(line.run)) continue;
      const link = document.createElement("a");
      const step = line.steps[at(line, x)];
      link.href = `${line.source.rollouts}?near=${step}`;
      link.textContent = `Rollouts at step ${step.toLocaleString("en-US")}${several ? `: ${line.run}` : ""} →`;
      links.set(line.run, link);
    }
    panel.picked.replaceChildren(...links.values());
    return [...links.values()];
  }

  function save(panel, format) {
    if (!panel.chart) return;
    saveChart(format, {
      run: several ? "compare" : sources[0].name, title: panel.figure.dataset.title, unit: panel.figure.dataset.unit,
      lines: panel.lines, scales: panel.chart.scales, log: panel.chart.scales.y.distr === 3,
      colours: { ink: css("--ink"), page: css("--page"), grid: css("--grid") }, formats: { x: xText, y: onAxis },
      axisName: view.x, axis: { step: "step", tokens: "tokens sampled", time: "time since the first step" }[view.x],
    });
  }

  function drawPins(panel, u) {
    for (const old of u.over.querySelectorAll(".pin")) old.remove();
    let last = -99;
    for (const pin of pins) {
      const left = u.valToPos(xOf(held[0], pin.step), "x");
      if (!(left >= 0 && left <= u.over.clientWidth) || left - last < 2) continue;
      last = left;
      const mark = document.createElement("button");
      mark.type = "button";
      mark.className = `pin is-${["critical", "warning", "info", "action"].includes(pin.kind) ? pin.kind : "other"}`;
      mark.style.left = `${left}px`;
      mark.tabIndex = -1;
      mark.title = `step ${pin.step}: ${pin.title}`;
      mark.addEventListener("mousedown", (event) => event.stopPropagation());
      mark.addEventListener("click", (event) => { event.stopPropagation(); around(pin.step); });
      u.over.append(mark);
    }
  }

  function extent() {
    const ends = whole.map((data) => (data ? (xsOf(data) || []).filter((x) => x !== null) : [])).filter((xs) => xs.length);
    if (!ends.length) return [0, 1];
    return [Math.min(...ends.map((xs) => xs[0])), Math.max(...ends.map((xs) => xs[xs.length - 1]))];
  }

  function around(step) {
    const data = whole.find((one) => one && one.steps.length);
    if (!data) return;
    const reach = Math.max(10, Math.round((data.steps[data.steps.length - 1] - data.steps[0]) / 12));
    zoom(xOf(data, Math.max(0, step - reach)), xOf(data, step + reach));
    root.querySelector(".chart")?.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  function zoom(from, to) {
    const inSteps = view.x === "step";
    if (from !== null && inSteps) [from, to] = [Math.floor(from), Math.ceil(to)];
    if (from !== null && !(to - from > (inSteps ? 1 : 0))) return;
    view.from = from === null ? null : +Math.max(0, from).toPrecision(7);
    view.to = from === null ? null : +to.toPrecision(7);
    writeAddress();
    showState();
    load();
  }

  // Which steps of a source the server is asked for: all, or those of the part that is shown.
  function partOf(s) {
    if (view.from === null) return "";
    if (view.x === "step") return `from=${Math.floor(view.from)}&to=${Math.ceil(view.to)}`;
    const [data, xs] = [whole[s], whole[s] && xsOf(whole[s])];
    if (!xs) return "";
    const inside = data.steps.filter((step, i) => xs[i] !== null && xs[i] >= view.from && xs[i] <= view.to);
    return inside.length ? `from=${inside[0]}&to=${inside[inside.length - 1]}` : "";
  }

  // An open page asks for the steps that it does not have. Of a run that made steps anew it needs all of them again, and
  // so it does after some time, for a screen shows no more than some points.
  async function curvesOf(source, s, part) {
    if (inside) return (whole[s] ??= together(source.runs));
    const old = whole[s];
    const more = part === "" && old && old.complete && old.version && old.last !== null && added[s] < MOST_ADDED;
    const asked = more ? `after=${old.last}` : part;
    const answer = await fetch(source.url + (source.url.includes("?") ? "&" : "?") + asked);
    if (!answer.ok) return null;
    const data = await answer.json();
    if (part !== "") return data;
    if (more && data.version !== old.version) {
      whole[s] = null;
      return curvesOf(source, s, part);
    }
    added[s] = more ? added[s] + data.steps.length : 0;
    whole[s] = more ? withMore(old, data) : data;
    return whole[s];
  }

  // Of the runs of a group: the mean, the lowest and the highest value of those that have a step.
  function together(runs) {
    const rest = { axes: {}, single: true, complete: true, pins: [] };
    if (runs.length === 1) return { ...runs[0], ...rest };
    const steps = [...new Set(runs.flatMap((run) => run.steps))].sort((a, b) => a - b);
    const lines = {};
    for (const name of new Set(runs.flatMap((run) => Object.keys(run.lines)))) {
      const at = new Map(steps.map((step) => [step, []]));
      for (const run of runs) run.lines[name]?.[0].forEach((value, i) => { if (value !== null) at.get(run.steps[i]).push(value); });
      const of = (what) => steps.map((step) => (at.get(step).length ? what(at.get(step)) : null));
      lines[name] = [of((each) => each.reduce((a, b) => a + b) / each.length), of((each) => Math.min(...each)), of((each) => Math.max(...each))];
    }
    return { steps, lines, ...rest };
  }

  function withMore(old, more) {
    const unknown = (count) => new Array(count).fill(null);
    const lines = {};
    for (const name of new Set([...Object.keys(old.lines), ...Object.keys(more.lines)])) {
      const before = old.lines[name] || new Array(old.single ? 1 : 3).fill(unknown(old.steps.length));
      const fresh = more.lines[name] || [unknown(more.steps.length)];
      lines[name] = before.map((line, i) => line.concat(fresh[i] || fresh[0]));
    }
    const axes = {};
    for (const name of Object.keys(more.axes)) axes[name] = (old.axes[name] || unknown(old.steps.length)).concat(more.axes[name]);
    return { ...old, pins: more.pins, steps: old.steps.concat(more.steps), lines, axes, last: more.last ?? old.last };
  }

  async function load() {
    const mine = ++asking;
    const fetched = (part) => Promise.all(sources.map((source, s) => curvesOf(source, s, part(s)))).catch(() => null);
    let answers = view.from === null || whole.every((data) => !data) ? await fetched(() => "") : [];
    if (mine !== asking || !answers) return;
    if (view.from !== null) answers = await fetched(partOf);
    if (mine !== asking || !answers) return;
    held = answers;
    pins = several || !held[0] ? [] : held[0].pins;
    const partial = held.some((data) => data && !data.complete);
    const many = held.some((data) => data && !data.single);
    note.textContent = partial ? "A sample of the steps; the rest is being read."
      : many ? "Bands show the lowest and highest of several steps." : "";
    showState();
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
    const least = view.x === "step" ? 1 : 0;
    const shown = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : (first + last) / 2;
    const reach = (last - first) / 2;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const by = (event.key === "ArrowLeft" ? -1 : 1) * Math.max(least, (last - first) / (event.shiftKey ? 10 : 60));
      const left = u.valToPos(Math.min(last, Math.max(first, shown + by)), "x");
      u.setCursor({ left, top: u.over.clientHeight / 2 });
    } else if (event.key === "+" || event.key === "=") {
      zoom(shown - reach / 2, shown + reach / 2);
    } else if (event.key === "-") {
      zoom(Math.max(0, shown - 2 * reach), shown + 2 * reach);
    } else if (event.key === "0" || event.key === "Escape") {
      zoom(null, null);
    } else if (event.key === "Enter") {
      const links = pick(panel);
      if (links.length === 1) links[0].click(); else links[0]?.focus();
    } else return;
    event.preventDefault();
  }

  const made = (tag, properties) => Object.assign(document.createElement(tag), properties);

  for (const figure of root.querySelectorAll(".chart")) {
    const title = figure.dataset.title;
    const [legend, plot, picked] = ["legend", "plot", "picked"].map((name) => made("div", { className: name }));
    const saved = made("select", { className: "save", title: "Save as a file", ariaLabel: `Save ${title} as a file` });
    saved.append(...["", "svg", "png", "csv"].map((value) => made("option", { value, textContent: value.toUpperCase() || "⤓" })));
    const grow = made("button", { className: "grow", type: "button", title: "Larger or smaller", ariaLabel: `${title}: larger or smaller`, textContent: "⤢" });
    const tools = made("span", { className: "tools" });
    const read = "Arrow keys read values, plus and minus zoom, 0 shows all, Enter opens the rollouts of the step.";
    Object.assign(plot, { tabIndex: 0, role: "img", ariaLabel: `${[title, figure.dataset.unit].filter(Boolean).join(", ")}. ${read}` });
    tools.append(saved, grow);
    figure.querySelector("figcaption").append(tools);
    figure.append(legend, plot, picked);
    const panel = {
      figure, plot, legend, picked, metrics: JSON.parse(figure.dataset.metrics),
      lines: [], values: new Map(), visible: false, stale: true, chart: null,
    };
    panels.push(panel);
    grow.addEventListener("click", () => {
      figure.classList.toggle("is-large");
      draw(panel);
    });
    saved.addEventListener("change", (event) => {
      save(panel, event.target.value);
      event.target.value = "";
    });
    panel.plot.addEventListener("keydown", (event) => keys(panel, event));
    seen.observe(figure);
  }

  // The bar above the curves, the folded topics and the chart of one's choice.
  const tool = (name) => document.getElementById(name);
  const topics = [...root.querySelectorAll(".topic")];
  const own = panels.find((panel) => panel.figure.closest("#own"));

  function showState() {
    tool("x-axis").value = view.x;
    for (const option of tool("x-axis").options) {
      const data = whole.filter(Boolean);
      option.disabled = option.value !== "step" && data.length > 0 && !data.some((one) => one.axes?.[option.value]);
    }
    for (const [box, value, end] of [[tool("zoom-from"), view.from, extent()[0]], [tool("zoom-to"), view.to, extent()[1]]]) {
      if (box !== document.activeElement) box.value = value === null || value === end ? "" : value; // what is being typed stays
    }
    tool("zoom-what").textContent = { step: "from", tokens: "tokens from", time: "seconds from" }[view.x];
    tool("smoothing").value = view.smooth ? "auto" : "none";
    tool("log-scale").checked = view.log;
    const names = new Set(whole.flatMap((data) => (data ? Object.keys(data.lines) : [])));
    if (tool("own-names").childElementCount !== names.size) {
      tool("own-names").replaceChildren(...[...names].map((name) => made("option", { value: name })));
    }
  }

  function filter() {
    const wanted = view.show.toLowerCase().split(/\s+/).filter(Boolean);
    for (const panel of panels) {
      const said = `${panel.figure.dataset.title} ${panel.metrics.map((one) => one[0]).join(" ")}`.toLowerCase();
      panel.figure.hidden = !wanted.every((word) => said.includes(word)) && panel !== own;
    }
    for (const topic of topics) {
      topic.hidden = [...topic.querySelectorAll(".chart")].every((figure) => figure.hidden);
      topic.open = view.open.has(topic.dataset.topic) || (wanted.length > 0 && !topic.hidden);
    }
  }

  function drawOwn() {
    own.metrics = view.own.map((name) => [name, name]);
    document.getElementById("own").hidden = view.own.length === 0;
    own.stale = true;
    if (own.visible && held.some(Boolean)) draw(own);
  }

  readAddress();
  tool("toolbar").hidden = false;
  for (const box of [tool("zoom-from"), tool("zoom-to")]) {
    box.addEventListener("change", () => {
      const [first, last] = extent();
      zoom(number(tool("zoom-from").value) ?? first, number(tool("zoom-to").value) ?? last);
    });
  }
  tool("zoom-all").addEventListener("click", () => zoom(null, null));
  tool("x-axis").addEventListener("change", (event) => {
    view.x = event.target.value;
    zoom(null, null);
  });
  tool("smoothing").addEventListener("change", (event) => {
    view.smooth = event.target.value === "auto";
    writeAddress();
    drawAll();
  });
  tool("log-scale").addEventListener("change", (event) => {
    view.log = event.target.checked;
    writeAddress();
    drawAll();
  });
  tool("every-run").hidden = !sources.some((source) => source.runs?.length > 1);
  tool("every-run").addEventListener("change", (event) => {
    view.each = event.target.checked;
    drawAll();
  });
  tool("metric-filter").value = view.show;
  tool("metric-filter").addEventListener("input", (event) => {
    view.show = event.target.value.trim();
    writeAddress();
    filter();
  });
  tool("own-metrics").value = view.own.join(", ");
  tool("own-metrics").addEventListener("change", (event) => {
    view.own = [...words(event.target.value)];
    writeAddress();
    drawOwn();
  });
  for (const topic of topics) {
    topic.querySelector("summary").addEventListener("click", () => { // before it opens or closes
      if (topic.open) view.open.delete(topic.dataset.topic); else view.open.add(topic.dataset.topic);
      writeAddress();
    });
  }
  tool("open-all").addEventListener("click", () => {
    const close = topics.every((topic) => topic.open);
    view.open = new Set(close ? [] : topics.map((topic) => topic.dataset.topic));
    tool("open-all").textContent = close ? "Open all" : "Close all";
    writeAddress();
    filter();
  });
  filter();
  drawOwn();
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.step");
    if (!button) return;
    event.preventDefault(); // the line of a finding that it stands in stays as it is
    around(parseInt(button.dataset.step, 10));
  });
  document.addEventListener("run-changed", () => { if (view.from === null) load(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let resizing = 0;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(drawAll, 150); });
  load();
})();
