"""The style sheet of the report, for light and dark screens, phones and paper."""

from string import Template

from mll_flower.results.figure_style import ALERT, INK, PALETTE

_TEMPLATE = Template("""
:root {
  color-scheme: light dark;
  --page: #f4f6f8; --card: #fff; --ink: $ink; --muted: #566370; --line: #dfe4ea;
  --accent: $accent; --edge: #a3afbc; --alert: $alert; --shadow: 0 1px 3px #1f293314;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12171d; --card: #1b222b; --ink: #e6ebf0; --muted: #9fadbb; --line: #313b47;
    --accent: #6ea8e6; --edge: #5b6875; --alert: #ff7b72; --shadow: none;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  -webkit-text-size-adjust: 100%;
}
main, header, footer { max-width: 1120px; margin: 0 auto; padding: 0 16px; }
header { padding-top: 28px; }
footer { padding: 20px 16px 40px; color: var(--muted); font-size: .85rem; }
h1 { margin: 0; font-size: clamp(1.35rem, 4vw, 1.9rem); line-height: 1.2;
  overflow-wrap: anywhere; }
h2 { margin: 0 0 4px; font-size: 1.1rem; }
p { margin: 0 0 12px; overflow-wrap: anywhere; }
.sub { color: var(--muted); margin: 6px 0 18px; }
.hint { color: var(--muted); font-size: .87rem; }
main { display: grid; gap: 16px; grid-template-columns: minmax(0, 1fr); }
@media (min-width: 820px) { main { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .full { grid-column: 1 / -1; } }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 16px; box-shadow: var(--shadow); min-width: 0; }
dl { margin: 0; }
dt { color: var(--muted); font-size: .8rem; }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.tiles { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px;
  margin-bottom: 16px; }
@media (min-width: 640px) { .tiles { grid-template-columns: repeat(4, minmax(0, 1fr)); } }
header .tiles > div { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; padding: 10px 12px; box-shadow: var(--shadow); }
.tiles dd { font-size: 1.2rem; font-weight: 600; }
.config { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr));
  gap: 10px 16px; }
.config .long { grid-column: 1 / -1; }
.notice { color: var(--alert); font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; margin-bottom: 12px;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--muted); padding-bottom: 6px; }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td { overflow-wrap: anywhere; }
th { color: var(--muted); font-weight: 600; }
@media (max-width: 600px) {
  table, caption, tbody, tr, td { display: block; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  tr { display: flex; flex-wrap: wrap; gap: 2px 16px; padding: 7px 0;
    border-bottom: 1px solid var(--line); }
  td { border: 0; padding: 0; }
  td:empty { display: none; }
  td::before { content: attr(data-name) " "; color: var(--muted); font-size: .8rem; }
}
details { margin-top: 8px; }
summary { cursor: pointer; color: var(--accent); padding: 4px 0; }
.controls { display: flex; flex-wrap: wrap; gap: 10px 14px; align-items: center; }
.controls input[type=range] { flex: 1 1 160px; min-width: 0; height: 32px;
  accent-color: var(--accent); }
button, select { font: inherit; color: var(--ink); background: var(--page); min-height: 40px;
  border: 1px solid var(--line); border-radius: 8px; padding: 6px 14px; cursor: pointer; }
button { min-width: 92px; font-weight: 600; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; border-radius: 4px; }
svg { display: block; width: 100%; touch-action: pan-y; }
svg text { fill: var(--muted); font-size: 12px; font-variant-numeric: tabular-nums; }
.border { fill: none; stroke: var(--line); }
[hidden] { display: none !important; }
.grid { stroke: var(--line); stroke-width: 1; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.cursor { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 3 3; }
.frame { stroke: var(--accent); stroke-width: 1.5; opacity: .7; }
.expected { stroke: var(--ink); stroke-width: 2; }
.cross { stroke: var(--alert); stroke-width: 2; fill: none; }
.edge { stroke: var(--edge); transition: stroke .2s; }
.edge.mixed { stroke: var(--accent); }
.edge.silent { stroke: var(--alert); stroke-dasharray: 5 4; }
.hub { stroke: var(--card); stroke-width: 2; transition: fill .2s, r .2s; }
.hub.absent { stroke: var(--alert); stroke-width: 3; }
.hub.down { stroke: var(--alert); stroke-dasharray: 4 3; }
svg .hub-name { fill: #111; font-weight: 700; text-anchor: middle; dominant-baseline: central; }
svg .hub-value { stroke: var(--card); stroke-width: 4px; paint-order: stroke; }
.worker { fill: var(--muted); }
.worker.absent { fill: var(--alert); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 4px 0 6px; padding: 0;
  list-style: none; font-size: .84rem; font-variant-numeric: tabular-nums; min-height: 1.5em; }
.legend i { display: inline-block; width: 12px; height: 3px; margin-right: 6px;
  vertical-align: middle; border-radius: 2px; }
.scale { display: flex; align-items: center; gap: 8px; font-size: .82rem; color: var(--muted);
  margin-top: 8px; }
#scale { flex: 0 1 180px; height: 10px; border-radius: 5px; }
@media (prefers-reduced-motion: reduce) { * { transition: none !important; } }
@media print { body { background: #fff; } .controls { display: none; } }
""")

STYLE_SHEET = _TEMPLATE.substitute(ink=INK, accent=PALETTE[0], alert=ALERT)
"""The CSS text."""
