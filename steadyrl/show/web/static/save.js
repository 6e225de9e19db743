// Saves a chart as it is shown: as a picture (SVG or PNG) or as its numbers (CSV).
"use strict";
const saveChart = (() => {
  const WIDTH = 900, HEIGHT = 440, LEFT = 70, TOP = 64, BOTTOM = 48;
  const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  const field = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = /^[=+@\t\r-]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text; // no formula of a spreadsheet
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };

  function csv(lines, axis) {
    const other = axis === "step" ? [] : [axis];
    const rows = [["run", "metric", "step", ...other, "value", "lowest", "highest"]];
    for (const line of lines) {
      line.x.forEach((x, i) => {
        const ends = line.high ? [line.low[i], line.high[i]] : [line.raw[i], line.raw[i]];
        rows.push([line.run, line.metric, line.steps[i], ...(other.length ? [x] : []), line.raw[i], ...ends]);
      });
    }
    return rows.map((row) => row.map(field).join(",")).join("\n") + "\n";
  }

  function ticks(low, high, count) {
    const rough = (high - low) / count;
    const size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * size).find((one) => one >= rough);
    const found = [];
    for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
    return found;
  }

  // What is drawn: the lines within the steps that are shown, on the scales of the chart.
  function svg({ title, unit, lines, scales, log, colours, formats, axis }) {
    const RIGHT = scales.right ? LEFT : 24;
    const [x0, x1] = [scales.x.min, scales.x.max];
    const onY = (value) => (log ? Math.log10(value) : value);
    const px = (x) => +(LEFT + ((x - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT)).toFixed(2);
    const py = (y, { min, max }) => +(HEIGHT - BOTTOM - ((onY(y) - onY(min)) / (onY(max) - onY(min))) * (HEIGHT - TOP - BOTTOM)).toFixed(2);
    const within = (line) => line.x.map((x, i) => i).filter((i) => line.x[i] >= x0 && line.x[i] <= x1);
    const path = (line, values) => within(line).filter((i) => values[i] !== null && (!log || values[i] > 0))
      .map((i) => `${px(line.x[i])},${py(values[i], scales[line.scale])}`).join(" ");
    const text = (x, y, said, more = "") => `<text x="${x}" y="${y}" fill="${colours.ink}" ${more}>${escaped(said)}</text>`;
    const parts = [`<rect width="100%" height="100%" fill="${colours.page}"/>`, text(LEFT, 22, unit ? `${title} (${unit})` : title, 'font-weight="600" font-size="15"')];
    const upright = ({ min, max }) => {
      const all = log ? ticks(Math.log10(min), Math.log10(max), 5).map((tick) => 10 ** tick) : ticks(min, max, 6);
      return all.map((tick) => [py(tick, { min, max }), formats.y(tick, all)]);
    };
    for (const [y, said] of upright(scales.y)) {
      parts.push(`<line x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${y}" y2="${y}" stroke="${colours.grid}"/>`);
      parts.push(text(LEFT - 8, y + 4, said, 'text-anchor="end"'));
    }
    for (const [y, said] of scales.right ? upright(scales.right) : []) parts.push(text(WIDTH - RIGHT + 8, y + 4, said));
    for (const tick of ticks(x0, x1, 8)) parts.push(text(px(tick), HEIGHT - BOTTOM + 18, formats.x(tick), 'text-anchor="middle"'));
    parts.push(text((WIDTH + LEFT - RIGHT) / 2, HEIGHT - 10, axis, 'text-anchor="middle"'));
    for (const line of [...lines].reverse()) {
      const stroke = `fill="none" stroke="${line.colour}"`;
      if (line.low && line.high) {
        const forward = path(line, line.high), back = path(line, line.low).split(" ").reverse().join(" ");
        parts.push(`<polygon points="${forward} ${back}" fill="${line.colour}" fill-opacity="0.16"/>`);
      } else if (line.low) parts.push(`<polyline points="${path(line, line.low)}" ${stroke} stroke-opacity="0.35"/>`);
      parts.push(`<polyline points="${path(line, line.strong)}" ${stroke} stroke-width="2" stroke-dasharray="${line.dash.join(" ")}"/>`);
    }
    let left = LEFT;
    for (const line of lines) {
      const said = (line.label || line.metric) + (line.scale === "right" ? " (right axis)" : "");
      parts.push(`<line x1="${left}" x2="${left + 18}" y1="42" y2="42" stroke="${line.colour}" stroke-width="3" stroke-dasharray="${line.dash.join(" ")}"/>`, text(left + 24, 46, said));
      left += 44 + 7 * said.length;
    }
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${HEIGHT}" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="system-ui, sans-serif" font-size="12">${parts.join("")}</svg>`;
  }

  function offer(content, type, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  function png(source, name) {
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [2 * WIDTH, 2 * HEIGHT];
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => offer(blob, "image/png", name), "image/png");
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`;
  }

  return (format, chart) => {
    const name = `${chart.run} ${chart.title}`.replace(/[^A-Za-z0-9._-]+/g, "-").slice(0, 100);
    if (format === "csv") offer(csv(chart.lines, chart.axisName), "text/csv", `${name}.csv`);
    else if (format === "svg") offer(svg(chart), "image/svg+xml", `${name}.svg`);
    else png(svg(chart), `${name}.png`);
  };
})();
