"""Corrections: settings that take Multi-Level Local SGD past the paper, all off by default.

The paper assumes that all workers draw from one distribution. Where sites have different data and
different speeds, two things go wrong. Fast workers pull the model towards their own data:
averaged over the coins, u moves along the gradient of sum of a(i) p(i) F_i / P, with
P = sum of a(i) p(i), and not of F = sum of a(i) F_i. And between two mixings every hub drifts
towards the data of its own workers.

- ``rate = "inverse"`` makes a worker's steps longer by P / p(i), so that all workers count by their
  shares again.
- ``hub = "exact-diffusion"`` learns, per hub, how its gradient differs from that of the network
  (Y(d)), and takes the difference out. (After exact diffusion: Yuan, Ying, Zhao, Sayed 2019.)
- ``worker = "mtgc"`` does the same within a hub, per worker. (After multi-timescale gradient
  correction: Fang, Han, Chen, Wang, Brinton 2024; with one hub it is SCAFFOLD.)
- ``outer = "slowmo"`` takes a step with momentum at each mixing. (Wang, Tantia, Ballas, Rabbat
  2020.)
- ``precision = "half"`` sends models between hubs in half precision, without moving u.

`mll_flower.algorithm.corrected_reference` is the algorithm with all of them, to be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mll_flower.algorithm.network import HubNetwork

FloatArray = NDArray[np.float64]

RATE_CORRECTIONS = ("none", "inverse")
HUB_CORRECTIONS = ("none", "exact-diffusion")
WORKER_CORRECTIONS = ("none", "mtgc")
OUTER_STEPS = ("none", "slowmo")
PRECISIONS = ("full", "half")

SMALLEST_EIGENVALUE = -1 / 3
"""Exact diffusion diverges if H has an eigenvalue below this."""


def _setting(key: str, default: Any, help: str, choices: tuple[str, ...] = ()) -> Any:
    """Make a field, with the name that it has in run configs and network files, and its help."""
    return field(default=default, metadata={"key": key, "help": help, "choices": choices})


@dataclass(frozen=True)
class Corrections:
    """Which corrections a run uses; the default is none, which is the paper's algorithm.

    This is the one description of these settings: keys of the run config, keys of the network
    file and their help are made from its fields (see `SETTINGS`).

    Parameters
    ----------
    rate : {"none", "inverse"}
        Whether steps are longer by P / p(i).
    rate_cap : float
        Largest factor P / p(i). A worker that would need a larger one counts for less than its
        share.
    mean_rate : float
        P, where it is to be given; 0 takes it from the network's rates.
    hub : {"none", "exact-diffusion"}
        Whether hubs correct their drift from one another.
    worker : {"none", "mtgc"}
        Whether the workers of a hub correct their drift from one another.
    outer : {"none", "slowmo"}
        Whether a mixing ends with a step of its own.
    outer_rate, outer_momentum : float
        alpha and beta of that step.
    precision : {"full", "half"}
        Precision of the models that hubs send to one another.
    """

    rate: str = _setting(
        "rate-correction",
        "none",
        "Whether workers count by their shares whatever their rates: none, or inverse (steps are "
        "longer by P / p(i), the mean rate over the worker's own).",
        RATE_CORRECTIONS,
    )
    rate_cap: float = _setting("rate-cap", 100.0, "Largest P / p(i) of rate-correction.")
    mean_rate: float = _setting(
        "mean-rate",
        0.0,
        "P of rate-correction; 0: that of the network's rates. Deployed hubs, none of which sees "
        "all workers, must be given it.",
    )
    hub: str = _setting(
        "hub-correction",
        "none",
        "Whether hubs take out their drift from one another: none or exact-diffusion.",
        HUB_CORRECTIONS,
    )
    worker: str = _setting(
        "worker-correction",
        "none",
        "Whether a hub's workers take out their drift from one another: none or mtgc (SCAFFOLD, "
        "if there is one hub).",
        WORKER_CORRECTIONS,
    )
    outer: str = _setting(
        "outer", "none", "Step at each mixing: none or slowmo (with momentum).", OUTER_STEPS
    )
    outer_rate: float = _setting("outer-rate", 1.0, "Step size of outer.")
    outer_momentum: float = _setting("outer-momentum", 0.5, "Momentum of outer.")
    precision: str = _setting(
        "gossip-precision",
        "full",
        "Precision of models between hubs: full, or half (16 bits; u stays what it is).",
        PRECISIONS,
    )

    @classmethod
    def from_keys(cls, values: Mapping[str, Any]) -> Corrections:
        """Make the settings from keys such as ``rate-correction``; others are ignored."""
        return cls(**{s.name: values[key] for key, s in SETTINGS.items() if key in values})

    def to_keys(self) -> dict[str, Any]:
        """Return all values under the keys of run configs and network files."""
        return {key: getattr(self, setting.name) for key, setting in SETTINGS.items()}

    def __post_init__(self) -> None:
        for key, setting in SETTINGS.items():
            value, choices = getattr(self, setting.name), setting.metadata["choices"]
            if choices and value not in choices:
                raise ValueError(f"{key}={value!r} is not known: use {', '.join(choices)}")
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not choices and not number:
                raise ValueError(f"{key}={value!r}: give a number")
        if not 1 <= self.rate_cap < math.inf:
            raise ValueError(f"rate-cap={self.rate_cap}: must be a finite number of at least 1")
        if not 0 <= self.mean_rate <= 1:
            raise ValueError(
                f"mean-rate={self.mean_rate}: must be above 0 and at most 1, or 0 to compute it"
            )
        if not 0 < self.outer_rate < math.inf:
            raise ValueError(f"outer-rate={self.outer_rate}: must be a positive, finite number")
        if not 0 <= self.outer_momentum < 1:
            raise ValueError(f"outer-momentum={self.outer_momentum}: must be from 0 to below 1")

    @property
    def any(self) -> bool:
        """Whether any correction is on."""
        names = (self.rate, self.hub, self.worker, self.outer)
        return any(name != "none" for name in names) or self.precision != "full"


SETTINGS: dict[str, Field[Any]] = {
    setting.metadata["key"]: setting for setting in fields(Corrections)
}
"""Key -> field of `Corrections`, with its default, help and choices."""


def step_factors(network: HubNetwork, corrections: Corrections) -> FloatArray:
    """Return the factor on each worker's step size: P / p(i), at most the cap, or 1."""
    if corrections.rate == "none":
        return np.ones(network.workers)
    P = mean_rate(network, corrections)
    return np.minimum(P / network.p, corrections.rate_cap)


