"""Multi-Level Local SGD for Flower.

Workers train locally; hubs average their own workers every tau slots and mix with their
neighbours over a graph every q such rounds. Castiglia, Das, Patterson, ICLR 2021.
"""

from mll_flower.collector import DeadlineGrid
from mll_flower.hub_strategy import HubStrategy
from mll_flower.identity import answer_identity
from mll_flower.mixing import check_mixing, load_mixing, mixing_matrix, zeta
from mll_flower.network import HubNetwork
from mll_flower.strategy import MultiLevelStrategy
from mll_flower.strategy_base import RoundReport

__all__ = [
    "DeadlineGrid",
    "HubNetwork",
    "HubStrategy",
    "MultiLevelStrategy",
    "RoundReport",
    "answer_identity",
    "check_mixing",
    "load_mixing",
    "mixing_matrix",
    "zeta",
]
__version__ = "0.1.0"
