// Draws the curves of the page's data with uPlot: a line per group of runs (or per run), and the range over its seeds.
(function () {
  const data = JSON.parse(document.getElementById("curves-data").textContent);
  const root = document.getElementById("curves");
  const colour = Object.fromEntries(data.groups.map((g, i) => [g, data.colours[i]]));
  const shown = new Set(data.shown);
  let plot = null;

  function element(tag, attributes, text) {
    const made = Object.assign(document.createElement(tag), attributes);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  const bar = element("div", { className: "controls" });
  const metric = element("select", { ariaLabel: "metric" });
  data.metrics.forEach(m => metric.append(element("option", { value: m.name }, m.unit ? m.name + " (" + m.unit + ")" : m.name)));
  const each = element("input", { type: "checkbox", id: "curves-each" });
  const smooth = element("input", { type: "checkbox", id: "curves-smooth", checked: true });
  const log = element("input", { type: "checkbox", id: "curves-log" });
  function labelled(box, text) { const l = element("label", {}); l.append(box, " " + text); return l; }
  bar.append(metric, labelled(smooth, "smoothed"), labelled(each, "every seed"), labelled(log, "log scale"));
  const groups = element("div", { className: "controls" });
  data.groups.forEach(g => {
    const box = element("input", { type: "checkbox", checked: shown.has(g) });
    box.addEventListener("change", () => { box.checked ? shown.add(g) : shown.delete(g); draw(); });
    const l = labelled(box, g);
    l.style.borderBottom = "3px solid " + colour[g];
    groups.append(l);
  });
  const area = element("div", {});
  const meaning = element("p", { className: "soft" });
  root.append(bar, groups, area, meaning);
  [metric, each, smooth, log].forEach(c => c.addEventListener("change", draw));

  function median(values) {
    const sorted = values.slice().sort((a, b) => a - b), h = sorted.length >> 1;
    return sorted.length % 2 ? sorted[h] : (sorted[h - 1] + sorted[h]) / 2;
  }
  function smoothed(values) {
    if (!smooth.checked || values.length < 10) return values;
    const reach = Math.max(2, Math.floor(values.length / 30));
    return values.map((v, i) => {
      if (v === null) return null;
      // At the start as many values after it as before it: the first steps are where a collapse shows.
      return median(values.slice(Math.max(0, i - reach), i + Math.min(i, reach) + 1).filter(x => x !== null));
    });
  }
  function draw() {
    const name = metric.value;
    const lines = [];
    data.groups.filter(g => shown.has(g)).forEach(g => {
      const runs = data.runs.filter(r => r.group === g && r.values[name]);
      const curves = runs.map(r => ({ steps: r.steps, y: smoothed(r.values[name]) }));
      if (!curves.length) return;
      if (each.checked || curves.length === 1) {
        curves.forEach((c, i) => lines.push({ label: curves.length > 1 ? g + " #" + (i + 1) : g, group: g, ...c }));
        return;
      }
      const at = new Map();
      curves.forEach(c => c.steps.forEach((s, i) => { if (c.y[i] !== null) at.set(s, [...(at.get(s) || []), c.y[i]]); }));
      const steps = [...at.keys()].sort((a, b) => a - b);
      lines.push({ label: g, group: g, steps, y: steps.map(s => at.get(s).reduce((a, b) => a + b) / at.get(s).length),
                   low: steps.map(s => Math.min(...at.get(s))), high: steps.map(s => Math.max(...at.get(s))) });
    });
    const x = [...new Set(lines.flatMap(l => l.steps))].sort((a, b) => a - b);
    const place = new Map(x.map((s, i) => [s, i]));
    const spread = (steps, values) => {
      const full = new Array(x.length).fill(null);
      steps.forEach((s, i) => { const v = values[i]; full[place.get(s)] = log.checked && !(v > 0) ? null : v; });
      return full;
    };
    const series = [{ label: "step" }], columns = [x], bands = [];
    const digits = (u, v) => v === null || v === undefined ? "-" : Number(v.toPrecision(4)).toString();
    lines.forEach(l => {
      if (l.low) {
        const base = series.length;
        series.push({ label: "highest", class: "band", stroke: "transparent", points: { show: false }, value: digits, spanGaps: true });
        series.push({ label: "lowest", class: "band", stroke: "transparent", points: { show: false }, value: digits, spanGaps: true });
        columns.push(spread(l.steps, l.high), spread(l.steps, l.low));
        bands.push({ series: [base, base + 1], fill: colour[l.group] + "2e" });
      }
      series.push({ label: l.label, stroke: colour[l.group], width: 2, value: digits, spanGaps: true,
                    points: { show: x.length < 20 } });
      columns.push(spread(l.steps, l.y));
    });
    if (plot) plot.destroy();
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim() || "#222", line = style.getPropertyValue("--line").trim() || "#ddd";
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    plot = new uPlot({
      width: area.clientWidth || 880, height: 380, series, bands,
      scales: { x: { time: false }, y: log.checked ? { distr: 3 } : {} },
      axes: [{ ...axis, label: "step", labelSize: 22 }, { ...axis, size: 64 }],
      cursor: { drag: { x: true, y: true, uni: 20 } },
    }, columns, area);
    const about = data.metrics.find(m => m.name === name);
    meaning.textContent = (about ? about.meaning + " " : "") + "A band is the range over seeds. Drag to zoom, double-click to see everything again, click a name in the legend to hide it.";
  }
  window.addEventListener("resize", () => plot && plot.setSize({ width: area.clientWidth, height: 380 }));
  draw();
})();
