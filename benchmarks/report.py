"""What the benchmarks share: interleaved timing, medians with spread, tables, plots."""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from mll_flower.results.plots import picture

console = Console(width=110)

# Before the benchmark adds its own: what else the machine had to do.
_LOAD = os.getloadavg()[0]

DOCS = Path(__file__).resolve().parent.parent / "docs" / "performance.md"


@dataclass(frozen=True)
class Spread:
    """A median, and the least and the greatest value.

    Parameters
    ----------
    median, low, high : float
        Of all repetitions.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise repetitions."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, scale: float = 1.0) -> str:
        """Write as ``median (low - high)``."""
        return (
            f"{number(self.median * scale)} "
            f"({number(self.low * scale)} - {number(self.high * scale)})"
        )


def number(value: float) -> str:
    """Write a number with three digits that matter, and commas from a thousand on."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 if abs(value) < 10 else 1
    return f"{value:.{digits}f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Compare repetition by repetition: what slows the machine slows both."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])


def verdict(ratio: Spread, most: float) -> str:
    """Say whether a ratio keeps its bound."""
    return f"{'yes' if ratio.median <= most else '**no**'} (at most {number(most)})"


def interleave(
    cases: Mapping[str, Callable[[], float]], repeats: int, unit: str = "us"
) -> dict[str, list[float]]:
    """Measure every case once, then every case again, and so on.

    Parameters
    ----------
    cases : Mapping[str, callable]
        Each takes one measurement.
    repeats : int
        How often.
    unit : str
        For the lines that say how far it is.
    """
    values: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(repeats):
        for name, measure in cases.items():
            values[name].append(measure())
            console.print(f"{repeat + 1}/{repeats}  {name}: {number(values[name][-1])} {unit}")
    return values


def machine() -> str:
    """Describe the machine and the versions, in one line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text())
        model = found.group(1) if found else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = f"; load average {_LOAD:.1f} before the measurement" if _LOAD > 0.5 else ""
    parts = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "flwr"))
    return f"{cores} cores, {model}; Python {platform.python_version()}, {parts}{load}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table; all columns but the first are numbers."""
    lines = ["| " + " | ".join(headings) + " |"]
    lines.append("|---|" + "---:|" * (len(headings) - 1))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def options(description: str, repeats: int) -> argparse.ArgumentParser:
    """Options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=repeats, help="measurements of each case")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: a check")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the table is written")
    return parser


def write(docs: Path, section: str, text: str) -> None:
    """Print a section and write it between its markers; made at the end if they are not there."""
    console.print(text, markup=False, soft_wrap=True)
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    block = f"{begin}\n{text.strip()}\n\nMeasured on {machine()}.\n{end}"
    docs.parent.mkdir(parents=True, exist_ok=True)
    page = docs.read_text() if docs.is_file() else ""
    if begin in page:
        page = page[: page.index(begin)] + block + page[page.index(end) + len(end) :]
    else:
        page = f"{page.rstrip()}\n\n{block}\n".lstrip()
    docs.write_text(page)


def figure(docs: Path, name: str) -> Path:
    """Where a plot goes: in figures, beside the page."""
    path = docs.parent / "figures" / f"performance-{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def bars(path: Path, values: Mapping[str, Spread], label: str, log: bool = False) -> None:
    """Plot medians as bars with their spread."""
    names = list(values)[::-1]
    medians = [values[name].median for name in names]
    low = [values[name].median - values[name].low for name in names]
    high = [values[name].high - values[name].median for name in names]
    with picture(path, 1, 1, label, (7.5, 0.42 * len(names) + 1.0)) as [axes]:
        axes.barh(names, medians, xerr=[low, high], color="#4878a8", capsize=3)
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        for place, name in enumerate(names):
            axes.annotate(
                number(medians[place]),
                (values[name].high, place),
                (5, 0),
                textcoords="offset points",
                va="center",
            )
        axes.margins(x=0.14)
        axes.grid(False, axis="y")


def lines(
    path: Path,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    across: str,
    up: str,
    dots: bool = True,
) -> None:
    """Plot series over a common axis, from zero."""
    with picture(path, 1, 1, "", (7.5, 3.4)) as [axes]:
        for name, (x, y) in series.items():
            axes.plot(x, y, marker="o" if dots else None, linewidth=1.2, label=name)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend()
