"""The first part of the report's script: its data, SVG helpers, curves and bars.

The JavaScript is text in a Python module, so that it is packaged wherever the library is.
`graph_script` is the second part; the page joins them into one script.
"""

CHART_SCRIPT = r"""
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const frames = data.frames, evaluations = data.evaluations, last = frames.slot.length - 1;
const byId = (id) => document.getElementById(id);
// What is shown: a frame of the graph, the timer while it plays, the x axis of the curves.
const state = { frame: last, timer: 0, axis: "slot" };
// What is drawn again when the width of the page changes.
const redraws = [];

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
  if (size >= 1e15) return value.toExponential(3);
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

const AXES = { slot: "slot", round: "round", bytes: "bytes sent", seconds: "seconds" };

// Curves over a common x axis. The legend shows the values at the point that pointer or arrow
// keys have selected; without a selection, those at the frame of the graph.
function curves(id, columns, series, fromZero) {
  const box = byId(id), legend = byId(id + "-legend");
  if (!columns.slot.length) {
    html("li", "No evaluation was recorded.", legend);
    return { draw() {}, updateLegend() {} };
  }
  let selected = -1, plot, line;
  const nearest = (value) => {
    const xs = columns[state.axis];
    let best = 0;
    xs.forEach((x, i) => { if (Math.abs(x - value) < Math.abs(xs[best] - value)) best = i; });
    return best;
  };
  const shownPoint = () => selected >= 0 ? selected : nearest(frames[state.axis][state.frame]);
  function updateLegend() {
    const xs = columns[state.axis], i = shownPoint();
    legend.textContent = "";
    html("li", `${AXES[state.axis]} ${format(xs[i])}`, legend);
    let shown = series;
    if (series.length > 24)
      shown = [...series].sort((a, b) => (b.y[i] ?? Infinity) - (a.y[i] ?? Infinity)).slice(0, 8);
    for (const s of shown) {
      const item = html("li", undefined, legend);
      html("i", "", item).style.background = s.colour;
      html("span", `${s.name} ${format(s.y[i])}`, item);
    }
    if (shown !== series) html("li", "(the eight largest)", legend);
    line.setAttribute("x1", plot.px(xs[i])); line.setAttribute("x2", plot.px(xs[i]));
    line.setAttribute("class", selected >= 0 ? "cursor" : "frame");
  }
  function draw() {
    const xs = columns[state.axis];
    const x = [Math.min(...xs), Math.max(...xs)];
    plot = panel(box, x, extent(series.flatMap((s) => s.y), fromZero), AXES[state.axis]);
    for (const s of series) {
      // A line through the finite values; it breaks where a value is not finite.
      let path = "", pen = "M", isolated = true;
      s.y.forEach((v, i) => {
        if (v === null) { pen = "M"; return; }
        isolated = isolated && pen === "M";
        path += `${pen}${plot.px(xs[i]).toFixed(1)} ${plot.py(v).toFixed(1)}`;
        pen = "L";
      });
      const style = { class: "curve", stroke: s.colour, "stroke-dasharray": s.dash || "none" };
      svg("path", { ...style, d: path }, plot.root);
      s.y.forEach((v, i) => {
        if (v === null)
          cross(plot.root, plot.px(xs[i]), plot.bottom);
        else if (isolated || s.y.length < 40)
          svg("circle", { cx: plot.px(xs[i]), cy: plot.py(v), r: 2.5, fill: s.colour }, plot.root);
      });
    }
    line = svg("line", { y1: plot.top, y2: plot.bottom }, plot.root);
    updateLegend();
  }
  box.addEventListener("pointermove", (event) => {
    const share = (pointerX(event, plot) - plot.left) / (plot.right - plot.left);
    const xs = columns[state.axis];
    selected = nearest(xs[0] + share * (xs[xs.length - 1] - xs[0]));
    updateLegend();
  });
  const deselect = () => { selected = -1; updateLegend(); };
  box.addEventListener("pointerleave", deselect);
  box.addEventListener("blur", deselect);
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!move) return;
    event.preventDefault();
    selected = Math.min(Math.max(shownPoint() + move, 0), columns[state.axis].length - 1);
    updateLegend();
  });
  redraws.push(draw);
  return { draw, updateLegend };
}

// One bar per worker: the steps that it took, a line at the steps that were expected.
function bars(id) {
  const box = byId(id), legend = byId(id + "-legend"), workers = data.workers;
  const describe = (w) => { legend.firstChild.textContent = w
    ? `worker ${w.worker} of hub ${w.hub}: rate ${format(w.rate)}, ` +
      `${w.steps ?? "unknown"} steps, ${format(w.expected)} expected` +
      (w.absent ? `, absent ${w.absent} times` : "")
    : "Bars: steps taken, coloured by hub. Lines: steps expected. Crosses: absences."; };
  let selected = -1, barWidth = 1, plot;
  function draw() {
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
    describe();
  }
  html("li", "", legend);
  box.addEventListener("pointermove", (event) => {
    describe(workers[Math.floor((pointerX(event, plot) - plot.left) / barWidth)]);
  });
  box.addEventListener("pointerleave", () => describe());
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    selected = Math.min(Math.max(selected + move, 0), workers.length - 1);
    describe(workers[selected]);
  });
  redraws.push(draw);
  draw();
}
"""
