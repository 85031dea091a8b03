"""Try what the user has written before any process of a run is started.

Importing this module does not load torch, which commands need only if there is something to try.
"""

from __future__ import annotations

from mll_flower.config import RunConfig

ALONE = (0,)
"""``hub_of`` of an engine with one worker, which holds all rows: for a deployed worker that has
its own data, or where models are only evaluated."""


def try_own_work(config: RunConfig, hub_of: tuple[int, ...] | None = None) -> None:
    """Load and call everything of the user's own, on one batch, and forget it again.

    Parameters
    ----------
    config : RunConfig
        Names the user's model, data, loss, metric or partition; without any, nothing happens.
    hub_of : tuple of int, optional
        The hub of each worker; taken from the config's network by default.

    Raises
    ------
    ValueError
        If one of them is wrong; the message names it.
    """
    if not config.own_work:
        return
    from mll_flower.training.run_engine import check_own_work, forget_engines

    try:
        check_own_work(config, hub_of)
    finally:
        forget_engines()  # the processes of the run load the data themselves
