"""`HubModelsStrategy`: the hubs' models from round to round, and the averaged model u.

It makes sure that u is the model that the strategy is given at the start of a round, whoever may
have changed it since the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from flwr.supercore import log
from numpy.typing import NDArray

from mll_flower.models.layout import Flat, Layout
from mll_flower.models.subnetwork_average import AbsentRule
from mll_flower.models.sums import sum_as_record
from mll_flower.strategies.arguments import check_whole
from mll_flower.strategies.corrections.corrector import Corrector
from mll_flower.strategies.given_model import LastModel, move_models, read_model, restored_model
from mll_flower.strategies.hub import Hub
from mll_flower.strategies.inner_strategy import InnerStrategy, make_inner_strategies
from mll_flower.strategies.reply_limits import ReplyLimits


class HubModelsStrategy(FedAvg):
    """What the strategies of this package know of their hubs' models.

    Parameters
    ----------
    hubs : int
        Number of hubs.
    absent, inner_strategy, weighted_by_key
        As in `mll_flower.MultiLevelStrategy`.
    weights_given : bool
        Whether the workers' weights are known, so that those in replies are ignored.
    limits : ReplyLimits
        How far the workers are believed.
    **fedavg
        Further arguments of Flower's ``FedAvg``.
    """

    def __init__(
        self,
        hubs: int,
        absent: AbsentRule,
        inner_strategy: InnerStrategy | None,
        weighted_by_key: str | None,
        weights_given: bool,
        limits: ReplyLimits,
        **fedavg: Any,
    ) -> None:
        super().__init__(weighted_by_key=weighted_by_key or "num-examples", **fedavg)
        self.number_of_hubs = hubs
        self.absent: AbsentRule = absent
        self.inner_strategy = inner_strategy
        self.limits = limits
        self.equal_weights = weighted_by_key is None  # of models and of metrics
        self.weights_in_replies = not self.equal_weights and not weights_given
        self.hubs: list[Hub] = []
        self.round = 0
        self._inner_strategies = make_inner_strategies(inner_strategy, hubs)
        self._restored_models: Sequence[ArrayRecord | Flat] | None = None
        self._resumed = False  # whether the hubs started from restored models
        self._last = LastModel()
        self._told_of_move = False
        self.corrector: Corrector | None = None

    def averaged_model(self) -> ArrayRecord:
        """Return u: the sum of the hubs' models, weighted by their shares b(d)."""
        layout, models = self.hubs[0].layout, [hub.model for hub in self.hubs]
        if len(models) == 1:
            return layout.record(models[0])
        return sum_as_record(layout, models, self.shares().tolist())

    def shares(self) -> NDArray[np.float64]:
        """Return b(d): each hub's share of all weights."""
        weights = np.array([hub.weight for hub in self.hubs])
        return np.asarray(weights / weights.sum())

    def hub_models(self, arrays: ArrayRecord | None = None) -> list[ArrayRecord]:
        """Return the present model of each hub, for example to save it; see `restore`.

        Parameters
        ----------
        arrays : ArrayRecord, optional
            The averaged model, as ``evaluate_fn`` is given it. If a wrapper or a subclass has
            changed what this strategy returned (it has added noise, say), the models are those
            with the change in them. Without it, they are what the strategy itself computed.
        """
        if not self.hubs:
            raise RuntimeError("the hubs have no models yet: start() makes them in its first round")
        models = self._models_for(arrays)
        layout = self.hubs[0].layout
        # Hubs that have the same model share one record.
        records = {key: layout.record(model) for key, model in {id(m): m for m in models}.items()}
        return [records[id(model)] for model in models]

    def correction_state(self) -> dict[str, NDArray[np.generic]]:
        """Return what corrections have learned, as arrays by name, to save it; see `restore`."""
        return self.corrector.state() if self.corrector is not None else {}

    def restore(
        self,
        round: int,
        models: Sequence[ArrayRecord | Flat],
        correction_state: Mapping[str, NDArray[np.generic]] | None = None,
    ) -> None:
        """Continue an earlier run with the next call of ``start``.

        The hubs then start from these models, and not from ``initial_arrays``, which must have
        the same names, shapes and dtypes.

        Parameters
        ----------
        round : int
            The last round of that run: its ``strategy.round``.
        models : Sequence[ArrayRecord]
            The hubs' models after it, from `hub_models`. (The flat models in the checkpoints of
            this project will do, too.)
        correction_state : Mapping, optional
            What corrections had learned by then, from `correction_state`, if any was on.
        """
        check_whole("round", round, 0)
        if len(models) != self.number_of_hubs:
            raise ValueError(f"{len(models)} models for {self.number_of_hubs} hubs: give one each")
        self.round = round
        self._restored_models = list(models)
        if self.corrector is not None:
            self.corrector.restore(correction_state or {})

    def initialize_parameters(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse Flower's legacy API, whose servers and workflows (SecAgg+) call this first."""
        raise TypeError(
            f"{type(self).__name__} is a strategy of flwr.serverapp: call strategy.start(grid=...) "
            "in the @app.main() function of a ServerApp. The legacy API "
            "(flwr.server.ServerApp(server_fn=...), start_server, DefaultWorkflow) and secure "
            "aggregation (SecAgg, SecAgg+), which needs it, are not supported"
        )

    def _adopt(self, arrays: ArrayRecord, first: bool) -> None:
        """Start a round from a model: at the ``first`` of a run an initial one, or else u."""
        if not self.hubs:
            self._make_hubs(arrays)
        elif self._restored_models is not None:
            for hub, restored in zip(self.hubs, self._restored_models, strict=True):
                hub.model = restored_model(hub.layout, restored)
        elif not self._last.is_same(arrays):
            layout = self.hubs[0].layout
            if first:
                models = [read_model(layout, arrays, "initial_arrays")] * len(self.hubs)
                if self.corrector is not None:
                    self.corrector.reset()
            else:
                models = self._models_for(arrays)
                self._tell_of_move()
            for hub, model in zip(self.hubs, models, strict=True):
                hub.model = model
        self._resumed = self._resumed or self._restored_models is not None
        self._restored_models = None
        self._last.remember(arrays)

    def _models_for(self, arrays: ArrayRecord | None) -> list[Flat]:
        """Return the hubs' models, all moved by the difference that makes ``arrays`` their u."""
        models = [hub.model for hub in self.hubs]
        if arrays is None or self._last.is_same(arrays):
            return models
        layout = self.hubs[0].layout
        given = read_model(layout, arrays, "the arrays that the strategy is given")
        return move_models(models, self._last.flat(layout), given)

    def _tell_of_move(self) -> None:
        if not self._told_of_move:
            log(
                WARNING,
                "Round %d starts from other arrays than aggregate_train returned (a wrapper or a "
                "subclass has changed them): all hubs are moved by the difference, in this round "
                "and in later ones",
                self.round + 1,
            )
        self._told_of_move = True

    def _make_hubs(self, arrays: ArrayRecord) -> None:
        layout = Layout.of(arrays)
        models = [read_model(layout, arrays, "initial_arrays")] * self.number_of_hubs
        if self._restored_models is not None:
            models = [restored_model(layout, model) for model in self._restored_models]
        key = self.weighted_by_key if self.weights_in_replies else None
        for model, inner_strategy in zip(models, self._inner_strategies, strict=True):
            self.hubs.append(Hub(layout, model, key, self.absent, inner_strategy, self.limits))
