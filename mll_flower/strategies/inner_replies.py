"""Replies as Flower's strategies demand them, so that no worker's metrics can end a hub's run.

Flower's strategies raise an error unless all replies have the same metrics under the same name,
among them the weight. Inside a hub, what is not the same everywhere is left out, and a reply
without a weight is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from mll_flower.grids.absences import Absence
from mll_flower.strategies.inner_strategy import weight_key
from mll_flower.strategies.metrics import metric_kinds, usable_weight
from mll_flower.strategies.reply_limits import ReplyLimits
from mll_flower.strategies.reports import Absent


def make_alike(
    strategy: Strategy, replies: Mapping[int, Message], limits: ReplyLimits
) -> dict[int, Absent]:
    """Make replies alike for an inner strategy; return who is absent for want of a weight.

    If no reply has a weight, nothing is changed: the strategy then says what it needs.

    Parameters
    ----------
    strategy : Strategy
        The inner strategy.
    replies : Mapping[int, Message]
        By node id; those that differ from the others are changed.
    limits : ReplyLimits
        How far a weight is believed, also if it is not the hub's own.
    """
    key = weight_key(strategy)
    if key is None:
        return {}
    absent: dict[int, Absent] = {}
    alike: dict[int, Message] = {}
    for node, reply in replies.items():
        weight = usable_weight(reply.content, key)
        if weight is None:
            why = f"no metric {key!r} that {type(strategy).__name__} can weigh the reply by"
            absent[node] = Absent(node, Absence.NO_WEIGHT, why)
        else:
            alike[node] = reply
            believed = limits.believed_weight(node, weight)
            if believed is not weight:
                next(iter(reply.content.metric_records.values()))[key] = believed
    if not alike:
        return {}
    names = {node: _names(reply.content) for node, reply in alike.items()}
    kinds = {node: metric_kinds(reply.content) for node, reply in alike.items()}
    common, first = set.intersection(*kinds.values()), next(iter(names.values()))
    different = sorted({name for name, _ in set.union(*kinds.values()) - common})
    if different:
        log(WARNING, "Metrics that are not the same in all replies are left out: %s", different)
    for node, reply in alike.items():
        if kinds[node] != common or names[node] != first:
            reply.content = _content(reply.content, first, {name for name, _ in common})
    return absent


def _names(content: RecordDict) -> tuple[str, str]:
    """Return the names of the one ArrayRecord and the one MetricRecord of a reply."""
    return next(iter(content.array_records)), next(iter(content.metric_records))


def _content(content: RecordDict, names: tuple[str, str], metrics: set[str]) -> RecordDict:
    """Return a reply's content with these names of its records, and these metrics alone."""
    arrays = next(iter(content.array_records.values()))
    given = next(iter(content.metric_records.values()))
    kept = MetricRecord({name: value for name, value in given.items() if name in metrics})
    return RecordDict({names[0]: arrays, names[1]: kept})
