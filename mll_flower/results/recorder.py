"""Writes the results of a simulated run: metrics as CSV and JSON, the model, the progress.

The file names are those of `mll_flower.results.files`; `mll_flower.results.runs` reads them back.
"""

from __future__ import annotations

import csv
import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from logging import WARNING
from pathlib import Path
from typing import IO, Any

import numpy as np
from flwr.app import Message
from flwr.supercore import log
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from mll_flower.algorithm.corrections import safe_for_exact_diffusion
from mll_flower.algorithm.mixing import mixing_matrix, zeta
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import Round
from mll_flower.config import RunConfig
from mll_flower.grids.absences import Absence
from mll_flower.models.corrections import half
from mll_flower.models.layout import Flat
from mll_flower.results import files
from mll_flower.results.events import ABSENT, HUBS, EventWriter, rounded
from mll_flower.results.output_folder import claim_output, new_output, remove_end
from mll_flower.results.progress import ProgressWriter
from mll_flower.strategies.reports import Absent, RoundReport
from mll_flower.tasks.saved_model import model_metadata
from mll_flower.timing.clock_file import load_clock
from mll_flower.training.engine import Engine

Record = dict[str, Any]
"""A row of metrics.csv, or an evaluation of metrics.json: names and plain values."""

Hook = Callable[[Record], None]
"""What is called with each record, once it is written."""


_EXTENSION = (
    " (a run can be extended by more slots, unless lr-milestones, which are fractions of the run, "
    "depend on them)"
)


