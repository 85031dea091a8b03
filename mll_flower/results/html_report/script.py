"""The report's script: draws the curves and moves the hub graph through time."""

SCRIPT = r"""
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const frames = data.frames, evaluations = data.evaluations, last = frames.slot.length - 1;
const byId = (id) => document.getElementById(id);
const state = { frame: last, timer: 0, axis: "slot" };
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
function show(value) {
  if (value === null || value === undefined) return "not finite";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e5) return String(value);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= unit) return String(+(value / (name === "k" ? 1e3 : unit)).toPrecision(4)) + name;
  return size && size < 1e-4 ? value.toExponential(2) : String(+value.toPrecision(4));
}
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1) || 1;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((m) => unit * m >= raw * 0.8);
  const all = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++)
    all.push(+(i * step).toPrecision(12));
  return all;
}
function extent(values, zero) {
  let low = zero ? 0 : Infinity, high = zero ? 0 : -Infinity;
  for (const v of values) if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); }
  if (low > high) return [0, 1];
  if (low === high) return zero ? [0, high || 1] : [low - 0.5, high + 0.5];
  const room = (high - low) * 0.06;
  return [zero ? 0 : low - room, high + room];
}

function cross(root, x, y) {
  svg("path", { class: "bad", d: `M${x - 3} ${y - 3}l6 6m0 -6l-6 6` }, root);
}

// A panel with axes; returns where values lie in it.
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
    svg("text", { x: left - 8, y: py(t) + 4, "text-anchor": "end" }, root, show(t));
  }
  if (label) {
    for (const t of ticks(x[0], x[1], width < 500 ? 4 : 7))
      svg("text", { x: px(t), y: height - bottom + 18, "text-anchor": "middle" }, root, show(t));
    const middle = (left + width - right) / 2;
    svg("text", { x: middle, y: height - 3, "text-anchor": "middle" }, root, label);
  }
  return { root, px, py, top, bottom: height - bottom, left, right: width - right };
}

const AXES = { slot: "slot", round: "round", bytes: "bytes sent", seconds: "seconds" };

// Curves over a common x; the legend tells the values at the pointer or at the frame shown.
function curves(id, table, series, zero) {
  const box = byId(id), legend = byId(id + "-legend");
  if (!table.slot.length) {
    html("li", "No evaluation was recorded.", legend);
    return { draw() {}, tell() {} };
  }
  let at = -1, plot, line;
  const nearest = (value) => {
    const xs = table[state.axis];
    let best = 0;
    xs.forEach((x, i) => { if (Math.abs(x - value) < Math.abs(xs[best] - value)) best = i; });
    return best;
  };
  function tell() {
    const xs = table[state.axis], i = at >= 0 ? at : nearest(frames[state.axis][state.frame]);
    legend.textContent = "";
    html("li", `${AXES[state.axis]} ${show(xs[i])}`, legend);
    let shown = series;
    if (series.length > 24)
      shown = [...series].sort((a, b) => (b.y[i] ?? Infinity) - (a.y[i] ?? Infinity)).slice(0, 8);
    for (const s of shown) {
      const item = html("li", undefined, legend);
      html("i", "", item).style.background = s.colour;
      html("span", `${s.name} ${show(s.y[i])}`, item);
    }
    if (shown !== series) html("li", "the eight furthest", legend);
    line.setAttribute("x1", plot.px(xs[i])); line.setAttribute("x2", plot.px(xs[i]));
    line.setAttribute("class", at >= 0 ? "cursor" : "now");
  }
  function draw() {
    const xs = table[state.axis];
    const x = [Math.min(...xs), Math.max(...xs)];
    plot = panel(box, x, extent(series.flatMap((s) => s.y), zero), AXES[state.axis]);
    for (const s of series) {
      let path = "", pen = "M", alone = true;
      s.y.forEach((v, i) => {
        if (v === null) { pen = "M"; return; }
        alone = alone && pen === "M";
        path += `${pen}${plot.px(xs[i]).toFixed(1)} ${plot.py(v).toFixed(1)}`;
        pen = "L";
      });
      const look = { class: "curve", stroke: s.colour, "stroke-dasharray": s.dash || "none" };
      svg("path", { ...look, d: path }, plot.root);
      s.y.forEach((v, i) => {
        if (v === null)
          cross(plot.root, plot.px(xs[i]), plot.bottom);
        else if (v !== null && (alone || s.y.length < 40))
          svg("circle", { cx: plot.px(xs[i]), cy: plot.py(v), r: 2.5, fill: s.colour }, plot.root);
      });
    }
    line = svg("line", { y1: plot.top, y2: plot.bottom }, plot.root);
    tell();
  }
  box.addEventListener("pointermove", (event) => {
    const scale = plot.root.viewBox.baseVal.width / plot.root.clientWidth;
    const place = (event.clientX - plot.root.getBoundingClientRect().left) * scale;
    const xs = table[state.axis], share = (place - plot.left) / (plot.right - plot.left);
    at = nearest(xs[0] + share * (xs[xs.length - 1] - xs[0]));
    tell();
  });
  const leave = () => { at = -1; tell(); };
  box.addEventListener("pointerleave", leave);
  box.addEventListener("blur", leave);
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!move) return;
    event.preventDefault();
    const now = at >= 0 ? at : nearest(frames[state.axis][state.frame]);
    at = Math.min(Math.max(now + move, 0), table[state.axis].length - 1);
    tell();
  });
  redraws.push(draw);
  return { draw, tell };
}

function bars(id) {
  const box = byId(id), legend = byId(id + "-legend"), workers = data.workers;
  const tell = (w) => { legend.firstChild.textContent = w
    ? `worker ${w.worker} of hub ${w.hub}: rate ${show(w.rate)}, ${w.steps} steps, ` +
      `${show(w.expected)} expected` + (w.absent ? `, absent ${w.absent} times` : "")
    : "Bars: steps taken, coloured by hub. Lines: steps expected. Crosses: absences."; };
  let at = -1, widthOne = 1, plot;
  function draw() {
    const most = Math.max(1, ...workers.map((w) => Math.max(w.steps, w.expected)));
    plot = panel(box, [0, workers.length], [0, most * 1.1], "");
    widthOne = plot.px(1) - plot.px(0);
    workers.forEach((w, i) => {
      const x = plot.px(i) + widthOne * 0.1, wide = widthOne * 0.8, y = plot.py(w.steps);
      svg("rect", { x, y, width: wide, height: plot.bottom - y, fill: data.colours[w.hub] },
        plot.root);
      svg("line", { class: "expected", x1: x, x2: x + wide, y1: plot.py(w.expected),
        y2: plot.py(w.expected) }, plot.root);
      if (w.absent)
        cross(plot.root, x + wide / 2, y - 8);
    });
    let start = 0, free = -1e9;
    workers.forEach((w, i) => {
      if (i + 1 < workers.length && workers[i + 1].hub === w.hub) return;
      const middle = plot.px((start + i + 1) / 2);
      start = i + 1;
      if (middle - free < 44) return;
      free = middle;
      const place = { x: middle, y: plot.bottom + 18, "text-anchor": "middle" };
      svg("text", place, plot.root, `hub ${w.hub}`);
    });
    tell();
  }
  html("li", "", legend);
  box.addEventListener("pointermove", (event) => {
    const scale = plot.root.viewBox.baseVal.width / plot.root.clientWidth;
    const place = (event.clientX - plot.root.getBoundingClientRect().left) * scale;
    tell(workers[Math.floor((place - plot.left) / widthOne)]);
  });
  box.addEventListener("pointerleave", () => tell());
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    at = Math.min(Math.max(at + move, 0), workers.length - 1);
    tell(workers[at]);
  });
  redraws.push(draw);
  draw();
}

const finite = frames.distance.flat().filter((v) => v !== null);
const furthest = Math.max(...finite, 0) || 1;
const RAMP = [[42, 157, 143], [233, 196, 106], [231, 111, 81]];
function heat(value) {
  if (value === null) return "#9aa5b1";
  const t = Math.min(value / furthest, 1) * 2, i = Math.min(Math.floor(t), 1);
  return `rgb(${RAMP[i].map((c, k) => Math.round(c + (RAMP[i + 1][k] - c) * (t - i)))})`;
}

let hubs = [], links = [], dots = [];
function drawGraph() {
  const box = byId("graph"), width = Math.max(box.clientWidth, 240), number = data.places.length;
  const height = Math.round(Math.min(Math.max(width * 0.85, 280), 460));
  const pad = number > 20 ? 20 : 46, below = number > 20 ? 24 : 64;
  const side = Math.min(width - 2 * pad, height - pad - below);
  const stretch = Math.min((width - 2 * pad) / side, 1.6) * side;
  const at = data.places.map(([x, y]) =>
    [width / 2 + (x - 0.5) * stretch, pad + (height - pad - below - side) / 2 + y * side]);
  let gap = side;
  at.forEach((a, i) => at.forEach((b, j) => {
    if (i < j) gap = Math.min(gap, Math.hypot(a[0] - b[0], a[1] - b[1])); }));
  const radius = Math.max(6, Math.min(26, gap * 0.26)), thin = Math.min(1, radius / 14);
  const share = Math.max(...data.shares);
  box.textContent = "";
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-labelledby": "moment" }, box);
  const weight = Math.max(...data.edges.map((e) => Math.max(e[2], e[3])), 1e-12);
  links = data.edges.map(([i, j, a, b]) => {
    const line = svg("line", { class: "edge", x1: at[i][0], y1: at[i][1], x2: at[j][0],
      y2: at[j][1], "stroke-width": thin * (1 + (3.5 * Math.max(a, b)) / weight) }, root);
    svg("title", {}, line, `H[${i}, ${j}] = ${show(a)}, H[${j}, ${i}] = ${show(b)}`);
    return line;
  });
  const members = data.places.map(() => []);
  data.workers.forEach((w) => members[w.hub].push(w));
  dots = [];
  hubs = at.map(([x, y], d) => {
    const size = radius * (0.75 + 0.25 * Math.sqrt(data.shares[d] / share));
    const ring = radius * 1.55, few = members[d].length * 7 < 2 * Math.PI * ring;
    members[d].forEach((w, k) => {
      const turn = (2 * Math.PI * (k + 0.5)) / members[d].length - Math.PI / 2;
      if (!few || radius < 9) return;
      const dot = svg("circle", { class: "worker", cx: x + ring * Math.cos(turn),
        cy: y + ring * Math.sin(turn), r: 2.6, opacity: 0.3 + 0.7 * w.rate }, root);
      svg("title", {}, dot, `worker ${w.worker}, rate ${show(w.rate)}`);
      dots[w.worker] = dot;
    });
    const circle = svg("circle", { class: "hub", id: `hub-${d}`, cx: x, cy: y, r: size }, root);
    const title = svg("title", {}, circle);
    if (radius >= 9) svg("text", { class: "name", x, y }, root, d).style.pointerEvents = "none";
    const value = number <= 30 && radius >= 11
      ? svg("text", { class: "value", x, y: y + ring + 15 }, root) : null;
    return { circle, title, value };
  });
  paint();
}

function paint() {
  const f = state.frame, distance = frames.distance[f], gone = new Set(frames.absent[f]);
  hubs.forEach(({ circle, title, value }, d) => {
    circle.setAttribute("fill", heat(distance[d]));
    const loss = frames.loss[f][d];
    title.textContent = `hub ${d}: distance ${show(distance[d])}` +
      (loss === null ? "" : `, training loss ${show(loss)}`);
    if (value) value.textContent = show(distance[d] && +distance[d].toPrecision(3));
  });
  links.forEach((line) => line.classList.toggle("mixed", frames.mixed[f]));
  dots.forEach((dot, w) => dot.classList.toggle("gone", gone.has(w)));
  const known = distance.filter((v) => v !== null), top = Math.max(...known);
  const words = [`slot ${show(frames.slot[f])}`, `round ${show(frames.round[f])}`];
  if (f === 0) words.push("all hubs start from one model");
  else if (!known.length) words.push("no finite distance");
  else if (hubs.length > 1)
    words.push(`furthest is hub ${distance.indexOf(top)}, at ${show(top)}`);
  if (frames.mixed[f]) words.push("hubs mix");
  if (gone.size) words.push(`${gone.size} absent: worker ${[...gone].slice(0, 8).join(", ")}` +
    (gone.size > 8 ? ", ..." : ""));
  byId("moment").textContent = words.join(" · ");
  const slider = byId("time");
  slider.value = f;
  slider.setAttribute("aria-valuetext", words.join(", "));
}

const hubSeries = data.places.map((_, d) => ({ name: `hub ${d}`, colour: data.colours[d],
  y: frames.distance.map((row) => row[d]) }));
const charts = [
  curves("loss", evaluations, [
    { name: "training loss", colour: "#2f6fb5", y: evaluations.loss },
    { name: "test loss", colour: "#d9822b", y: evaluations.test_loss, dash: "5 3" }]),
  curves("accuracy", evaluations, [
    { name: "accuracy", colour: "#2a9d8f", y: evaluations.accuracy }]),
  curves("disagreement", frames, hubSeries, true),
];
function go(frame) {
  state.frame = Math.min(Math.max(frame, 0), last);
  paint();
  charts.forEach((chart) => chart.tell());
}
function play(on) {
  clearInterval(state.timer);
  state.timer = 0;
  const button = byId("play");
  button.textContent = on ? "Pause" : "Play";
  if (!on) return;
  if (state.frame === last) go(0);
  // About ten seconds for the whole run, but each frame long enough to be seen.
  state.timer = setInterval(() => {
    if (state.frame >= last) play(false);
    else go(state.frame + 1);
  }, Math.min(Math.max(10000 / (last || 1), 40), 600));
}
byId("scale-top").textContent = show(+furthest.toPrecision(3));
byId("time").max = last;
byId("time").addEventListener("input", (event) => { play(false); go(+event.target.value); });
byId("play").addEventListener("click", () => play(!state.timer));
byId("axis").addEventListener("change", (event) => {
  state.axis = event.target.value;
  charts.forEach((chart) => chart.draw());
});
drawGraph();
bars("workers");
charts.forEach((chart) => chart.draw());
redraws.push(drawGraph);
let drawn = document.documentElement.clientWidth;
window.addEventListener("resize", () => {
  if (drawn === document.documentElement.clientWidth) return;
  drawn = document.documentElement.clientWidth;
  redraws.forEach((draw) => draw());
});
document.documentElement.dataset.ready = "yes";
"""
