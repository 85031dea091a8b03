"""From the settings to a `Corrector`: what is impossible together is refused before a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mll_flower.algorithm.corrections import Corrections
from mll_flower.algorithm.network import HubNetwork
from mll_flower.models.subnetwork_average import AbsentRule
from mll_flower.strategies.arguments import check_function, check_kind
from mll_flower.strategies.corrections.corrector import Corrector
from mll_flower.strategies.corrections.rates import GivenRates, MeasuredRates, Rates
from mll_flower.strategies.inner_strategy import InnerStrategy

Kind = TypeVar("Kind", bound=Corrector)


def make_corrector(
    corrections: Corrections | None,
    *,
    tau: int | None,
    q: int,
    absent: AbsentRule,
    inner_strategy: InnerStrategy | None,
    step_size: Callable[[int], float] | None,
    worker_key: Callable[[int], int],
    network: HubNetwork | None = None,
    kind: type[Kind] = Corrector,  # type: ignore[assignment]
) -> Kind | None:
    """Return what carries out the corrections of a strategy; None if all are off.

    Parameters
    ----------
    corrections : Corrections, optional
        The settings.
    tau, q, absent, inner_strategy
        As in `mll_flower.MultiLevelStrategy`.
    step_size, worker_key
        As in `Corrector`.
    network : HubNetwork, optional
        Whose rates are used, if one of them is below 1.
    kind : type
        The class of the corrector.
    """
    if corrections is not None:
        check_kind("corrections", corrections, Corrections, "mll_flower.Corrections(...)")
    check_function("step_size", step_size, "a function of a round")
    if corrections is None or not corrections.any:
        return None
    check_together(corrections, tau, absent, inner_strategy)
    rates: Rates | None = None
    if corrections.rate == "inverse":
        assert tau is not None
        if network is not None and (network.p < 1).any():
            rates = GivenRates(network, corrections, tau)
        else:
            rates = MeasuredRates(tau, corrections.mean_rate)
    return kind(corrections, tau, q, rates, step_size, worker_key)


def check_gossip(corrections: Corrections | None) -> None:
    """Raise ValueError if hubs that see only their own workers cannot carry out corrections."""
    if corrections is not None and corrections.rate != "none" and not corrections.mean_rate:
        raise ValueError(
            f"rate-correction={corrections.rate!r} at hubs that gossip needs mean-rate, the mean "
            "rate of all workers of the network: no hub sees them all, and all hubs must use one "
            "number"
        )


def check_together(
    corrections: Corrections,
    tau: int | None,
    absent: AbsentRule,
    inner_strategy: object,
) -> None:
    """Raise ValueError if corrections cannot work with the other settings of a strategy."""
    for key, on in (
        ("rate-correction", corrections.rate != "none"),
        ("worker-correction", corrections.worker != "none"),
    ):
        if on and tau is None:
            raise ValueError(
                f"{key} without tau: give tau, the number of slots in a round, and let the "
                "ClientApp report its `steps`"
            )
        if on and inner_strategy is not None:
            raise ValueError(
                f"{key} with inner_strategy: it needs the weighted average of the replies, which "
                "an inner strategy replaces; leave one of them out"
            )
    if corrections.rate != "none" and absent == "renormalise":
        raise ValueError(
            "rate-correction with absent='renormalise': a hub that makes up for rates counts "
            "absent workers as ones that took no step; use absent='keep'"
        )
