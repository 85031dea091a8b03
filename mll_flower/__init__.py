"""Multi-Level Local SGD for Flower.

Workers train locally; hubs average their own workers every tau slots and mix with their
neighbours over a graph every q such rounds. Castiglia, Das, Patterson, ICLR 2021.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mll_flower.algorithm.corrections import Corrections
from mll_flower.algorithm.mixing import check_mixing, load_mixing, mixing_matrix, zeta
from mll_flower.algorithm.network import HubNetwork
from mll_flower.grids.deadline import DeadlineGrid
from mll_flower.grids.node_identity import answer_identity
from mll_flower.strategies.gossiping import GossipingHubStrategy
from mll_flower.strategies.multi_level import MultiLevelStrategy
from mll_flower.strategies.reports import (
    Absent,
    Arrival,
    HubRound,
    MultiLevelResult,
    RoundReport,
)
from mll_flower.training.budgets import budget
from mll_flower.training.worker_correction import WorkerCorrection, worker_correction

if TYPE_CHECKING:
    from mll_flower.apps.load_run import load_run
    from mll_flower.apps.multi_level import multi_level
    from mll_flower.apps.simulate import simulate
    from mll_flower.results.run_result import RunResult
    from mll_flower.results.tensorboard import TensorBoardWriter

__all__ = [
    "Absent",
    "Arrival",
    "Corrections",
    "DeadlineGrid",
    "GossipingHubStrategy",
    "HubNetwork",
    "HubRound",
    "MultiLevelResult",
    "MultiLevelStrategy",
    "RoundReport",
    "RunResult",
    "TensorBoardWriter",
    "WorkerCorrection",
    "answer_identity",
    "budget",
    "check_mixing",
    "load_mixing",
    "load_run",
    "mixing_matrix",
    "multi_level",
    "simulate",
    "worker_correction",
    "zeta",
]
__version__ = "0.1.0"

# Loaded when they are first used: a Flower app that imports the library needs few of them.
_LAZY = {
    "RunResult": "mll_flower.results.run_result",
    "TensorBoardWriter": "mll_flower.results.tensorboard",
    "load_run": "mll_flower.apps.load_run",
    "multi_level": "mll_flower.apps.multi_level",
    "simulate": "mll_flower.apps.simulate",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
