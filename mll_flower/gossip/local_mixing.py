"""A hub mixes its model with those of its neighbours: y(d) = sum over j of H[j, d] z(j).

z(j) is hub j's average of its workers' models, y(d) the new model of hub d. No hub needs to know
the whole network. With the rule `metropolis`, column d of H depends only on W(j), the total weight
of hub j's workers, and on deg(j), its number of neighbours, for d and its neighbours. Neighbours
send both with their models:

    H[j, d] = min(W(j) / (deg(j) + 1), W(d) / (deg(d) + 1)) / W(d),

with the rest on the diagonal. W(d) H[j, d] = W(j) H[d, j], so mixing keeps the average of all hubs'
models by their weights, whichever links are in use.

A hub none of whose workers has reported its weight yet has W(d) = 0. It takes what the formula
tends to, H[j, d] = 1 / (deg(d) + 1), and gives nothing, H[d, j] = 0: its model, which nobody has
trained, counts nowhere until it has a weight. Two such hubs share as if their weights were equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mll_flower.gossip.results import Exchange
from mll_flower.gossip.snapshot import Array, Snapshot
from mll_flower.models.layout import Layout
from mll_flower.models.sums import sum_records


def local_metropolis(
    own: Snapshot, others: Sequence[Snapshot], positive: bool = False
) -> dict[str, float]:
    """Return column d of the metropolis H, computed from snapshots.

    Parameters
    ----------
    own : Snapshot
        Hub d's own snapshot.
    others : Sequence[Snapshot]
        Snapshots of the neighbours that take part. The weight of a neighbour that is left out
        goes to the diagonal.
    positive : bool
        Whether H must have no eigenvalue below -1/3. The weight of a link is then halved if one
        of its ends has more than two neighbours: every hub keeps at least a third of its own
        model, which is enough (the theorem of Gershgorin), and both ends know both degrees.

    Returns
    -------
    dict[str, float]
        H[j, d] by hub id j, for d itself and each of the others; they sum to 1.
    """
    if len(others) > own.degree:
        raise ValueError(
            f"hub {own.hub!r} has degree {own.degree} but {len(others)} neighbours take part; "
            "the degree in a snapshot must be the hub's degree in the hub graph"
        )
    column = {other.hub: _link_weight(own, other) for other in others}
    if positive:
        column |= {o.hub: column[o.hub] / 2 for o in others if max(o.degree, own.degree) > 2}
    column[own.hub] = 1.0 - math.fsum(column.values())
    return column


def _link_weight(own: Snapshot, other: Snapshot) -> float:
    """Return H[j, d] of the metropolis H for hub d and its neighbour j."""
    if own.weight == 0.0:
        return 1.0 / ((own.degree if other.weight else max(own.degree, other.degree)) + 1)
    mine, theirs = (s.weight / (s.degree + 1) for s in (own, other))
    return min(theirs, mine) / own.weight


def mix_with_neighbours(
    own: Snapshot, exchange: Exchange, mixing_column: Mapping[str, float] | None = None
) -> tuple[dict[str, Array], dict[str, float]]:
    """Mix a hub's model with those of the neighbours that arrived.

    Parameters
    ----------
    own : Snapshot
        The hub's own z(d).
    exchange : Exchange
        What `Gossip.exchange` returned for the same mixing.
    mixing_column : Mapping[str, float] | None
        Column d of a given H, by hub id; None uses `local_metropolis`. The weight of a silent
        neighbour goes to the diagonal.

    Returns
    -------
    tuple[dict[str, numpy.ndarray], dict[str, float]]
        y(d) with the shapes and dtypes of z(d), and the weights used, by hub id.
    """
    column = mixing_weights(own, exchange, mixing_column)
    snapshots = {own.hub: own, **exchange.arrived}
    # Sum in the order of hub ids, not of arrival: the same snapshots then give the same bits.
    hubs = sorted(column)
    factors = [column[hub] for hub in hubs]
    layout = Layout.of(own.arrays)
    mixed = sum_records(layout, [snapshots[hub].arrays for hub in hubs], factors)
    return layout.arrays(mixed), {hub: column[hub] for hub in hubs}


def mixing_weights(
    own: Snapshot,
    exchange: Exchange,
    mixing_column: Mapping[str, float] | None = None,
    positive: bool = False,
) -> dict[str, float]:
    """Return the weights with which a hub mixes, by hub id.

    Parameters
    ----------
    own, exchange, mixing_column
        As in `mix_with_neighbours`.
    positive : bool
        As in `local_metropolis`; a given H must be so itself.
    """
    if mixing_column is None:
        return local_metropolis(own, list(exchange.arrived.values()), positive)
    return _without_silent(own.hub, exchange, mixing_column)


def _without_silent(hub: str, exchange: Exchange, column: Mapping[str, float]) -> dict[str, float]:
    """Check a given column and move the weights of silent neighbours to the diagonal."""
    known = {hub, *exchange.arrived, *exchange.silent}
    stray = {j: h for j, h in column.items() if h != 0.0 and j not in known}
    if stray:
        raise ValueError(
            f"the mixing column of hub {hub!r} gives weight to {stray}, which are not its "
            "neighbours; H must be zero off the graph's edges"
        )
    total = math.fsum(column.values())
    if not math.isclose(total, 1.0, rel_tol=0.0, abs_tol=1e-9):
        raise ValueError(f"the mixing column of hub {hub!r} sums to {total!r}; it must sum to 1")
    used = {j: float(column.get(j, 0.0)) for j in exchange.arrived}
    used[hub] = 1.0 - math.fsum(used.values())
    return used
