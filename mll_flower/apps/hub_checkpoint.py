"""The checkpoint from which a hub goes on: it is taken only if it is whole and the hub's own.

Any other file is kept aside under another name, and the hub goes on without it: from its
neighbours' models, or from the start. A hub that is started again and again must never meet the
same bad file twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from logging import ERROR
from pathlib import Path
from typing import Any

from flwr.supercore import log

from mll_flower.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from mll_flower.models.layout import Flat, Layout, Vector
from mll_flower.models.sums import is_finite

_CLOCK_MARGIN = 24 * 3600.0
"""Seconds by which a checkpoint may be newer than this machine's clock."""


class UnusableCheckpoint(Exception):
    """A checkpoint that must not be taken; the text says what was found."""


class HubCheckpoint:
    """The checkpoint of one hub.

    Parameters
    ----------
    path : Path
        The file.
    run, hub : str
        The run and the hub that it must be of.
    """

    def __init__(self, path: Path, run: str, hub: str) -> None:
        self.path, self.run, self.hub = path, run, hub

    def save(
        self,
        round: int,
        layout: Layout,
        model: Flat,
        weights: Mapping[int, float],
        row: Any,
        state: Mapping[str, Vector] | None = None,
    ) -> None:
        """Write the checkpoint of a round.

        Parameters
        ----------
        round : int
            The number of the round.
        layout, model : Layout and Flat
            The hub's model.
        weights : Mapping[int, float]
            The workers' weights, by node id.
        row : dict
            The row of the round in the hub's record.
        state : Mapping[str, ndarray], optional
            What corrections have learned.
        """
        extra = {"run": self.run, "hub": self.hub, "weights": weights, "row": row}
        save_checkpoint(self.path, round, layout, [model], extra, state)

    def load(self, layout: Layout) -> Checkpoint | None:
        """Return the checkpoint; None if none exists, or if it had to be kept aside.

        Parameters
        ----------
        layout : Layout
            Names, shapes and dtypes of the model that the run trains.
        """
        if not self.path.exists():
            return None
        try:
            return self._checked(layout)
        except UnusableCheckpoint as found:
            aside = self._keep_aside()
            log(
                ERROR,
                "%s is not used: %s. It is kept as %s, and this hub goes on from its neighbours' "
                "models, or from the start if there are none",
                self.path,
                found,
                aside.name,
            )
            return None

    def _checked(self, layout: Layout) -> Checkpoint:
        try:
            checkpoint = load_checkpoint(self.path)
        except (ValueError, OSError) as error:
            raise UnusableCheckpoint(error) from None
        extra = checkpoint.extra
        if extra.get("run") != self.run:
            raise UnusableCheckpoint(f"it belongs to run {extra.get('run')!r}, not {self.run!r}")
        if extra.get("hub", self.hub) != self.hub:  # earlier versions did not save the hub
            raise UnusableCheckpoint(f"it belongs to hub {extra['hub']!r}, not {self.hub!r}")
        if len(checkpoint.models) != 1 or checkpoint.layout != layout:
            raise UnusableCheckpoint("it holds another model than this run trains")
        if not (is_finite(checkpoint.models[0]) and is_finite(checkpoint.state)):
            raise UnusableCheckpoint("its model has a NaN or an infinity")
        _check_extra(checkpoint.round, extra)
        ahead = extra["row"]["time"] - time.time()
        if ahead > _CLOCK_MARGIN:
            raise UnusableCheckpoint(
                f"it is from the future, by {ahead / 3600:.0f} hours: this machine's clock was or "
                "is wrong, or the file is another machine's"
            )
        return checkpoint

    def _keep_aside(self) -> Path:
        """Rename the file; return its new path."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        aside = self.path.with_name(f"{self.path.name}.bad-{stamp}")
        number = 1
        while aside.exists():
            number += 1
            aside = self.path.with_name(f"{self.path.name}.bad-{stamp}-{number}")
        return self.path.rename(aside)


def _check_extra(round: int, extra: Mapping[str, Any]) -> None:
    """Raise `UnusableCheckpoint` unless the values beside the model are as a hub writes them."""
    try:
        row, weights = dict(extra["row"]), dict(extra["weights"])
        replies = [*row["arrived"], *row["absent"]]
        whole = (
            row["round"] == round >= 0
            and isinstance(row["model_bytes"], int)
            and _is_number(row["time"])
            and all(int(node) >= 0 and _is_number(weight) for node, weight in weights.items())
            and all(int(reply["node"]) >= 0 for reply in replies)
            and all(isinstance(reply["worker"], int | None) for reply in replies)
        )
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise UnusableCheckpoint("its row of the round, or its weights, cannot be read")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf
