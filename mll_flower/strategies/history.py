"""What a run has done so far: metrics of each hub, and whether any model has come of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from logging import ERROR

from flwr.supercore import log

from mll_flower.strategies.reports import Absent, HubMetrics, HubRound


@dataclass
class History:
    """The rounds of one run."""

    train_metrics: dict[int, HubMetrics] = field(default_factory=dict)
    evaluate_metrics: dict[int, HubMetrics] = field(default_factory=dict)
    evaluation: HubMetrics = field(default_factory=list)
    """The list in the `RoundReport` of the present round, which its evaluation fills in."""
    rounds: int = 0
    useful: int = 0
    """Rounds in which a hub got a new model, from its workers or from its neighbours."""
    absences: list[Absent] = field(default_factory=list)
    """Of the last round in which no hub got a new model from its workers."""

    def add_round(
        self, number: int, results: Sequence[HubRound], trained: bool, mixed: bool
    ) -> HubMetrics:
        """Count a round; log an error if no hub got a new model from its workers.

        Parameters
        ----------
        number : int
            The number of the round.
        results : Sequence[HubRound]
            Who arrived and who was absent, one entry per hub.
        trained : bool
            Whether a hub got a new model from its workers.
        mixed : bool
            Whether the hub took in a model of a neighbour, if there is one hub only.

        Returns
        -------
        list
            Where the evaluation after this round will be written.
        """
        self.rounds += 1
        self.useful += trained or mixed
        if not trained:
            self.absences = [absent for result in results for absent in result.absent]
            log(ERROR, "Round %d: no hub got a new model. %s", number, explain(self.absences))
        self.evaluation = []
        return self.evaluation

    def check(self) -> None:
        """Raise RuntimeError if the run has changed no model, although it has played rounds."""
        if self.rounds and not self.useful:
            raise RuntimeError(
                f"the model is the one that training started from: in none of the {self.rounds} "
                f"rounds did any hub get a new model. {explain(self.absences)}"
            )


def explain(absences: Sequence[Absent]) -> str:
    """Return why nobody's model could be used, as a sentence with an example."""
    if not absences:
        return "Nobody was asked, or those who answered gave nothing to average"
    causes = ", ".join(
        f"{count} {cause}" for cause, count in Counter(a.cause for a in absences).items()
    )
    first = absences[0]
    text = f"Absent workers: {causes}. Node {first.node}: {first.why[-500:]}"
    if any("secagg" in absent.why.lower() for absent in absences):
        text += (
            ". Secure aggregation (secaggplus_mod) is not supported: hubs average plain models; "
            "take the mod out of the ClientApp"
        )
    return text
