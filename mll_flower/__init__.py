"""Multi-Level Local SGD for Flower.

Workers train locally; hubs average their own workers every tau slots and mix with their
neighbours over a graph every q such rounds. Castiglia, Das, Patterson, ICLR 2021.
"""

from mll_flower.mixing import check_mixing, load_mixing, mixing_matrix, zeta
from mll_flower.network import HubNetwork

__all__ = ["HubNetwork", "check_mixing", "load_mixing", "mixing_matrix", "zeta"]
__version__ = "0.1.0"
