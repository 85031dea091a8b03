"""Writes docs/reproduction.md from the figures' summaries and from the prose in ``texts/``.

Nothing in its tables is written by hand: the same summaries give the same text. They are kept in
``results/``, so that the page can be written anew when some of the runs are no longer on disk.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.drawing import draw_departures
from experiments.figures import FIGURES, MODELS, PAPERS, SCALES, model_title
from experiments.inplace import Departure, departures
from experiments.published import find, reference
from mll_flower.sweeps.setups import LAST
from mll_flower.sweeps.verdicts import FAILS, HOLDS, OPEN, outlook

TEXTS = Path(__file__).with_name("texts")
RESULTS = Path(__file__).with_name("results")
_COLUMNS = 100


def write(out: Path, docs: Path, kept: Path = RESULTS) -> Path:
    """Write the document and its plots; return its path.

    Parameters
    ----------
    out : Path
        Folder with figures' summaries and plots, which replace those that are kept.
    docs : Path
        Folder of the document; plots are copied to figures/ in it.
    kept : Path
        Folder of the summaries that are kept.
    """
    plots = docs / "figures"
    for folder in (plots, kept):
        folder.mkdir(parents=True, exist_ok=True)
    for summary in load(out):
        shutil.copyfile(out / f"{_key(summary)}.json", kept / f"{_key(summary)}.json")
        shutil.copyfile(out / f"{_key(summary)}.png", plots / f"{_key(summary)}.png")
    summaries = load(kept)
    if not summaries:
        raise ValueError(f"{out} holds no figures: run python -m experiments FIGURE first")
    shown = selected(summaries)
    for summary in summaries:
        if summary not in shown:
            (plots / f"{_key(summary)}.png").unlink(missing_ok=True)
    cases = departures()
    drawn = {"path of 10", "complete, 10", "complete, 10, shares 1 to 10"}
    draw_departures([c for c in cases if c.name in drawn], plots / "in-place.png")
    path = docs / "reproduction.md"
    path.write_text(render(shown, cases))
    return path


def load(folder: Path) -> list[dict[str, Any]]:
    """Return the summaries in a folder, in the order of the document."""
    found = []
    for figure in FIGURES:
        for model in MODELS:
            for scale in SCALES:
                path = folder / f"{figure}-{model}-{scale}.json"
                if path.is_file():
                    found.append(json.loads(path.read_text()))
    return found


def selected(summaries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the summaries that the document shows.

    One of the small scale is shown only while there are no verdicts at the paper's: until then,
    with one seed, the latter has its curves and numbers beside it, without verdicts.
    """
    paper = {(s["figure"], s["model"]): s for s in summaries if s["scale"] == "paper"}
    small = {(s["figure"], s["model"]) for s in summaries if s["scale"] == "small"}
    shown: list[Mapping[str, Any]] = []
    for s in summaries:
        place = (s["figure"], s["model"])
        if s["scale"] == "paper":
            undecided = place in small and len(s["seeds"]) < 2
            shown.append({**s, "verdicts": []} if undecided else s)
        elif place not in paper or len(paper[place]["seeds"]) < 2:
            shown.append(s)
    return shown


def _key(summary: Mapping[str, Any]) -> str:
    return f"{summary['figure']}-{summary['model']}-{summary['scale']}"


def render(summaries: Sequence[Mapping[str, Any]], cases: Sequence[Departure]) -> str:
    """Return the document's text."""
    parts = [hand_written("opening"), _overview(summaries), hand_written("rule")]
    for name in FIGURES:
        of_figure = [s for s in summaries if s["figure"] == name]
        if of_figure:
            parts.append(f"## {of_figure[0]['title']}\n\n{_wrap(of_figure[0]['source'])}")
            if (TEXTS / f"{name}.md").is_file():
                parts.append(hand_written(name))
            parts += [_section(s) for s in of_figure]
    parts += [hand_written("departures"), _ablation(cases), hand_written("closing")]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def hand_written(name: str) -> str:
    """Return a part of the document from `TEXTS`, with the published numbers' source and notes."""
    notes = "\n".join(_wrap(f"- {note}", "  ") for note in reference()["notes"])
    paragraphs = (TEXTS / f"{name}.md").read_text().split("\n\n")
    for place, text in enumerate(paragraphs):
        if "{source}" in text:
            paragraphs[place] = _wrap(text.replace("{source}", reference()["source"]))
    return "\n\n".join(paragraphs).replace("{notes}", notes)


