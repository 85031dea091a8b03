"""The part of the script that draws who holds which labels: one square per hub or worker and label.

A picture with one pixel per square is stretched to its size, so that thousands of workers with
hundreds of labels cost no more than a few.
"""

LABELS_SCRIPT = r"""
// Rows: hubs or workers; columns: labels; the darker a square, the larger its label's share.
function labelMap(id, key, nameOf, group) {
  const box = byId(id), legend = byId(id + "-legend");
  let counts = [], plot, selected = null;
  function describe() {
    const hint = "Darker: a larger share of the rows that the row's owner holds.";
    let text = hint;
    if (selected) {
      const [row, label] = selected, total = counts[row].reduce((a, b) => a + b, 0);
      text = `${nameOf(row)}: label ${label}, ${counts[row][label]} of ${total} rows ` +
        `(${format(total ? +((100 * counts[row][label]) / total).toPrecision(3) : 0)} %)`;
    }
    legend.textContent = "";
    html("li", text, legend);
  }
  function draw() {
    counts = data.labels ? data.labels[key] : [];
    box.closest("section").hidden = !counts.length;
    if (!counts.length) return;
    const rows = counts.length, labels = counts[0].length;
    const width = Math.max(box.clientWidth, 240), left = 62, top = 4, bottom = 36, right = 8;
    const inner = Math.min(Math.max(rows * 18, 60), 420), height = inner + top + bottom;
    const cell = [(width - left - right) / labels, inner / rows];
    box.textContent = "";
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" },
      box);
    const canvas = document.createElement("canvas");
    canvas.width = labels; canvas.height = rows;
    const context = canvas.getContext("2d"), image = context.createImageData(labels, rows);
    counts.forEach((row, r) => {
      const total = row.reduce((a, b) => a + b, 0) || 1;
      row.forEach((count, c) => {
        // Shares of a few percent must be seen: the root lifts them.
        const alpha = count ? 0.06 + 0.94 * Math.sqrt(count / total) : 0;
        image.data.set([47, 111, 181, Math.round(255 * alpha)], 4 * (r * labels + c));
      });
    });
    context.putImageData(image, 0, 0);
    svg("image", { href: canvas.toDataURL(), x: left, y: top, width: width - left - right,
      height: inner, preserveAspectRatio: "none", style: "image-rendering: pixelated" }, root);
    svg("rect", { class: "border", x: left, y: top, width: width - left - right, height: inner },
      root);
    const y = (row) => top + row * cell[1];
    let start = 0, lastName = -1e9;
    for (let r = 0; r < rows; r++) {
      if (r + 1 < rows && group(r + 1) === group(r)) continue;
      if (key === "workers" && r + 1 < rows)
        svg("line", { class: "grid", x1: left, x2: width - right, y1: y(r + 1), y2: y(r + 1) },
          root);
      const middle = (y(start) + y(r + 1)) / 2;
      start = r + 1;
      if (middle - lastName < 13) continue;
      lastName = middle;
      svg("text", { x: left - 8, y: middle + 4, "text-anchor": "end" }, root,
        data.names[group(r)]);
    }
    const every = Math.ceil((labels * 26) / (width - left - right));
    for (let c = 0; c < labels; c += every)
      svg("text", { x: left + (c + 0.5) * cell[0], y: top + inner + 16, "text-anchor": "middle" },
        root, c);
    svg("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, root,
      "label");
    plot = { root, left, top, cell };
    describe();
  }
  const select = (row, label) => {
    const inside = counts[row] && counts[row][label] !== undefined;
    selected = inside ? [row, label] : null;
    describe();
  };
  box.addEventListener("pointermove", (event) => {
    const scale = plot.root.viewBox.baseVal.height / plot.root.clientHeight;
    const y = (event.clientY - plot.root.getBoundingClientRect().top) * scale;
    select(Math.floor((y - plot.top) / plot.cell[1]),
      Math.floor((pointerX(event, plot) - plot.left) / plot.cell[0]));
  });
  box.addEventListener("pointerleave", () => select(-1, 0));
  box.addEventListener("blur", () => select(-1, 0));
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0],
      ArrowDown: [1, 0] }[event.key];
    if (!move || !counts.length) return;
    event.preventDefault();
    const [row, label] = selected ?? [-move[0], -move[1]];
    select(Math.min(Math.max(row + move[0], 0), counts.length - 1),
      Math.min(Math.max(label + move[1], 0), counts[0].length - 1));
  });
  return { draw, updateLegend() {} };
}
"""