def mean_rate(network: HubNetwork, corrections: Corrections | None = None) -> float:
    """Return P: the one that is given, or sum of a(i) p(i), the workers' mean rate."""
    given = 0.0 if corrections is None else corrections.mean_rate
    return given or float(network.a @ network.p)


def participation(p: ArrayLike, tau: int) -> FloatArray:
    """Return pi(i) = 1 - (1 - p(i))^tau: the probability of at least one step in a round."""
    rates = np.asarray(p, dtype=np.float64)
    # Through logarithms, so that tiny rates keep their digits.
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(tau * np.log1p(-rates)))


def safe_for_exact_diffusion(H: ArrayLike) -> FloatArray:
    """Return H, or (I + H) / 2 if H has an eigenvalue below -1/3.

    Exact diffusion with H has, per eigenvalue of H, a mode that grows if the eigenvalue is below
    -1/3. (I + H) / 2 meets the same conditions as H, and its eigenvalues are not negative.
    """
    matrix = np.asarray(H, dtype=np.float64)
    if smallest_eigenvalue(matrix) >= SMALLEST_EIGENVALUE - 1e-12:
        return matrix
    return (np.eye(len(matrix)) + matrix) / 2


def smallest_eigenvalue(H: FloatArray) -> float:
    """Return the smallest eigenvalue of an H that meets detailed balance."""
    # Detailed balance makes H similar to the symmetric matrix of these geometric means.
    return float(np.linalg.eigvalsh(np.sqrt(H * H.T))[0])