def _overview(summaries: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for s in summaries:
        counts = _counts([s])
        cells = [str(count) if s["verdicts"] else "–" for count in counts.values()]
        link = f"[{s['figure']}](#{_key(s)})"
        rows.append([link, model_title(s["model"]), s["data"], s["scale"], _seed_count(s), *cells])
    head = ["figure", "model", "data", "scale", "seeds", "hold", "do not hold", "not resolved"]
    made = "\n".join(sorted({s["command"] for s in summaries}))
    cores = ", ".join(sorted({str(s["cores"]) for s in summaries}))
    papers = [s for s in summaries if s["figure"] in PAPERS]
    others = [s for s in summaries if s["figure"] not in PAPERS]
    count = _wrap(
        f"The paper's claims: {_counted(papers)}. Claims beyond the paper: {_counted(others)}. "
        f"Made on {cores} cores by"
    )
    return f"## Summary\n\n{count}\n\n```console\n{made}\n```\n\n{_table(head, rows)}"


def _counts(summaries: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of verdicts of each kind."""
    given = [v["verdict"] for s in summaries for v in s["verdicts"]]
    return {kind: given.count(kind) for kind in (HOLDS, FAILS, OPEN)}


def _counted(summaries: Sequence[Mapping[str, Any]]) -> str:
    counts = _counts(summaries)
    return f"{sum(counts.values())}, of which {_told(counts)}"


def _told(counts: Mapping[str, int]) -> str:
    """Return how many claims have each verdict, in words."""
    return (
        f"{counts[HOLDS]} {'holds' if counts[HOLDS] == 1 else 'hold'}, "
        f"{counts[FAILS]} {'does' if counts[FAILS] == 1 else 'do'} not hold and "
        f"{counts[OPEN]} {'is' if counts[OPEN] == 1 else 'are'} not resolved"
    )


def _seed_count(s: Mapping[str, Any]) -> str:
    count, planned = len(s["seeds"]), s["planned"]
    return str(count) if count >= planned else f"{count} of {planned}"


def _section(s: Mapping[str, Any]) -> str:
    parts = [
        f'<a id="{_key(s)}"></a>',
        f"### {model_title(s['model'])} on {s['data']}, {s['scale']} scale",
        _wrap(
            f"{_network(s['setups'])}; {_several(s['setups'], 'slots')} slots, batches of "
            f"{_several(s['setups'], 'batch')}, step size {_several(s['setups'], 'step')}; "
            f"{_seeds(s)}{_time(s)}. {_compared(s)}"
        ),
        f"![{s['title']}, {model_title(s['model'])}](figures/{_key(s)}.png)",
        _setups(s),
    ]
    if s["verdicts"]:
        parts.append(_verdicts(s))
        if s.get("closed"):
            parts.append(_closed(s))
    elif s["scale"] == "paper" and not s.get("comparisons"):
        parts.append("One seed shows no spread, so there are no verdicts at this scale yet.")
    if s.get("comparisons"):
        parts.append(_comparisons(s))
    return "\n\n".join(parts)


def _compared(s: Mapping[str, Any]) -> str:
    """Say what the claims are decided by, and what another rule would say."""
    slot, last = f"{s['slot']:,}", s["value"] == LAST
    rule = f"Compared at slot {slot}."
    if not last:
        rule = f"Claims are about the mean over all slots up to {slot}."
    if len(s["seeds"]) < 2 or not s["other_rule"]:
        return rule
    other = "the values at that slot alone, which the next table has"
    given = _told({kind: s["other_rule"].count(kind) for kind in (HOLDS, FAILS, OPEN)})
    return f"{rule} By {'the means over all slots' if last else other}, of these claims {given}."


def _network(setups: Sequence[Mapping[str, Any]]) -> str:
    workers = sorted({s["workers"] for s in setups})
    hubs = sorted({s["hubs"] for s in setups})
    return f"{' or '.join(map(str, workers))} workers under {' or '.join(map(str, hubs))} hubs"


def _several(setups: Sequence[Mapping[str, Any]], key: str) -> str:
    values = sorted({s[key] for s in setups})
    return " or ".join(f"{v:,}" if isinstance(v, int) else f"{v:g}" for v in values)


def _seeds(s: Mapping[str, Any]) -> str:
    used = s["seeds"]
    together = used == list(range(used[0], used[0] + len(used)))
    names = f"{used[0]} to {used[-1]}" if together else ", ".join(map(str, used))
    text = f"seed {used[0]}" if len(used) == 1 else f"seeds {names}"
    return text if len(used) >= s["planned"] else f"{text} ({s['planned']} are planned)"


def _time(s: Mapping[str, Any]) -> str:
    """Return the time of the runs; summaries of earlier versions do not have it."""
    return "" if s["minutes"] is None else f"; {s['minutes']:,.0f} minutes of one core"


def _setups(s: Mapping[str, Any]) -> str:
    """Return the table of our numbers beside the published ones."""
    distance = any(v["metric"] == "distance" for v in s["verdicts"])
    theirs = {x["name"]: find(s["model"], x["published"]) for x in s["setups"]}
    shown = any(theirs.values())
    head = ["set-up", "zeta", "training loss", "test accuracy"]
    head += ["distance of hubs"] if distance else []
    head += ["published loss", "published accuracy", "published set-up"] if shown else []
    rows = []
    for x in s["setups"]:
        row = [x["label"], f"{x['zeta']:.3f}", _mean_sd(*x["loss"]), _mean_sd(*x["accuracy"])]
        row += [_mean_sd(*x["distance"])] if distance else []
        match = theirs[x["name"]]
        if shown and match:
            name, numbers = match
            last = f"{numbers['loss'][-1]:.4f} (evaluation {numbers['evaluations'][-1]})"
            row += [last, f"{numbers['accuracy'][-1]:.4f}", name]
        elif shown:
            row += ["", "", ""]
        rows.append(row)
    return _table(head, rows)


def _verdicts(s: Mapping[str, Any]) -> str:
    rows = [
        [
            v["claim"],
            f"{v['left']}: {_mean_sd(v['left_mean'], v['left_sd'])}",
            f"{v['right']}: {_mean_sd(v['right_mean'], v['right_sd'])}",
            _mean_sd(v["margin"], v["error"]),
            _verdict(v),
        ]
        for v in s["verdicts"]
    ]
    return _table(["claim", "first", "second", "margin ± 95 % interval", "verdict"], rows)


def _verdict(v: Mapping[str, Any]) -> str:
    text = f"**{v['verdict']}**"
    if v["verdict"] == OPEN:
        text += f": {outlook(v['margin'], v['error'], v['seeds'])}"
    return text


def _closed(s: Mapping[str, Any]) -> str:
    """Return the table of how far set-ups went towards those that they should come near."""
    rows = [
        [
            c["label"],
            f"{c['metric']} of {c['target']}",
            _mean_sd(*c["before"]),
            _mean_sd(*c["after"]),
            _share(c),
        ]
        for c in s["closed"]
    ]
    head = ["set-up", "target", "distance without", "distance with", "closed"]
    return "How much of the distance is closed (below zero: it grew):\n\n" + _table(head, rows)


def _share(c: Mapping[str, Any]) -> str:
    """Return the share of a distance that is closed, if the seeds agree on the distance at all."""
    distance, spread = c["before"]
    if spread is not None and distance is not None and distance < spread:
        return "– (the distance is within its spread)"
    return _percent(*c["share"])


def _comparisons(s: Mapping[str, Any]) -> str:
    rows = [
        [
            c["label"],
            c["name"],
            f"{c['evaluations'][0]} to {c['evaluations'][-1]}",
            f"{c['published'][-1]:.5f}",
            f"{c['ours'][-1]:.5f}",
            f"{100 * c['final']:+.2f} %",
            f"{100 * c['largest']:+.2f} % (evaluation {c['largest_at']})",
        ]
        for c in s["comparisons"]
    ]
    head = ["ours", "published", "evaluations", "last published loss", "ours there"]
    return _table([*head, "final difference", "largest difference"], rows)


def _ablation(cases: Sequence[Departure]) -> str:
    rows = [
        [
            case.name,
            f"{case.b[0]:.3f} / {case.b[-1]:.3f}",
            f"{case.pi[0]:.3f} / {case.pi[-1]:.3f}",
            f"{case.at_once[0]:.3f} / {case.at_once[-1]:.3f}",
            f"{100 * case.misplaced:.1f} %",
            f"{100 * case.moved:.1f} %",
        ]
        for case in cases
    ]
    head = [
        "hub network",
        "b, first / last hub",
        "in place",
        "same means, all at once",
        "weight with the wrong hubs",
        "share of u moved by one sweep",
    ]
    return _table(head, rows) + "\n\n![Weights of hubs](figures/in-place.png)"


def _mean_sd(mean: float | None, spread: float | None = None) -> str:
    if mean is None:
        return "not finite"
    return f"{mean:.4f}" if spread is None else f"{mean:.4f} ± {spread:.4f}"


def _percent(mean: float | None, spread: float | None) -> str:
    if mean is None:
        return "not finite"
    return f"{100 * mean:.0f} %" + ("" if spread is None else f" ± {100 * spread:.0f} %")


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text,
        _COLUMNS,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)
