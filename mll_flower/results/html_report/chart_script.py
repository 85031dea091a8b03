"""The first part of the script of the report and of the live page: SVG helpers, curves and bars.

The JavaScript is text in a Python module, so that it is packaged wherever the library is.
`labels_script` and `graph_script` are the other parts; a page joins them into one script, and
calls ``show`` with its data: the report once, the live page whenever it has news.
"""

CHART_SCRIPT = r"""
"use strict";
// What is shown: see `payload` in Python for its keys.
let data = null;
const byId = (id) => document.getElementById(id);
// A frame of the graph, the timer while it plays, the x axis of the curves.
const state = { frame: 0, timer: 0, axis: "slot" };
const lastFrame = () => (data.frames ? data.frames.round.length - 1 : 0);

function svg(tag, attributes, parent, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}
function html(tag, text, parent) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}
function format(value) {
  if (value === null || value === undefined) return "not finite";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e5) return String(value);
  if (size >= 1e15) return (+value.toPrecision(4)).toExponential();
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= unit) return String(+(value / (name === "k" ? 1e3 : unit)).toPrecision(4)) + name;
  return size && size < 1e-4 ? value.toExponential(2) : String(+value.toPrecision(4));
}
// About `count` round numbers from low to high.
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1) || 1;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((m) => unit * m >= raw * 0.8);
  const all = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++)
    all.push(+(i * step).toPrecision(12));
  return all;
}
// The range of an axis that holds all values, with some room; from zero if asked for.
function extent(values, fromZero) {
  let low = fromZero ? 0 : Infinity, high = fromZero ? 0 : -Infinity;
  for (const v of values) if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); }
  if (low > high) return [0, 1];
  if (low === high) return fromZero ? [0, high || 1] : [low - 0.5, high + 0.5];
  const room = (high - low) * 0.06;
  return [fromZero ? 0 : low - room, high + room];
}
function cross(root, x, y) {
  svg("path", { class: "cross", d: `M${x - 3} ${y - 3}l6 6m0 -6l-6 6` }, root);
}

// Draws a panel with axes; returns the functions px and py from values to pixels.
function panel(box, x, y, label) {
  const width = Math.max(box.clientWidth, 240), height = width < 500 ? 220 : 260;
  const left = 52, right = 20, top = 10, bottom = 38;
  box.textContent = "";
  const view = { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" };
  const root = svg("svg", view, box);
  const px = (v) => left + ((v - x[0]) / (x[1] - x[0] || 1)) * (width - left - right);
  const py = (v) => height - bottom - ((v - y[0]) / (y[1] - y[0])) * (height - top - bottom);
  for (const t of ticks(y[0], y[1], 5)) {
    svg("line", { class: "grid", x1: left, x2: width - right, y1: py(t), y2: py(t) }, root);
    svg("text", { x: left - 8, y: py(t) + 4, "text-anchor": "end" }, root, format(t));
  }
  if (label) {
    for (const t of ticks(x[0], x[1], width < 500 ? 4 : 7))
      svg("text", { x: px(t), y: height - bottom + 18, "text-anchor": "middle" }, root, format(t));
    const middle = (left + width - right) / 2;
    svg("text", { x: middle, y: height - 3, "text-anchor": "middle" }, root, label);
  }
  return { root, px, py, top, bottom: height - bottom, left, right: width - right };
}
// The x of a pointer event, in the units of a panel.
function pointerX(event, plot) {
  const scale = plot.root.viewBox.baseVal.width / plot.root.clientWidth;
  return (event.clientX - plot.root.getBoundingClientRect().left) * scale;
}

const AXES = { slot: "slot", round: "round", steps: "gradient steps", bytes: "bytes sent",
  seconds: "seconds" };

// The series of a chart, each with its x and y. A chart per hub takes them from a table with a
// row per point and a column per hub; any other chart names the columns, and a series may have
// columns of its own.
function seriesOf(chart) {
  const columns = data[chart.columns];
  if (chart.perHub)
    return data.names.map((name, d) => ({ name, colour: data.colours.hubs[d],
      x: columns[state.axis], y: columns[chart.perHub].map((row) => row[d]) }));
  return chart.series.map((s) => {
    const own = s.columns ? data[s.columns] : columns;
    return { ...s, x: own[state.axis], y: own[s.key] };
  });
}
// The index of the number in a sorted array that is closest to a value.
function nearest(xs, value) {
  let low = 0, high = xs.length - 1;
  if (value >= xs[high]) return high;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < value) low = middle; else high = middle;
  }
  return Math.abs(xs[high] - value) < Math.abs(xs[low] - value) ? high : low;
}

// Curves over a common x axis. The legend shows the values at the point that pointer or arrow
// keys have selected; without a selection, those at the frame of the graph.
function curves(id) {
  const box = byId(id), legend = byId(id + "-legend");
  let selected = null, plot, line, series = [], longest, range, gaps = false;
  const shownValue = () => selected ??
    (data.frames?.[state.axis] ? data.frames[state.axis][state.frame] : Infinity);
  function updateLegend() {
    if (!series.length) return;
    const value = shownValue(), own = longest.x[nearest(longest.x, value)];
    // A value that is missing is the last one that is known; that of a run that diverges is not.
    const valueOf = (s) => {
      let i = nearest(s.x, value);
      while (gaps && i > 0 && s.y[i] === null) i--;
      return s.y[i];
    };
    const textOf = (s) => (gaps && valueOf(s) === null ? "unknown" : format(valueOf(s)));
    legend.textContent = "";
    html("li", `${AXES[state.axis]} ${format(own)}`, legend);
    let shown = series;
    if (series.length > 24)
      shown = [...series].sort((a, b) => (valueOf(b) ?? Infinity) - (valueOf(a) ?? Infinity))
        .slice(0, 8);
    for (const s of shown) {
      const item = html("li", undefined, legend);
      html("i", "", item).style.background = s.colour;
      html("span", `${s.name} ${textOf(s)}`, item);
    }
    if (shown !== series) html("li", "(the eight largest)", legend);
    line.setAttribute("x1", plot.px(own)); line.setAttribute("x2", plot.px(own));
    line.setAttribute("class", selected !== null ? "cursor" : "frame");
  }
  function draw() {
    const chart = data.charts.find((c) => c.id === id);
    series = chart ? seriesOf(chart).filter((s) => s.x.length) : [];
    const section = box.closest("section");
    section.hidden = !chart;
    if (!chart) return;
    gaps = Boolean(chart.gaps);
    section.querySelector("h2").textContent = chart.title;
    if (!series.length) {
      legend.textContent = box.textContent = "";
      html("li", chart.empty, legend);
      return;
    }
    longest = series.reduce((a, b) => (b.x.length > a.x.length ? b : a));
    range = [Infinity, -Infinity];
    for (const s of series)
      range = [Math.min(range[0], s.x[0]), Math.max(range[1], s.x[s.x.length - 1])];
    plot = panel(box, range, extent(series.flatMap((s) => s.y), chart.fromZero), AXES[state.axis]);
    for (const s of series) {
      // A line through the finite values; it breaks where a value is not finite.
      let path = "", pen = "M", isolated = true;
      s.y.forEach((v, i) => {
        if (v === null) { if (!chart.gaps) pen = "M"; return; }
        isolated = isolated && pen === "M";
        path += `${pen}${plot.px(s.x[i]).toFixed(1)} ${plot.py(v).toFixed(1)}`;
        pen = "L";
      });
      const style = { class: "curve", stroke: s.colour, "stroke-dasharray": s.dash || "none" };
      svg("path", { ...style, d: path }, plot.root);
      s.y.forEach((v, i) => {
        if (v === null) {
          // Where a value may be missing, that is no sign of a run that diverges.
          if (!chart.gaps) cross(plot.root, plot.px(s.x[i]), plot.bottom);
        } else if (isolated || (s.y.length < 40 && series.length < 9))
          svg("circle", { cx: plot.px(s.x[i]), cy: plot.py(v), r: 2.5, fill: s.colour }, plot.root);
      });
    }
    line = svg("line", { y1: plot.top, y2: plot.bottom }, plot.root);
    updateLegend();
  }
  const select = (value) => { selected = value; updateLegend(); };
  box.addEventListener("pointermove", (event) => {
    if (!series.length) return;
    const share = (pointerX(event, plot) - plot.left) / (plot.right - plot.left);
    const value = range[0] + share * (range[1] - range[0]);
    select(longest.x[nearest(longest.x, value)]);
  });
  box.addEventListener("pointerleave", () => select(null));
  box.addEventListener("blur", () => select(null));
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!move || !series.length) return;
    event.preventDefault();
    const xs = longest.x, at = nearest(xs, shownValue()) + move;
    select(xs[Math.min(Math.max(at, 0), xs.length - 1)]);
  });
  return { draw, updateLegend };
}

// One bar per worker: the steps that it took, a line at the steps that were expected.
function bars(id) {
  const box = byId(id), legend = byId(id + "-legend");
  let workers = [];
  const describe = (w) => { legend.firstChild.textContent = w
    ? `worker ${w.worker} of hub ${w.hub}: rate ${format(w.rate)}, ` +
      `${w.steps ?? "unknown"} steps, ${format(w.expected)} expected` +
      (w.absent ? `, absent ${w.absent} times` : "")
    : "Bars: steps taken, coloured by hub. Lines: steps expected. Crosses: absences."; };
  let selected = -1, barWidth = 1, plot;
  function draw() {
    workers = data.workers;
    // While a run goes on, only its hubs' steps are known.
    const hidden = Boolean(data.live) && !workers.some((w) => w.steps !== null);
    box.closest("section").hidden = hidden;
    if (hidden) return;
    const most = Math.max(1, ...workers.map((w) => Math.max(w.steps, w.expected)));
    plot = panel(box, [0, workers.length], [0, most * 1.1], "");
    barWidth = plot.px(1) - plot.px(0);
    workers.forEach((w, i) => {
      const x = plot.px(i) + barWidth * 0.1, width = barWidth * 0.8, y = plot.py(w.steps);
      svg("rect", { x, y, width, height: plot.bottom - y, fill: data.colours.hubs[w.hub] },
        plot.root);
      svg("line", { class: "expected", x1: x, x2: x + width, y1: plot.py(w.expected),
        y2: plot.py(w.expected) }, plot.root);
      if (w.absent)
        cross(plot.root, x + width / 2, y - 8);
    });
    // Names of the hubs, as far as there is room for them.
    let start = 0, lastName = -1e9;
    workers.forEach((w, i) => {
      if (i + 1 < workers.length && workers[i + 1].hub === w.hub) return;
      const middle = plot.px((start + i + 1) / 2);
      start = i + 1;
      if (middle - lastName < 44) return;
      lastName = middle;
      const at = { x: middle, y: plot.bottom + 18, "text-anchor": "middle" };
      svg("text", at, plot.root, `hub ${w.hub}`);
    });
    describe(workers[selected]);
  }
  html("li", "", legend);
  const select = (worker) => { selected = worker; describe(workers[worker]); };
  box.addEventListener("pointermove", (event) => {
    select(Math.floor((pointerX(event, plot) - plot.left) / barWidth));
  });
  box.addEventListener("pointerleave", () => select(-1));
  box.addEventListener("blur", () => select(-1));
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    select(Math.min(Math.max(selected + move, 0), workers.length - 1));
  });
  return { draw, updateLegend() {} };
}
"""
