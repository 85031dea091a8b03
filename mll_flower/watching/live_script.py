"""The end of the live page's script: it listens to the server and shows what it sends.

The server sends two kinds of events: ``still``, the data that stay (the graph), and ``view``, all
that grows. A browser that loses the connection connects again by itself, and gets both anew.
"""

LIVE_SCRIPT = r"""
let still = {}, newsAt = 0, ended = false;
const root = document.documentElement;
// Only what has changed is replaced, so that a reader keeps their place in a table.
const shownParts = {};
function showParts(parts) {
  for (const place of document.querySelectorAll("[data-part]")) {
    const name = place.dataset.part, text = parts[name] ?? "";
    if (shownParts[name] !== text) place.innerHTML = shownParts[name] = text;
    const section = place.closest("[data-section]");
    if (section) section.hidden = !text;
  }
}
function showView(view) {
  root.dataset.phase = view.phase;
  ended = view.phase === "finished" || view.phase === "stopped";
  document.title = (view.total && !ended
    ? `${Math.floor((100 * view.done) / view.total)} % ` : "") + view.title;
  byId("title").textContent = view.title;
  byId("subtitle").textContent = view.subtitle;
  if (byId("status").textContent !== view.status) byId("status").textContent = view.status;
  const bar = byId("progress");
  bar.hidden = !view.total;
  bar.max = view.total || 1;
  bar.value = view.done;
  newsAt = Date.now() - 1000 * view.age;
  showAge();
  byId("trouble").textContent = "";
  if (view.trouble) html("p", view.trouble, byId("trouble")).className = "notice";
  showParts(view.parts);
  const next = { ...still, ...view.moving };
  const graph = document.querySelector("[data-section=graph]");
  if (graph) graph.hidden = !next.frames;
  byId("axis").closest(".controls").hidden = !next.charts;
  // A page in the background is not drawn; it is when it is looked at again.
  pending = next.charts ? next : null;
  drawPending();
  root.dataset.ready = "yes";
  root.dataset.version = view.version;
}
let pending = null;
function drawPending() {
  if (!pending || document.hidden) return;
  const next = pending;
  pending = null;
  for (const chart of next.charts) byId(chart.id)?.closest("section").removeAttribute("hidden");
  show(next);
}
document.addEventListener("visibilitychange", drawPending);
// How long ago anything was heard of the run: a run that is stuck says nothing of it.
function showAge() {
  const age = byId("age"), seconds = Math.max(0, Math.round((Date.now() - newsAt) / 1000));
  const old = !ended && newsAt > 0 && seconds > 60;
  age.classList.toggle("old", old);
  age.textContent = ended || !newsAt || seconds < 5 ? "" : "last news " + (seconds < 120
    ? `${seconds} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min`
    : `${Math.round(seconds / 3600)} h`) + " ago";
}
setInterval(showAge, 1000);
function listen() {
  const events = new EventSource("events");
  events.addEventListener("still", (event) => {
    still = JSON.parse(event.data);
  });
  events.addEventListener("view", (event) => {
    root.dataset.link = "connected";
    showView(JSON.parse(event.data));
  });
  events.onerror = () => {
    root.dataset.link = "lost";
    byId("trouble").textContent = "";
    html("p", "mll-flower watch does not answer: what is shown is the last that it sent.",
      byId("trouble")).className = "notice";
    // A browser gives up after some answers, such as those of another server on this port.
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}
listen();
"""
