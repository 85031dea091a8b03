"""Multi-Level Local SGD for Flower.

Workers train locally; hubs average their own workers every tau slots and mix with their
neighbours over a graph every q such rounds. Castiglia, Das, Patterson, ICLR 2021.
"""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from mll_flower.apps.multi_level import multi_level

__all__ = [
    "Absent",
    "Arrival",
    "DeadlineGrid",
    "GossipingHubStrategy",
    "HubNetwork",
    "HubRound",
    "MultiLevelResult",
    "MultiLevelStrategy",
    "RoundReport",
    "answer_identity",
    "budget",
    "check_mixing",
    "load_mixing",
    "mixing_matrix",
    "multi_level",
    "zeta",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what needs more of the library when it is first used, so that this import is light."""
    if name == "multi_level":
        from mll_flower.apps.multi_level import multi_level

        return multi_level
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