class Recorder:
    """Writes a run's results while it goes on.

    Parameters
    ----------
    config : RunConfig
        The run.
    network : HubNetwork
        Its network, with the weights that are used.
    engine : Engine
        Knows the model's layout and the data's label.
    schedule : Sequence[Round]
        All rounds of the run.
    hosted : callable
        Maps a node to the workers that it hosts.
    on_round, on_evaluation : sequence of callable
        Called with the record of each hub after each message, and of each evaluation.
    lines : bool
        Whether to print the progress, a line now and then.
    """

    def __init__(
        self,
        config: RunConfig,
        network: HubNetwork,
        engine: Engine,
        schedule: Sequence[Round],
        hosted: Callable[[int], list[int]],
        on_round: Sequence[Hook] = (),
        on_evaluation: Sequence[Hook] = (),
        lines: bool = True,
    ) -> None:
        self.config, self.network, self.engine, self.schedule = config, network, engine, schedule
        self.hosted = hosted
        self.metric = engine.task.metric_name
        self.on_round, self.on_evaluation = list(on_round), list(on_evaluation)
        self.lines = lines
        self.model_bytes = sum(v.nbytes for v in engine.initial().values())
        self.steps = np.zeros(network.workers, dtype=np.int64)
        self.clock = load_clock(config.clock) if config.clock else None
        # What the links carry may be larger than the stand-in that is trained.
        self.sent_bytes = (self.clock.model_bytes if self.clock else None) or self.model_bytes
        self.gossip_bytes = self.sent_bytes
        if config.gossip_precision == "half":
            halves = sum(v.nbytes for v in half(engine.initial()).values())
            self.gossip_bytes = self.sent_bytes * halves // self.model_bytes
        self.absences: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.hub_models: list[dict[str, Any]] = []
        self.hub_evaluations: list[dict[str, Any]] = []
        self.bytes = 0
        self.rounds_done = 0
        self._started = time.monotonic()
        self._file: IO[str] | None = None
        # What a resumed run takes over from the run before it.
        self._earlier_seconds = 0.0
        self._earlier_rows: list[dict[str, Any]] = []

    def resume(self, source: str, state: dict[str, Any]) -> None:
        """Take over what an earlier run had recorded when its checkpoint was written.

        Parameters
        ----------
        source : str
            The earlier run's output folder, or the checkpoint in it.
        state : dict
            What its `state` returned for that checkpoint.
        """
        ours = self.config.to_run_config()
        # An older checkpoint lacks newer keys, whose defaults are what it was made with; before
        # there was a choice, the device was the CPU.
        theirs = {**RunConfig().to_run_config(), "device": "cpu", **state["config"]}
        # These keys change no number of the run, so they may differ.
        free = {"resume", "output", "checkpoint-every", "data-dir", "code-dir", "tensorboard"}
        free |= {"reply-timeout", "node-timeout"}
        if theirs["slots"] < ours["slots"] and not ours["lr-milestones"]:
            free.add("slots")  # the run is extended; the rounds that it has stay as they are
        for key in ours:
            if key not in free and ours[key] != theirs.get(key):
                raise ValueError(
                    f"resume={source!r} was made with {key}={theirs.get(key)!r}, this run has "
                    f"{ours[key]!r}: use the same config" + (_EXTENSION if key == "slots" else "")
                )
        self.steps = np.array(state["steps"], dtype=np.int64)
        self.absences, self.evaluations = state["absences"], state["evaluations"]
        self.hub_evaluations = state.get("hub_evaluations", [])  # older checkpoints have none
        self.bytes, self._earlier_seconds = state["bytes"], state["seconds"]
        folder = Path(source) if Path(source).is_dir() else Path(source).parent
        if not (folder / files.ROWS).is_file():
            raise ValueError(
                f"resume={source!r}: {files.ROWS} is not beside the checkpoint; resume from the "
                "output folder of that run"
            )
        with (folder / files.ROWS).open(newline="") as file:
            self._earlier_rows = list(csv.DictReader(file))[: state["rows"]]
        self.rounds_done = max((int(row["round"]) for row in self._earlier_rows), default=0)

    def state(self) -> dict[str, Any]:
        """Return what `resume` needs besides the rows, and make sure that these are on disk."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        return {
            "config": self.config.to_run_config(),
            "steps": self.steps.tolist(),
            "absences": self.absences,
            "evaluations": self.evaluations,
            "hub_evaluations": self.hub_evaluations,
            "bytes": self.bytes,
            "seconds": self._seconds(),
            "rows": self._rows,
        }

    def start(self) -> None:
        """Claim the output folder and create its first files."""
        config = self.config.to_run_config()
        output = self.config.output
        self.output = Path(output).absolute() if output else new_output()
        claim_output(self.output, config, self.config.resume, strict=False)
        remove_end(self.output)
        files.write_json(self.output / files.CONFIG, config)
        files.write_json(self.output / files.UNFINISHED, self._report(steps_known=False))
        self._progress = ProgressWriter(self.output, self.schedule[-1].slot, self.lines)
        self._events = EventWriter(self.output)
        for kind, earlier in ((ABSENT, self.absences), (HUBS, self.hub_evaluations)):
            for event in earlier:
                self._events.write(kind, event)
        self._file = (self.output / files.ROWS).open("w", newline="")
        self._writer = csv.DictWriter(self._file, files.columns(self.metric))
        self._writer.writeheader()
        self._writer.writerows(self._earlier_rows)
        # Opening the file has emptied it; a run resumed in its own folder had these rows there.
        self._flush()
        self._rows = len(self._earlier_rows)
        self._started = time.monotonic()

    def round(self, report: RoundReport, rounds: Sequence[Round]) -> None:
        """Record the rounds that one message covered."""
        edges, mixings = self.network.graph.number_of_edges(), sum(r.mixes for r in rounds)
        # Down and up; with worker correction, a worker's shift goes down with the model.
        ways = 2 if self.config.worker_correction == "none" else 3
        self.bytes += ways * self.network.workers * len(rounds) * self.sent_bytes
        self.bytes += 2 * edges * mixings * self.gossip_bytes
        self.rounds_done = rounds[-1].number
        records: list[Record] = []
        for d, hub in enumerate(report.hubs):
            steps, loss, absent = 0, 0.0, 0
            for arrival in hub.arrived:
                metrics: Any = arrival.metrics
                for worker, taken, mean in zip(
                    metrics["workers"], metrics["steps"], metrics["losses"], strict=True
                ):
                    self.steps[worker] += taken
                    steps += taken
                    loss += taken * mean if taken else 0.0
                absent += self._record_absent_in_node(d, arrival.message)
            for missing in hub.absent:
                absent += self._record_absent_node(d, missing, rounds)
            mean_loss = loss / steps if steps else math.nan
            record: Record = {
                "slot": int(rounds[-1].end[d]),
                "round": rounds[-1].number,
                "hub": d,
                "steps": steps,
                "loss": float(f"{mean_loss:.8g}"),
                "distance": float(f"{report.spread[d]:.8g}"),
                "bytes": self.bytes,
                "absent": absent,
                "seconds": round(self._seconds_at(rounds, d), 3),
            }
            self._write_row(**record)
            records.append(record)
        self._progress.values["slot"] = rounds[-1].slot
        self._write_progress()
        # At the end: a hook that raises ends the run, and must not cut a round in two.
        for record in records:
            for hook in self.on_round:
                hook(record)

    def _record_absent_in_node(self, hub: int, reply: Message) -> int:
        """Record workers that failed inside a node that replied; return the number of absences."""
        absent: Any = reply.content.config_records["absent"]
        for worker, number, why in zip(
            absent["workers"], absent["rounds"], absent["reasons"], strict=True
        ):
            # The strategy sees only the node, so it has not logged the node's workers.
            log(WARNING, "Round %d, hub %d: worker %d is absent: %s", number, hub, worker, why)
            self._record_absence(number, hub, worker, Absence.RAISED, why)
        return len(absent["workers"])

    def _record_absent_node(self, hub: int, missing: Absent, rounds: Sequence[Round]) -> int:
        """Record the workers of a node that did not reply; return the number of absences."""
        workers = self.hosted(missing.node)
        if self.config.pool == "hub":
            span = f"{rounds[0].number} to {rounds[-1].number}"
            log(WARNING, "Rounds %s, hub %d: its workers %s are absent", span, hub, workers)
        for r in rounds:
            for worker in workers:
                self._record_absence(r.number, hub, worker, missing.cause, missing.why[-300:])
        return len(rounds) * len(workers)

    def evaluation(
        self,
        rounds: Sequence[Round],
        train_loss: float,
        test_loss: float,
        metric: float,
        seconds: float,
    ) -> None:
        """Record an evaluation of the averaged model.

        Parameters
        ----------
        rounds : Sequence[Round]
            The rounds of the message before it; empty for the model at the start.
        train_loss, test_loss, metric : float
            What was measured; the metric is the task's, such as the accuracy.
        seconds : float
            Time that the evaluation took.
        """
        slot, number = (rounds[-1].slot, rounds[-1].number) if rounds else (0, 0)
        self._write_row(
            slot=slot,
            round=number,
            hub="all",
            steps=int(self.steps.sum()),
            loss=f"{train_loss:.8g}",
            test_loss=f"{test_loss:.8g}",
            bytes=self.bytes,
            absent=len(self.absences),
            seconds=f"{self._seconds_at(rounds):.3f}",
            **{self.metric: f"{metric:.6g}"},
        )
        self.evaluations.append(
            {
                "slot": slot,
                "round": number,
                "loss": train_loss,
                "test_loss": test_loss,
                self.metric: metric,
                "steps": int(self.steps.sum()),
                "bytes": self.bytes,
                "seconds": self._seconds_at(rounds),
                "evaluation_seconds": seconds,
            }
        )
        self._flush()
        named = {} if self.metric == "accuracy" else {"metric": self.metric}
        self._progress.evaluated(slot, {"loss": train_loss, self.metric: metric, **named})

    def evaluation_of_hub(self, hub: int, test_loss: float, metric: float, rows: int) -> None:
        """Record what one hub's own model does on so many test rows, at the end of the run."""
        measured = {"hub": hub, "test_loss": test_loss, self.metric: metric, "rows": rows}
        self.hub_models.append(measured)

    def evaluation_of_hubs(self, metrics: Sequence[float]) -> None:
        """Record the metric of each hub's own model, at the newest evaluation."""
        newest = self.evaluations[-1]
        at = {"slot": newest["slot"], "round": newest["round"]}
        self.hub_evaluations.append({**at, self.metric: rounded(metrics)})
        self._events.write(HUBS, self.hub_evaluations[-1])
        self._flush()

    def announce_evaluation(self) -> None:
        """Call the hooks with the newest evaluation."""
        for hook in self.on_evaluation:
            hook(self.evaluations[-1])

    def finish(self, model: Flat) -> None:
        """Write the averaged model and the JSON of the whole run."""
        self._end(model, files.METRICS)
        (self.output / files.UNFINISHED).unlink(missing_ok=True)
        self._progress.values["done"] = True
        self._progress.write()

    def stop(self, model: Flat) -> None:
        """Write what there is of a run that stops before its end: it can be read as it is."""
        self._end(model, files.UNFINISHED)

    def _end(self, model: Flat, name: str) -> None:
        assert self._file is not None
        self._file.close()
        self._events.close()
        try:
            save_file(
                self.engine.layout.arrays(model),
                self.output / files.MODEL,
                metadata=model_metadata(self.engine.task),
            )
        except SafetensorError as error:
            raise OSError(f"{files.MODEL}: {error}") from None
        files.write_json(self.output / name, self._report())

    @cached_property
    def _mixing(self) -> dict[str, Any]:
        """H and zeta."""
        h = mixing_matrix(self.network.graph, self.network.b, self.config.mixing)
        if self.config.corrections.hub != "none":
            h = safe_for_exact_diffusion(h)
        return {"H": h.tolist(), "zeta": zeta(h)}

    @cached_property
    def _labels(self) -> dict[str, Any] | None:
        """How many training rows of each class the workers and the hubs hold."""
        network = self.network
        workers = [self.engine.label_counts(i) for i in range(network.workers)]
        if not workers[0]:
            return None
        hubs = np.zeros((network.hubs, len(workers[0])), dtype=np.int64)
        np.add.at(hubs, network.hub_of, np.array(workers))
        return {"workers": workers, "hubs": hubs.tolist()}

    def _report(self, steps_known: bool = True) -> dict[str, Any]:
        network = self.network
        absences = Counter(absence["worker"] for absence in self.absences)
        final = self.evaluations[-1] if self.evaluations else {}
        return {
            "config": self.config.to_run_config(),
            "data": self.engine.task.data.label,
            "metric": self.metric,
            "parameters": int(sum(v.size for v in self.engine.initial().values())),
            "network": {
                **network.to_dict(),
                "examples": [self.engine.examples(i) for i in range(network.workers)],
                "b": network.b.tolist(),
                **self._mixing,
            },
            "labels": self._labels,
            "hub_models": self.hub_models,
            "hub_evaluations": self.hub_evaluations,
            "evaluations": self.evaluations,
            "workers": [
                {
                    "worker": i,
                    "hub": int(network.hub_of[i]),
                    "weight": float(network.w[i]),
                    "rate": float(network.p[i]),
                    "steps": int(self.steps[i]) if steps_known else None,
                    "absent": absences[i],
                }
                for i in range(network.workers)
            ],
            "absences": self.absences,
            "summary": {
                **{k: final.get(k) for k in ("slot", "loss", "test_loss", self.metric)},
                "rounds": self.rounds_done,
                "steps": int(self.steps.sum()),
                "absent": len(self.absences),
                "bytes": self.bytes,
                "seconds": final.get("seconds", 0.0) if self.clock else self._seconds(),
                "seconds_evaluating": sum(e["evaluation_seconds"] for e in self.evaluations),
            },
        }

    def _write_row(self, **values: Any) -> None:
        """Write a row of metrics.csv; columns that are not given stay empty."""
        self._writer.writerow(values)
        self._rows += 1

    def _record_absence(self, number: int, hub: int, worker: int, cause: Absence, why: str) -> None:
        absence = {"round": number, "hub": hub, "worker": worker, "cause": str(cause), "why": why}
        self.absences.append(absence)
        self._events.write(ABSENT, absence)

    def _seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._started

    @cached_property
    def _clock_seconds(self) -> list[NDArray[np.float64]]:
        """The second at which each hub ends each round, on the run's clock."""
        assert self.clock is not None
        config = self.config
        clock = self.clock.central(self.sent_bytes) if config.hubs == 1 else self.clock
        ends = clock.ends(
            *(self.network.graph, config.tau, config.q, config.wait_for_all, self.sent_bytes)
        )
        return list(itertools.islice(ends, len(self.schedule)))

    def _seconds_at(self, rounds: Sequence[Round], hub: int | None = None) -> float:
        """Return the time of a record: on the run's clock if it has one, else since its start."""
        if self.clock is None:
            return self._seconds()
        if not rounds:
            return 0.0
        ends = self._clock_seconds[rounds[-1].number - 1]
        return float(ends.max() if hub is None else ends[hub])

    def _write_progress(self) -> None:
        """Write the progress if that is due, after the rows that belong to it."""
        if self._progress.due:
            self._flush()
            self._progress.write()

    def _flush(self) -> None:
        if self._file is not None and not self._file.closed:
            self._events.flush()
            self._file.flush()
