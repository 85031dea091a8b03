"""Seconds to make H, to check it, and for zeta, for large hub graphs.

Run with ``python -m benchmarks.mixing``. The rival is NumPy's dense ``eigvalsh`` of the
same symmetric matrix in the same run, up to the size where it takes too long.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from mll_flower.algorithm.graphs import hub_graph
from mll_flower.algorithm.mixing import check_mixing, mixing_matrix, zeta

T = TypeVar("T")

GRAPHS = ("random-regular", "grid", "path")


def timed(action: Callable[[], T]) -> tuple[float, T]:
    """Seconds of one call, and its result."""
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def dense_zeta(H: NDArray[Any], b: NDArray[Any]) -> float:
    """The rival: all eigenvalues of the symmetric matrix with H's spectrum."""
    root = np.sqrt(b)
    values = np.linalg.eigvalsh(H * root / root[:, None])
    return float(max(-values[0], values[-2]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Seconds for H and zeta.")
    parser.add_argument("--hubs", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--dense-up-to", type=int, default=1000, help="largest D for the rival")
    options = parser.parse_args()
    table = Table(title="metropolis, shares b uniform in 0.5..2 before scaling; seconds")
    for heading in ("graph", "hubs", "edges", "H", "check", "zeta", "dense", "zeta =", "differ by"):
        table.add_column(heading, justify="left" if heading == "graph" else "right")
    for hubs in options.hubs:
        b = np.random.default_rng(0).uniform(0.5, 2.0, hubs)
        b /= b.sum()
        for name in GRAPHS:
            graph = hub_graph(name, hubs)
            # mixing_matrix checks what it makes; the check alone is timed beside it.
            make, H = timed(partial(mixing_matrix, graph, b))
            check, _ = timed(partial(check_mixing, H, graph, b))
            seconds, value = timed(partial(zeta, H))
            rival, difference = "", ""
            if hubs <= options.dense_up_to:
                dense, other = timed(partial(dense_zeta, H, b))
                rival, difference = f"{dense:.3f}", f"{abs(other - value):.0e}"
            table.add_row(
                *(name, f"{hubs:,}", f"{graph.size():,}"),
                *(f"{make:.3f}", f"{check:.3f}", f"{seconds:.3f}", rival),
                *(f"{value:.9f}", difference),
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
