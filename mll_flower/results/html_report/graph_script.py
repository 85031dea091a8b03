"""The last part of the script: the hub graph over time, the controls, and what a page shows.

It uses the functions of `chart_script` and `labels_script`; a page joins them into one script.
"""

GRAPH_SCRIPT = r"""
let largestDistance = 1;
// Colours of a hub, from no distance to the largest one of the run.
const RAMP = [[42, 157, 143], [233, 196, 106], [231, 111, 81]];
function distanceColour(value) {
  if (value === null) return "#9aa5b1";
  const t = Math.min(value / largestDistance, 1) * 2, i = Math.min(Math.floor(t), 1);
  return `rgb(${RAMP[i].map((c, k) => Math.round(c + (RAMP[i + 1][k] - c) * (t - i)))})`;
}

// Where the value of a hub is written: below it, or where none of its edges runs.
function valuePlace([x, y], neighbours, ring, width) {
  const places = [["middle", 0, ring + 17], ["middle", 0, -ring - 8],
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
  // Hubs in a single row need no more height than their names and values.
  const inRow = new Set(data.positions.map(([, y]) => y)).size === 1;
  const height = inRow ? 200 : Math.round(Math.min(Math.max(width * 0.85, 280), 460));
  const pad = number > 20 ? 20 : 58, below = number > 20 ? 24 : 64;
  const side = Math.min(width - 2 * pad, height - pad - below);
  const stretch = Math.min(width - 2 * pad, inRow ? 560 : 1.6 * side);
  const at = data.positions.map(([x, y]) =>
    [width / 2 + (x - 0.5) * stretch, pad + (height - pad - below - side) / 2 + y * side]);
  let gap = inRow ? stretch : side;
  at.forEach((a, i) => at.forEach((b, j) => {
    if (i < j) gap = Math.min(gap, Math.hypot(a[0] - b[0], a[1] - b[1])); }));
  // Where workers have no room around their hub, hubs are drawn without them, and larger.
  const crowded = gap * 0.26 < 9;
  const radius = crowded ? Math.max(6, Math.min(13, gap * 0.42)) : Math.min(26, gap * 0.26);
  const thinness = Math.min(1, radius / 14);
  const largestShare = Math.max(...data.shares);
  box.textContent = "";
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-labelledby": "moment" }, box);
  const largestWeight = Math.max(...data.edges.map((e) => Math.max(e[2], e[3])), 1e-12);
  edges = data.edges.map(([i, j, a, b]) => {
    const line = svg("line", { class: "edge", x1: at[i][0], y1: at[i][1], x2: at[j][0],
      y2: at[j][1], "stroke-width": thinness * (1 + (3.5 * Math.max(a, b)) / largestWeight) },
      root);
    if (a !== null)
      svg("title", {}, line, `H[${i}, ${j}] = ${format(a)}, H[${j}, ${i}] = ${format(b)}`);
    return { line, ends: [i, j] };
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
      if (!fits || crowded) return;
      const dot = svg("circle", { class: "worker", cx: x + ring * Math.cos(turn),
        cy: y + ring * Math.sin(turn), r: 2.6, opacity: 0.3 + 0.7 * w.rate }, root);
      svg("title", {}, dot, `worker ${w.name ?? w.worker}, rate ${format(w.rate)}`);
      dots[w.worker] = dot;
    });
    const circle = svg("circle", { class: "hub", id: `hub-${d}`, cx: x, cy: y, r: size }, root);
    const title = svg("title", {}, circle);
    if (radius >= 9 || number <= 100) {
      const text = data.short[d];
      const name = svg("text", { class: "hub-name", x, y }, root, text);
      name.style.pointerEvents = "none";
      name.style.fontSize = `${Math.min(12, radius * 1.25, (size * 3) / text.length)}px`;
    }
    const value = number <= 30 && !crowded && radius >= 11
      ? svg("text", { class: "hub-value", ...valuePlace([x, y], neighbours[d], ring, width) }, root)
      : null;
    return { circle, title, value };
  });
  paintFrame();
}

// Shows the frame of the state: colours and values of the hubs, mixing, absent workers; in the
// last frame also the hubs that do not answer now, and the links that are not used.
function paintFrame() {
  const frames = data.frames, f = state.frame, distance = frames.distance[f];
  const absent = new Set(frames.absent[f]), now = f === lastFrame() ? data.now : null;
  const down = new Set(now?.down ?? []);
  const silent = new Set((now?.silent ?? []).map((ends) => ends.join()));
  hubs.forEach(({ circle, title, value }, d) => {
    circle.setAttribute("fill", distanceColour(down.has(d) ? null : distance[d]));
    circle.classList.toggle("down", down.has(d));
    const loss = frames.loss[f][d], known = distance[d] !== null;
    title.textContent = data.names[d] + (down.has(d) ? ": does not answer" :
      (known || !data.live ? `: distance ${format(distance[d])}` : "") +
      (loss === null ? "" : `, training loss ${format(loss)}`));
    if (value) value.textContent = down.has(d) ? "no answer" :
      known || !data.live ? format(distance[d] && +distance[d].toPrecision(3)) : "";
  });
  edges.forEach(({ line, ends }) => {
    line.classList.toggle("mixed", frames.mixed[f]);
    line.classList.toggle("silent", silent.has(ends.join()));
  });
  dots.forEach((dot, w) => dot.classList.toggle("absent", absent.has(w)));
  // A worker without a dot shows at its hub.
  const missing = new Set([...absent].filter((w) => !dots[w]).map((w) => data.workers[w]?.hub));
  hubs.forEach(({ circle }, d) => circle.classList.toggle("absent", missing.has(d)));
  const known = distance.filter((v) => v !== null), largest = Math.max(...known);
  const parts = frames.slot ? [`slot ${format(frames.slot[f])}`] : [];
  parts.push(`round ${format(frames.round[f])}`);
  if (f === 0) parts.push("all hubs start from one model");
  else if (!known.length) parts.push(data.live ? "no distance known yet" : "no finite distance");
  else if (hubs.length > 1)
    parts.push(`furthest is ${data.names[distance.indexOf(largest)]}, at ${format(largest)}`);
  if (frames.mixed[f]) parts.push("hubs mix");
  if (absent.size) parts.push(`${absent.size} absent: worker ` +
    [...absent].slice(0, 8).map((w) => data.workers[w]?.name ?? w).join(", ") +
    (absent.size > 8 ? ", ..." : ""));
  byId("moment").textContent = parts.join(" · ");
  const slider = byId("time");
  slider.max = lastFrame();
  slider.value = f;
  slider.setAttribute("aria-valuetext", parts.join(", "));
}

function showFrame(frame) {
  state.frame = Math.min(Math.max(frame, 0), lastFrame());
  paintFrame();
  charts.forEach((chart) => chart.updateLegend());
}
function play(on) {
  clearInterval(state.timer);
  state.timer = 0;
  byId("play").textContent = on ? "Pause" : "Play";
  if (!on) return;
  if (state.frame === lastFrame()) showFrame(0);
  // About ten seconds for the whole run, but each frame long enough to be seen.
  state.timer = setInterval(() => {
    if (state.frame >= lastFrame()) play(false);
    else showFrame(state.frame + 1);
  }, Math.min(Math.max(10000 / (lastFrame() || 1), 40), 600));
}

const charts = [...document.querySelectorAll("[data-chart]")].map((box) => {
  if (box.dataset.chart === "bars") return bars(box.id);
  if (box.dataset.chart === "curves") return curves(box.id);
  const hubOf = (w) => data.workers[w].hub;
  return box.id === "labels-hubs"
    ? labelMap(box.id, "hubs", (d) => data.names[d], (d) => d)
    : labelMap(box.id, "workers", (w) => `worker ${w} of ${data.names[hubOf(w)]}`, hubOf);
});
function drawAll() {
  if (data.frames) drawGraph();
  charts.forEach((chart) => chart.draw());
}
// Shows new data. Whoever looks at an earlier frame keeps looking at that round.
function show(next) {
  const looked = data?.frames && state.frame < lastFrame() ? data.frames.round[state.frame] : null;
  const drawn = data && data.shape !== undefined && data.shape === next.shape;
  data = next;
  const options = [...byId("axis").options].map((option) => option.value);
  state.axis = options.includes(state.axis) ? state.axis : options[0];
  if (data.frames) {
    largestDistance = 0;
    for (const row of data.frames.distance)
      for (const v of row) largestDistance = Math.max(largestDistance, v ?? 0);
    largestDistance = largestDistance || 1;
    byId("scale-top").textContent = format(+largestDistance.toPrecision(3));
    state.frame = looked === null ? lastFrame() : nearest(data.frames.round, looked);
    if (drawn) paintFrame();
    else drawGraph();
  }
  charts.forEach((chart) => chart.draw());
}
byId("axis").addEventListener("change", (event) => {
  state.axis = event.target.value;
  if (data) charts.forEach((chart) => chart.draw());
});
if (byId("graph")) {
  byId("scale").style.background =
    `linear-gradient(90deg, ${RAMP.map((colour) => `rgb(${colour})`).join(", ")})`;
  byId("time").addEventListener("input", (event) => {
    play(false);
    showFrame(+event.target.value);
  });
  byId("play").addEventListener("click", () => play(!state.timer));
}
let drawnWidth = document.documentElement.clientWidth;
window.addEventListener("resize", () => {
  if (!data || drawnWidth === document.documentElement.clientWidth) return;
  drawnWidth = document.documentElement.clientWidth;
  drawAll();
});
"""

SHOW_EMBEDDED = """
show(JSON.parse(byId("data").textContent));
document.documentElement.dataset.ready = "yes";
"""
"""The end of the report's script: its data are in the page."""
