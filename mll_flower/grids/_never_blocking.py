"""Which grids never block in ``pull_messages``.

A remote grid may block in a pull for as long as a node uploads its reply, so `DeadlineGrid` pulls
in threads (`mll_flower.grids._watchers`). Grids that keep their messages in this process answer at
once, and threads would only cost time. This module alone knows which grids these are. A grid that
it does not know is treated as remote: correct, but slower.
"""

from __future__ import annotations

import sys

from flwr.serverapp import Grid

from mll_flower.grids.in_process import InProcessGrid


def never_blocks(grid: Grid) -> bool:
    """Return whether pulling from the grid never blocks: ours, and that of Flower's simulation."""
    # Flower's class is looked up, not imported: its module loads a database library, which takes
    # half a second and which no deployed hub needs. A grid of that class exists only after
    # Flower has loaded the module. If a release of Flower moves it, its grid counts as remote.
    flower = getattr(sys.modules.get("flwr.superlink.grid"), "InMemoryGrid", None)
    return isinstance(grid, InProcessGrid) or (flower is not None and isinstance(grid, flower))
