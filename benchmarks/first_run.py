"""How long the first command of the README takes, with compiled code and without.

Run with ``python -m benchmarks.first_run``. ``mll-flower run`` from the command to its results, in
a process of its own: with an empty cache, so that the network is compiled first, as on a new
machine; again, when compiled code is on disk; and with gradients from autograd.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks import report
from benchmarks.report import Spread, ratios, verdict

COMMAND = str(Path(sys.executable).parent / "mll-flower")
NEW, AGAIN, AUTOGRAD = "on a new machine", "again", "again, gradients from autograd"


def seconds(folder: Path, options: list[str], new: bool) -> float:
    """Run the command in a folder; return how long it takes.

    Parameters
    ----------
    folder : Path
        Where the run's results and the caches are.
    options : list of str
        Options of ``mll-flower run``.
    new : bool
        Whether to begin with an empty cache.
    """
    with tempfile.TemporaryDirectory() as empty:
        cache = empty if new else str(folder / "cache")
        start = time.perf_counter()
        subprocess.run(
            [COMMAND, "run", "--overwrite", "--output", "results", *options],
            cwd=folder,
            env={**os.environ, "XDG_CACHE_HOME": cache},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return time.perf_counter() - start


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the table."""
    parser = report.options("Seconds of the README's first command.", repeats=5)
    choice = parser.parse_args(arguments)
    options: list[str] = []
    if choice.quick:
        choice.repeats = 1
        options = ["--slots", "16", "--hubs", "2", "--workers-per-hub", "1", "--in-process"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds(folder, options, new=False)  # fills the cache and the machine's memory of files
        found = report.interleave(
            {
                NEW: partial(seconds, folder, options, True),
                AGAIN: partial(seconds, folder, options, False),
                AUTOGRAD: partial(seconds, folder, [*options, "--engine", "autograd"], False),
            },
            choice.repeats,
            "s",
        )
    rows = []
    for case, values in found.items():
        ratio = ratios(values, found[AUTOGRAD])
        kept = "" if case == AUTOGRAD else verdict(ratio, 1.0)
        rows.append([case, Spread.of(values).text(), ratio.text(), kept])
    headings = ["mll-flower run", "s from command to results", "of the last row", "no slower"]
    text = report.table(headings, rows)
    text += f"\n\nMedian (range) of {choice.repeats} runs in turn."
    report.write(choice.docs, "first-run", text)


if __name__ == "__main__":
    main()
