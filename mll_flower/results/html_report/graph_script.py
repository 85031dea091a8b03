"""The second part of the report's script: the hub graph over time, the controls, the start-up.

It uses the data and the functions of `chart_script`; the page joins both into one script.
"""

GRAPH_SCRIPT = r"""
const finite = frames.distance.flat().filter((v) => v !== null);
const largestDistance = Math.max(...finite, 0) || 1;
// Colours of a hub, from no distance to the largest one of the run.
const RAMP = [[42, 157, 143], [233, 196, 106], [231, 111, 81]];
function distanceColour(value) {
  if (value === null) return "#9aa5b1";
  const t = Math.min(value / largestDistance, 1) * 2, i = Math.min(Math.floor(t), 1);
  return `rgb(${RAMP[i].map((c, k) => Math.round(c + (RAMP[i + 1][k] - c) * (t - i)))})`;
}

// Where the value of a hub is written: below it, or where none of its edges runs.
function valuePlace([x, y], neighbours, ring, width) {
  const places = [["middle", 0, ring + 15], ["middle", 0, -ring - 7],
    ["start", ring + 5, 4], ["end", -ring - 5, 4]];
  const edges = neighbours.map(([a, b]) => Math.atan2(b - y, a - x));
  const clearance = ([, dx, dy]) => Math.min(Math.PI, ...edges.map((edge) => {
    const turn = Math.abs(edge - Math.atan2(dy, dx));
    return Math.min(turn, 2 * Math.PI - turn); }));
  const inside = places.filter(([, dx]) => Math.abs(dx) < 1 ||
    (x + dx * 2 > 0 && x + dx * 2 < width));
  const [anchor, dx, dy] = inside.find((place) => clearance(place) > 0.6) ??
    inside.reduce((a, b) => (clearance(b) > clearance(a) ? b : a));
  return { x: x + dx, y: y + dy, "text-anchor": anchor };
}

let hubs = [], edges = [], dots = [];
function drawGraph() {
  const box = byId("graph"), width = Math.max(box.clientWidth, 240);
  const number = data.positions.length;
  const height = Math.round(Math.min(Math.max(width * 0.85, 280), 460));
  const pad = number > 20 ? 20 : 58, below = number > 20 ? 24 : 64;
  const side = Math.min(width - 2 * pad, height - pad - below);
  const stretch = Math.min((width - 2 * pad) / side, 1.6) * side;
  const at = data.positions.map(([x, y]) =>
    [width / 2 + (x - 0.5) * stretch, pad + (height - pad - below - side) / 2 + y * side]);
  let gap = side;
  at.forEach((a, i) => at.forEach((b, j) => {
    if (i < j) gap = Math.min(gap, Math.hypot(a[0] - b[0], a[1] - b[1])); }));
  const radius = Math.max(6, Math.min(26, gap * 0.26)), thinness = Math.min(1, radius / 14);
  const largestShare = Math.max(...data.shares);
  box.textContent = "";
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-labelledby": "moment" }, box);
  const largestWeight = Math.max(...data.edges.map((e) => Math.max(e[2], e[3])), 1e-12);
  edges = data.edges.map(([i, j, a, b]) => {
    const line = svg("line", { class: "edge", x1: at[i][0], y1: at[i][1], x2: at[j][0],
      y2: at[j][1], "stroke-width": thinness * (1 + (3.5 * Math.max(a, b)) / largestWeight) },
      root);
    svg("title", {}, line, `H[${i}, ${j}] = ${format(a)}, H[${j}, ${i}] = ${format(b)}`);
    return line;
  });
  const members = data.positions.map(() => []), neighbours = data.positions.map(() => []);
  data.edges.forEach(([i, j]) => { neighbours[i].push(at[j]); neighbours[j].push(at[i]); });
  data.workers.forEach((w) => members[w.hub].push(w));
  dots = [];
  hubs = at.map(([x, y], d) => {
    const size = radius * (0.75 + 0.25 * Math.sqrt(data.shares[d] / largestShare));
    const ring = radius * 1.55, fits = members[d].length * 7 < 2 * Math.PI * ring;
    members[d].forEach((w, k) => {
      const turn = (2 * Math.PI * (k + 0.5)) / members[d].length - Math.PI / 2;
      if (!fits || radius < 9) return;
      const dot = svg("circle", { class: "worker", cx: x + ring * Math.cos(turn),
        cy: y + ring * Math.sin(turn), r: 2.6, opacity: 0.3 + 0.7 * w.rate }, root);
      svg("title", {}, dot, `worker ${w.worker}, rate ${format(w.rate)}`);
      dots[w.worker] = dot;
    });
    const circle = svg("circle", { class: "hub", id: `hub-${d}`, cx: x, cy: y, r: size }, root);
    const title = svg("title", {}, circle);
    if (radius >= 9 || number <= 100) {
      const name = svg("text", { class: "hub-name", x, y }, root, d);
      name.style.pointerEvents = "none";
      name.style.fontSize = `${Math.min(12, radius * 1.25)}px`;
    }
    const value = number <= 30 && radius >= 11
      ? svg("text", { class: "hub-value", ...valuePlace([x, y], neighbours[d], ring, width) }, root)
      : null;
    return { circle, title, value };
  });
  paintFrame();
}

// Shows the frame of the state: colours and values of the hubs, mixing, absent workers.
function paintFrame() {
  const f = state.frame, distance = frames.distance[f], absent = new Set(frames.absent[f]);
  hubs.forEach(({ circle, title, value }, d) => {
    circle.setAttribute("fill", distanceColour(distance[d]));
    const loss = frames.loss[f][d];
    title.textContent = `hub ${d}: distance ${format(distance[d])}` +
      (loss === null ? "" : `, training loss ${format(loss)}`);
    if (value) value.textContent = format(distance[d] && +distance[d].toPrecision(3));
  });
  edges.forEach((line) => line.classList.toggle("mixed", frames.mixed[f]));
  dots.forEach((dot, w) => dot.classList.toggle("absent", absent.has(w)));
  const known = distance.filter((v) => v !== null), largest = Math.max(...known);
  const parts = [`slot ${format(frames.slot[f])}`, `round ${format(frames.round[f])}`];
  if (f === 0) parts.push("all hubs start from one model");
  else if (!known.length) parts.push("no finite distance");
  else if (hubs.length > 1)
    parts.push(`furthest is hub ${distance.indexOf(largest)}, at ${format(largest)}`);
  if (frames.mixed[f]) parts.push("hubs mix");
  if (absent.size) parts.push(`${absent.size} absent: worker ` +
    [...absent].slice(0, 8).join(", ") + (absent.size > 8 ? ", ..." : ""));
  byId("moment").textContent = parts.join(" · ");
  const slider = byId("time");
  slider.value = f;
  slider.setAttribute("aria-valuetext", parts.join(", "));
}

const hubSeries = data.positions.map((_, d) => ({ name: `hub ${d}`,
  colour: data.colours.hubs[d], y: frames.distance.map((row) => row[d]) }));
const charts = [
  curves("loss", evaluations, [
    { name: "training loss", colour: data.colours.loss, y: evaluations.loss },
    { name: "test loss", colour: data.colours.test_loss, y: evaluations.test_loss, dash: "5 3" }]),
  curves("accuracy", evaluations, [
    { name: data.metric, colour: data.colours.accuracy, y: evaluations.accuracy }]),
  curves("disagreement", frames, hubSeries, true),
];
function showFrame(frame) {
  state.frame = Math.min(Math.max(frame, 0), last);
  paintFrame();
  charts.forEach((chart) => chart.updateLegend());
}
function play(on) {
  clearInterval(state.timer);
  state.timer = 0;
  byId("play").textContent = on ? "Pause" : "Play";
  if (!on) return;
  if (state.frame === last) showFrame(0);
  // About ten seconds for the whole run, but each frame long enough to be seen.
  state.timer = setInterval(() => {
    if (state.frame >= last) play(false);
    else showFrame(state.frame + 1);
  }, Math.min(Math.max(10000 / (last || 1), 40), 600));
}
byId("scale").style.background =
  `linear-gradient(90deg, ${RAMP.map((colour) => `rgb(${colour})`).join(", ")})`;
byId("scale-top").textContent = format(+largestDistance.toPrecision(3));
byId("time").max = last;
byId("time").addEventListener("input", (event) => {
  play(false);
  showFrame(+event.target.value);
});
byId("play").addEventListener("click", () => play(!state.timer));
byId("axis").addEventListener("change", (event) => {
  state.axis = event.target.value;
  charts.forEach((chart) => chart.draw());
});
drawGraph();
bars("workers");
charts.forEach((chart) => chart.draw());
redraws.push(drawGraph);
let drawnWidth = document.documentElement.clientWidth;
window.addEventListener("resize", () => {
  if (drawnWidth === document.documentElement.clientWidth) return;
  drawnWidth = document.documentElement.clientWidth;
  redraws.forEach((draw) => draw());
});
document.documentElement.dataset.ready = "yes";
"""
