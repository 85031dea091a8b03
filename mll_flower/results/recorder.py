"""What a run leaves behind: metrics as CSV and JSON, the model, progress."""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from logging import WARNING
from pathlib import Path
from typing import IO, Any

import numpy as np
from flwr.supercore import log
from safetensors.numpy import save_file

from mll_flower.algorithm.mixing import mixing_matrix, zeta
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import Round
from mll_flower.config import RunConfig
from mll_flower.models.layout import Flat
from mll_flower.results import files
from mll_flower.results.files import write_json
from mll_flower.strategies.base import RoundReport
from mll_flower.training.engine import Engine


class Recorder:
    """Writes a run's results as they come.

    Parameters
    ----------
    config : RunConfig
        The run.
    network : HubNetwork
        Its network, with the weights in use.
    engine : Engine
        For the model's layout and the data's label.
    schedule : Sequence[Round]
        All rounds of the run.
    hosted : callable
        The workers that a node hosts.
    """

    def __init__(
        self,
        config: RunConfig,
        network: HubNetwork,
        engine: Engine,
        schedule: Sequence[Round],
        hosted: Callable[[int], list[int]],
    ) -> None:
        self.config, self.network, self.engine, self.schedule = config, network, engine, schedule
        self.hosted = hosted
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        self.output = Path(config.output or f"runs/{stamp}").absolute()
        self.size = sum(v.nbytes for v in engine.initial().values())
        self.steps = np.zeros(network.workers, dtype=np.int64)
        self.absences: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.bytes = 0
        self.earlier = 0.0
        self.last: dict[str, Any] = {}
        self._clock = self._shown = self._said = time.monotonic()
        self._file: IO[str] | None = None
        self._old_rows: list[list[str]] = []

    def resume(self, source: str, state: dict[str, Any]) -> None:
        """Take over what an earlier run had recorded when its checkpoint was written."""
        theirs = {**state["config"], **dict.fromkeys(("resume", "output"), "")}
        ours = {**self.config.to_run_config(), **dict.fromkeys(("resume", "output"), "")}
        free = {"checkpoint-every", "data-dir", "reply-timeout", "node-timeout"}
        wrong = [k for k in ours if k not in free and ours[k] != theirs.get(k)]
        if wrong:
            key = wrong[0]
            raise ValueError(
                f"resume={source!r} was made with {key}={theirs.get(key)!r}, this run has "
                f"{ours[key]!r}: use the same config"
            )
        self.steps = np.array(state["steps"], dtype=np.int64)
        self.absences, self.evaluations = state["absences"], state["evaluations"]
        self.bytes, self.earlier = state["bytes"], state["seconds"]
        folder = Path(source) if Path(source).is_dir() else Path(source).parent
        if not (folder / files.ROWS).is_file():
            raise ValueError(
                f"resume={source!r}: metrics.csv is not beside the checkpoint; resume from the "
                "output of that run"
            )
        with (folder / files.ROWS).open(newline="") as file:
            self._old_rows = list(csv.reader(file))[1 : state["rows"] + 1]

    def state(self) -> dict[str, Any]:
        """Return what `resume` needs besides the rows, which are in the file by then."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        return {
            "config": self.config.to_run_config(),
            "steps": self.steps.tolist(),
            "absences": self.absences,
            "evaluations": self.evaluations,
            "bytes": self.bytes,
            "seconds": self._seconds(),
            "rows": self._rows,
        }

    def start(self) -> None:
        """Create the output."""
        self.output.mkdir(parents=True, exist_ok=True)
        write_json(self.output / files.CONFIG, self.config.to_run_config())
        self._file = (self.output / files.ROWS).open("w", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(files.COLUMNS)
        self._writer.writerows(self._old_rows)
        self._file.flush()  # they may be those of the very file that was just opened
        self._rows = len(self._old_rows)
        self._clock = time.monotonic()

    def round(self, report: RoundReport, rounds: Sequence[Round]) -> None:
        """Record the rounds that a message covered."""
        network, number = self.network, rounds[-1].number
        models = 2 * network.workers * len(rounds)
        models += 2 * network.graph.number_of_edges() * sum(r.mixes for r in rounds)
        self.bytes += models * self.size
        for d, hub in enumerate(report.hubs):
            steps, loss, absent = 0, 0.0, 0
            for arrival in hub.arrived:
                told: Any = arrival.metrics
                for worker, taken, mean in zip(
                    told["workers"], told["steps"], told["losses"], strict=True
                ):
                    self.steps[worker] += taken
                    steps += taken
                    loss += taken * mean if taken else 0.0
                gone: Any = arrival.message.content.config_records["absent"]
                for worker, at, why in zip(
                    gone["workers"], gone["rounds"], gone["reasons"], strict=True
                ):
                    # The strategy has seen one node of the hub, and no worker in it.
                    log(WARNING, "Round %d, hub %d: worker %d is absent: %s", at, d, worker, why)
                    self._absent(at, d, worker, "raised", why)
                    absent += 1
            for missing in hub.absent:
                hosted = self.hosted(missing.node)
                if self.config.pool == "hub":
                    said = "Rounds %d to %d, hub %d: its workers %s are absent"
                    log(WARNING, said, rounds[0].number, number, d, hosted)
                for r in rounds:
                    for worker in hosted:
                        self._absent(r.number, d, worker, str(missing.cause), missing.why[-300:])
                        absent += 1
            mean_loss = loss / steps if steps else math.nan
            slot = int(rounds[-1].end[d])
            spread = f"{report.spread[d]:.8g}"
            self._row(slot, number, d, steps, f"{mean_loss:.8g}", "", "", spread, absent)
        self.last["slot"] = rounds[-1].slot
        self._progress()

    def evaluation(
        self,
        rounds: Sequence[Round],
        train_loss: float,
        test_loss: float,
        accuracy: float,
        seconds: float,
    ) -> None:
        """Record an evaluation of the averaged model."""
        slot, number = (rounds[-1].slot, rounds[-1].number) if rounds else (0, 0)
        self.last.update(slot=slot, loss=train_loss, accuracy=accuracy)
        self._row(
            slot,
            number,
            "all",
            int(self.steps.sum()),
            f"{train_loss:.8g}",
            f"{accuracy:.6g}",
            f"{test_loss:.8g}",
            "",
            len(self.absences),
        )
        self.evaluations.append(
            {
                "slot": slot,
                "round": number,
                "loss": train_loss,
                "test_loss": test_loss,
                "accuracy": accuracy,
                "steps": int(self.steps.sum()),
                "bytes": self.bytes,
                "seconds": self._seconds(),
                "evaluation_seconds": seconds,
            }
        )
        self._progress(force=True)

    def finish(self, model: Flat) -> None:
        """Write the model and the JSON."""
        assert self._file is not None
        self._file.close()
        save_file(
            self.engine.layout.arrays(model),
            self.output / files.MODEL,
            metadata={"model": self.config.model, "dataset": self.engine.task.data.label},
        )
        write_json(self.output / files.METRICS, self._report())
        self.last["done"] = True
        self._progress(force=True)

    def _report(self) -> dict[str, Any]:
        network = self.network
        h = mixing_matrix(network.graph, network.b, self.config.mixing)
        final = self.evaluations[-1] if self.evaluations else {}
        return {
            "config": self.config.to_run_config(),
            "data": self.engine.task.data.label,
            "parameters": int(sum(v.size for v in self.engine.initial().values())),
            "network": {
                **network.to_dict(),
                "examples": [self.engine.examples(i) for i in range(network.workers)],
                "b": network.b.tolist(),
                "H": h.tolist(),
                "zeta": zeta(h),
            },
            "evaluations": self.evaluations,
            "workers": [
                {
                    "worker": i,
                    "hub": int(network.hub_of[i]),
                    "weight": float(network.w[i]),
                    "rate": float(network.p[i]),
                    "steps": int(self.steps[i]),
                    "absent": sum(a["worker"] == i for a in self.absences),
                }
                for i in range(network.workers)
            ],
            "absences": self.absences,
            "summary": {
                **{k: final.get(k) for k in ("slot", "loss", "test_loss", "accuracy")},
                "rounds": len(self.schedule),
                "steps": int(self.steps.sum()),
                "absent": len(self.absences),
                "bytes": self.bytes,
                "seconds": self._seconds(),
                "seconds_evaluating": sum(e["evaluation_seconds"] for e in self.evaluations),
            },
        }

    def _row(self, slot: int, number: int, hub: int | str, steps: int, *rest: Any) -> None:
        *values, absent = rest
        seconds = f"{self._seconds():.3f}"
        self._writer.writerow([slot, number, hub, steps, *values, self.bytes, absent, seconds])
        self._rows += 1

    def _absent(self, round: int, hub: int, worker: int, cause: str, why: str) -> None:
        self.absences.append(
            {"round": round, "hub": hub, "worker": worker, "cause": cause, "why": why}
        )

    def _seconds(self) -> float:
        return self.earlier + time.monotonic() - self._clock

    def _progress(self, force: bool = False) -> None:
        """Leave word for whoever watches: a file for a progress bar, a line in the log."""
        now = time.monotonic()
        if not force and now - self._shown < 0.5:
            return
        if self._file is not None and not self._file.closed:
            self._file.flush()
        total = self.schedule[-1].slot
        write_json(self.output / files.PROGRESS, {"total": total, **self.last})
        self._shown = now
        if now - self._said > 5 or "done" in self.last:
            # Not through Flower's logger, which is quiet while the rounds go on.
            print(f"slot {self.last.get('slot', 0)} of {total}  {self._words()}", flush=True)
            self._said = now

    def _words(self) -> str:
        if "loss" not in self.last:
            return ""
        return f"loss {self.last['loss']:.4f}  accuracy {self.last['accuracy']:.4f}"
