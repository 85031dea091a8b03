"""What the benchmarks share: timing in turn, medians with their ranges, tables and plots."""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from mll_flower.results.figure_style import saved_figure

console = Console(width=110)

# Taken at import, before the benchmark adds to it: the load by other programs.
_LOAD = os.getloadavg()[0]

DOCS = Path(__file__).resolve().parent.parent / "docs" / "performance.md"


@dataclass(frozen=True)
class Spread:
    """The median, the least and the greatest value of several repetitions.

    Parameters
    ----------
    median, low, high : float
        The three values.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise repetitions."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self) -> str:
        """Return ``median (low - high)``."""
        return f"{number(self.median)} ({number(self.low)} - {number(self.high)})"


def number(value: float) -> str:
    """Return a number with about three significant digits, and with commas for thousands."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 if abs(value) < 10 else 1
    return f"{value:.{digits}f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return the spread of ratios per repetition: a slow moment of the machine slows both sides."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])


def verdict(ratio: Spread, most: float) -> str:
    """Return whether a ratio keeps its bound, as text."""
    return f"{'yes' if ratio.median <= most else '**no**'} (at most {number(most)})"


def interleave(
    cases: Mapping[str, Callable[[], float]], repeats: int, unit: str = "us"
) -> dict[str, list[float]]:
    """Measure every case once, then every case again, and so on.

    Parameters
    ----------
    cases : Mapping[str, callable]
        For each case, a function that takes one measurement.
    repeats : int
        Number of measurements per case.
    unit : str
        Unit in the printed lines.
    """
    values: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(repeats):
        for name, measure in cases.items():
            values[name].append(measure())
            console.print(f"{repeat + 1}/{repeats}  {name}: {number(values[name][-1])} {unit}")
    return values


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine() -> str:
    """Return one line about the machine and the versions of libraries."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        text = info.read_text()
        found = re.search(r"model name\s*:\s*(.+)", text)
        model = found.group(1) if found else model
        # Virtual machines often hide the CPU's name, but not its generation.
        generation = re.search(r"cpu family\s*:\s*(\d+)\nmodel\s*:\s*(\d+)", text)
        if generation:
            model += " (family {}, model {})".format(*generation.groups())
    load = f"; load average {_LOAD:.1f} before the measurement" if _LOAD > 0.5 else ""
    parts = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "flwr"))
    return f"{cores()} cores, {model}; Python {platform.python_version()}, {parts}{load}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are numbers."""
    lines = ["| " + " | ".join(headings) + " |"]
    lines.append("|---|" + "---:|" * (len(headings) - 1))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def options(description: str, repeats: int, data: bool = False) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark, and with ``--data-dir`` if wanted."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=repeats, help="measurements per case")
    parser.add_argument(
        "--quick", action="store_true", help="only check that it works: seconds, not minutes"
    )
    parser.add_argument("--docs", type=Path, default=DOCS, help="the page with the table")
    if data:
        parser.add_argument("--data-dir", default="", help="folder of MNIST, used if it exists")
    return parser


def write(docs: Path, section: str, text: str) -> None:
    """Print a section, and write it between its markers in the page, or else at its end."""
    console.print(text, markup=False, soft_wrap=True)
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    content = f"{text.strip()}\n\nMeasured on {machine()}.".splitlines()
    block = "\n".join([begin, *map(_wrap, content), end])
    docs.parent.mkdir(parents=True, exist_ok=True)
    page = docs.read_text() if docs.is_file() else ""
    if begin in page:
        page = page[: page.index(begin)] + block + page[page.index(end) + len(end) :]
    else:
        page = f"{page.rstrip()}\n\n{block}\n".lstrip()
    docs.write_text(page)


def _wrap(line: str) -> str:
    """Wrap a line of prose at 100 columns; tables and images stay as they are."""
    if line.startswith(("|", "![")):
        return line
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(
        line, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def plot_path(docs: Path, name: str) -> Path:
    """Return the path of a plot: in figures/, beside the page."""
    path = docs.parent / "figures" / f"performance-{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def bars(path: Path, values: Mapping[str, Spread], label: str, log: bool = False) -> None:
    """Plot medians as bars with their ranges."""
    names = list(values)[::-1]
    medians = [values[name].median for name in names]
    low = [values[name].median - values[name].low for name in names]
    high = [values[name].high - values[name].median for name in names]
    with saved_figure(path, 1, 1, label, (7.5, 0.42 * len(names) + 1.0)) as [axes]:
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
    """Plot series over a common axis; both axes start at zero."""
    with saved_figure(path, 1, 1, "", (7.5, 3.4)) as [axes]:
        for name, (x, y) in series.items():
            axes.plot(x, y, marker="o" if dots else None, linewidth=1.2, label=name)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend()
