"""The run config: every setting of a run, read, described and checked before anything starts.

The command line, Flower's ``--run-config``, a config file and a deployment's network file all end
in a `RunConfig`. A key is described here and nowhere else: its default and its help are those of
the field. (Flower accepts only keys that pyproject.toml lists too; a test keeps the two the same.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mll_flower.algorithm.coins import step_counts
from mll_flower.algorithm.corrections import SETTINGS, Corrections
from mll_flower.algorithm.mixing import is_file, mixing_matrix
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import Round, check_periods, rounds
from mll_flower.models.subnetwork_average import ABSENT_RULES, AbsentRule
from mll_flower.presets import PRESETS, check_not_overridden, presets_help
from mll_flower.tasks.augmentation import known_augmentations
from mll_flower.tasks.data import known_datasets, npz_path, own_folder, parse_dataset
from mll_flower.tasks.metrics import check_name, known_losses, known_metrics
from mll_flower.tasks.models import known_models
from mll_flower.tasks.own_code import is_reference, source_file
from mll_flower.tasks.own_partitions import is_own_partition, partition_file
from mll_flower.tasks.partitions import parse_partition
from mll_flower.timing.clock import fits
from mll_flower.timing.clock_file import load_clock

POOLS = ("hub", "worker")
OPTIMISERS = ("sgd", "adamw")
ENGINES = ("auto", "autograd", "compiled")
DEVICES = ("auto", "cpu", "cuda")

DEPLOYMENT_KEYS = {"role", "network", "hub", "run-name", "insecure"}
"""Keys of Flower's run config that are not settings of a run: they say which part the app plays."""


def _key(default: Any, help: str) -> Any:
    """Make a field of the run config, with its default and its help."""
    return field(default=default, metadata={"help": help})


def _correction(key: str) -> Any:
    """Make the field of a setting that `Corrections` describes."""
    return _key(SETTINGS[key].default, SETTINGS[key].metadata["help"])


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a simulated run's numbers, and where its results go.

    A field has the name of its key, with underscores for hyphens, and its help in its metadata,
    which ``mll-flower run --help`` shows.
    """

    preset: str = _key("mll-sgd", presets_help())
    hubs: int = _key(5, "Number of hubs (D).")
    workers_per_hub: str = _key(
        "4", "Workers per hub: one number for all (4), or one per hub (3,5,4)."
    )
    graph: str = _key(
        "ring", "Hub graph: complete, path, ring, star, grid, random-regular, ... or a file."
    )
    mixing: str = _key(
        "auto", "How H is made: auto, metropolis, complete, diffusion, optimal, or a file."
    )
    tau: int = _key(8, "Slots between two sub-network averages.")
    q: int = _key(4, "Sub-network averages between two hub mixings.")
    slots: int = _key(1024, "Slots of the whole run (K).")
    wait_for_all: bool = _key(
        False, "End a round when each worker has taken tau steps, not after tau slots."
    )
    rates: str = _key(
        "uniform",
        "Probability that a worker takes a step in a slot: a number, one per worker (0.5,1,...), "
        "one per hub (hub:1,0.5,...), fixed, uniform, skewed-fast, skewed-slow or two-speed.",
    )
    clock: str = _key(
        "",
        "A file with seconds per step and links (docs/planning.md): sets hubs, workers-per-hub and "
        "rates, and the results' seconds are those of its clock.",
    )
    weights: str = _key(
        "examples", "Weights of the workers: equal, examples, or one number per worker."
    )
    dataset: str = _key(
        "digits",
        "Data set: digits, mnist, fashion-mnist, emnist, cifar10; or your own: npz:PATH, "
        "image-folder:PATH, hf:NAME_OR_FOLDER, module:function or file.py:function.",
    )
    classes: int = _key(
        0, "Classes of a data set of your own; 0: the largest label and 1, or what the set says."
    )
    data_dir: str = _key("", "Folder of the data sets; missing ones are downloaded into it.")
    partition: str = _key(
        "iid",
        "Which rows each worker holds: iid, sized, dirichlet(ALPHA), shards(N) or by-hub; or your "
        "own: module:function, file.py:function, or a .json or .npz file.",
    )
    model: str = _key(
        "cnn",
        "Model: logistic, mlp, cnn or resnet18; or your own: module:function or file.py:function.",
    )
    loss: str = _key(
        "auto",
        "Loss: auto (cross-entropy, or mse if the targets are floating-point numbers), "
        "cross-entropy, mse, mae, huber, module:function or file.py:function.",
    )
    metric: str = _key(
        "auto",
        "What the test measures: auto (accuracy, or mse if the targets are floating-point "
        "numbers), accuracy, mse, rmse, mae, r2, module:function or file.py:function.",
    )
    augment: str = _key(
        "none",
        "Random changes to the examples of each step: none, crop-flip (images moved by up to four "
        "pixels and mirrored left to right), module:function or file.py:function.",
    )
    code_dir: str = _key(
        "",
        "Folder of your own modules and files; default: the working folder, or that of the "
        "network file.",
    )
    optimiser: str = _key("sgd", "The workers' optimiser: sgd or adamw; starts anew every round.")
    batch_size: int = _key(32, "Examples per step.")
    learning_rate: float = _key(0.2, "Step size of the workers' optimiser.")
    lr_milestones: str = _key("", "Fractions of the run at which the step size falls: 0.5,0.75.")
    lr_factor: float = _key(0.1, "Factor on the step size at each of lr-milestones.")
    momentum: float = _key(0.0, "Momentum of the workers' SGD; starts at zero in every round.")
    weight_decay: float = _key(0.0, "Weight decay of the workers' optimiser.")
    engine: str = _key(
        "auto",
        "What computes gradients: autograd (any model), compiled (plain stacks of layers, faster, "
        "other last bits), or auto (compiled where possible).",
    )
    device: str = _key(
        "auto",
        "Where models are trained: cpu, cuda, or auto (cuda if the processes that train have a "
        "GPU).",
    )
    rate_correction: str = _correction("rate-correction")
    rate_cap: float = _correction("rate-cap")
    mean_rate: float = _correction("mean-rate")
    hub_correction: str = _correction("hub-correction")
    worker_correction: str = _correction("worker-correction")
    outer: str = _correction("outer")
    outer_rate: float = _correction("outer-rate")
    outer_momentum: float = _correction("outer-momentum")
    gossip_precision: str = _correction("gossip-precision")
    evaluate_every: int = _key(0, "Slots between two evaluations; 0: at every mixing.")
    evaluate_limit: int = _key(
        10000, "Training rows on which the training loss is measured; 0: all."
    )
    pool: str = _key(
        "hub",
        "What a simulated SuperNode hosts: a whole hub, or one worker. The numbers are the same.",
    )
    absent: str = _key(
        "keep", "Shares of absent workers: keep (with the hub's model) or renormalise."
    )
    reply_timeout: float = _key(
        3600.0, "Seconds after which a node that has not replied is absent."
    )
    node_timeout: float = _key(300.0, "Seconds to wait for all nodes to connect.")
    seed: int = _key(0, "Seed of everything random.")
    checkpoint_every: int = _key(
        -1,
        "Mixings between two checkpoints; 0: none; -1: as often as takes less than 1 % of the "
        "time, and at the end.",
    )
    resume: str = _key("", "Continue from a checkpoint, or from the output of an earlier run.")
    output: str = _key("", "Folder for the results; default: runs/ and the time.")
    tensorboard: bool = _key(
        False, "Also write the metrics for TensorBoard, in tensorboard/ of the output folder."
    )

    @classmethod
    def from_run_config(cls, values: Mapping[str, Any], check: bool = True) -> RunConfig:
        """Read a Flower run config, apply its preset and check it."""
        config = cls.read(values).resolved()
        if check:
            config.check()
        return config

    @classmethod
    def check_given(cls, given: Mapping[str, Any], with_defaults: bool = False) -> None:
        """Raise ValueError if the preset overrides a value that the user has given.

        Parameters
        ----------
        given : Mapping
            The run config as the user has given it.
        with_defaults : bool
            Whether it also holds defaults that nobody gave, as Flower's run config does. Then a
            value that is the default counts as not given.
        """
        read = cls.read(given)
        values, defaults = read.to_run_config(), cls().to_run_config()
        given = {
            key: values[key]
            for key in given
            if key in values and not (with_defaults and values[key] == defaults[key])
        }
        check_not_overridden(given, read.resolved().to_run_config())

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> RunConfig:
        """Read a Flower run config (names with hyphens) as it is; unknown names are errors."""
        known = {field.name.replace("_", "-"): field for field in fields(cls)}
        unknown = sorted(set(values) - set(known) - DEPLOYMENT_KEYS)
        if unknown:
            raise ValueError(f"unknown keys {unknown}; the known ones are {', '.join(known)}")
        if values.get("clock") and not {"hubs", "workers-per-hub", "rates"} <= set(values):
            values = {**cls.clock_values(values["clock"]), **values}
        given = {
            field.name: _convert(name, values[name], type(field.default))
            for name, field in known.items()
            if name in values
        }
        return cls(**given)

    @staticmethod
    def clock_values(path: str | Path) -> dict[str, int | str]:
        """Return the keys of the run config that a clock's file decides."""
        clock = load_clock(path)
        return {
            "clock": str(Path(path).absolute()),
            "hubs": clock.hubs,
            "workers-per-hub": ",".join(map(str, clock.worker_counts)),
            "rates": ",".join(map(repr, clock.rates().tolist())),
        }

    @staticmethod
    def network_values(path: str | Path) -> dict[str, int | str]:
        """Return the keys of the run config that a network file decides (`HubNetwork.save`)."""
        network = HubNetwork.load(path)
        counts = np.bincount(network.hub_of)
        return {
            "hubs": network.hubs,
            "workers-per-hub": ",".join(map(str, counts.tolist())),
            "graph": str(Path(path).absolute()),
            "weights": ",".join(map(repr, network.w.tolist())),
            "rates": ",".join(map(repr, network.p.tolist())),
        }

    def to_run_config(self) -> dict[str, int | float | bool | str]:
        """Return the values under the names of the run config."""
        return {key.replace("_", "-"): value for key, value in asdict(self).items()}

    def resolved(self) -> RunConfig:
        """Return the config with the values of its preset."""
        if self.preset not in PRESETS:
            raise ValueError(f"preset={self.preset!r} is not known: use {', '.join(PRESETS)}")
        config = replace(self, **PRESETS[self.preset])
        workers = sum(self.worker_counts())
        if PRESETS[self.preset].get("hubs") == 1:
            config = replace(config, workers_per_hub=str(workers), graph="complete")
        if self.preset == "cooperative-sgd":
            config = replace(config, hubs=workers)
        if self.preset == "hl-sgd" and (config.q < 2 or config.graph not in ("complete", "star")):
            raise ValueError(
                f"preset='hl-sgd' with q={config.q} and graph={config.graph!r}: HL-SGD has q > 1 "
                "and the complete graph or a star (q = 1 is preset='local-sgd')"
            )
        return config

    def check(self) -> None:
        """Raise ValueError for an impossible value or combination, before any data is read."""
        check_periods(self.tau, self.q)
        if self.slots < self.tau:
            raise ValueError(
                f"slots={self.slots} is below tau={self.tau}, and a round takes tau slots: give at "
                f"least {self.tau} slots, or a smaller tau"
            )
        for name, value, low in (
            ("batch-size", self.batch_size, 1),
            ("classes", self.classes, 0),
            ("evaluate-every", self.evaluate_every, 0),
            ("evaluate-limit", self.evaluate_limit, 0),
            ("checkpoint-every", self.checkpoint_every, -1),
            ("seed", self.seed, 0),
        ):
            if value < low:
                raise ValueError(f"{name}={value}: must be at least {low}")
        for name, number, positive in (
            ("learning-rate", self.learning_rate, True),
            ("lr-factor", self.lr_factor, True),
            ("reply-timeout", self.reply_timeout, True),
            ("node-timeout", self.node_timeout, True),
            ("momentum", self.momentum, False),
            ("weight-decay", self.weight_decay, False),
        ):
            if not math.isfinite(number) or number < 0 or (positive and number == 0):
                bound = "positive" if positive else "not negative"
                raise ValueError(f"{name}={number}: must be a finite number, {bound}")
        if self.momentum >= 1:
            raise ValueError(f"momentum={self.momentum}: must be below 1")
        if self.momentum and self.optimiser != "sgd":
            raise ValueError(
                f"momentum={self.momentum} with optimiser={self.optimiser!r}: only sgd has one; "
                "leave it at 0"
            )
        if self.seed >= 1 << 63:
            raise ValueError(f"seed={self.seed}: must be below 2**63")
        for name, choice, choices in (
            ("pool", self.pool, POOLS),
            ("absent", self.absent, ABSENT_RULES),
            ("optimiser", self.optimiser, OPTIMISERS),
            ("engine", self.engine, ENGINES),
            ("device", self.device, DEVICES),
        ):
            if choice not in choices:
                raise ValueError(f"{name}={choice!r} is not known: use {', '.join(choices)}")
        if self.device == "cuda" and self.engine == "compiled":
            raise ValueError(
                "device='cuda' with engine='compiled': compiled gradients are made for CPUs; use "
                "engine='auto' or 'autograd'"
            )
        known = (*known_models(), "module:function", "file.py:function")
        check_name("model", self.model, known)
        check_name("loss", self.loss, known_losses())
        check_name("metric", self.metric, known_metrics())
        check_name("augment", self.augment, known_augmentations())
        if self.evaluate_every % self.tau:
            raise ValueError(
                f"evaluate-every={self.evaluate_every} is not a multiple of tau={self.tau}: hubs "
                "have models only at the end of a round"
            )
        self.milestones()
        self._check_corrections()
        dataset = parse_dataset(self.dataset)
        if self.classes and dataset in known_datasets():
            raise ValueError(
                f"classes={self.classes} is for data of your own: dataset={self.dataset!r} has its "
                "own number of classes"
            )
        parse_partition(self.partition)
        self._check_clock()
        network = self.network()
        if not is_file(self.mixing) or self.weights != "examples":
            mixing_matrix(network.graph, network.b, self.mixing)
        if self.partition == "sized" and network.workers < 5:
            raise ValueError(
                f"partition='sized' has five groups; there are {network.workers} workers"
            )
        if next(self._rounds(), None) is None:
            raise ValueError(
                f"slots={self.slots}: not one round of tau={self.tau} steps ends within them; "
                "give more slots, a smaller tau or higher rates"
            )
        if self.tensorboard and find_spec("tensorboard") is None:
            raise ValueError(
                "tensorboard=True needs the package tensorboard: pip install "
                "'mll-flower[tensorboard]'"
            )
        if self.resume and not Path(self.resume).exists():
            raise ValueError(f"resume={self.resume!r} does not exist: give a checkpoint or a run")
        if Path(self.output).is_file():
            raise ValueError(f"output={self.output!r} is a file: give a folder")
        if is_file(self.mixing) and not Path(self.mixing).is_file():
            raise ValueError(f"mixing={self.mixing!r} does not exist: check the path of the file")
        self._check_own_files(dataset)

    def _check_corrections(self) -> None:
        """Raise ValueError if corrections have impossible values, or cannot be with the others."""
        if self.corrections.rate != "none" and self.wait_for_all:
            raise ValueError(
                f"rate-correction={self.rate_correction!r} with wait-for-all: each worker takes "
                "tau steps in every round, whatever its rate; leave one of them out"
            )

    def _check_clock(self) -> None:
        """Raise ValueError unless the clock's file describes the workers of this run."""
        if not self.clock:
            return
        clock, counts = load_clock(self.clock), self.worker_counts()
        if not fits(clock, counts):
            raise ValueError(
                f"clock={self.clock!r} has {clock.worker_counts} workers per hub, the run has "
                f"{counts}: leave out hubs and workers-per-hub, which the clock sets"
            )
        if not np.allclose(self.network().p, clock.rates(), rtol=1e-6):
            raise ValueError(
                f"rates={self.rates!r} are not those of clock={self.clock!r}: leave rates out, "
                "which the clock sets"
            )

    def _check_own_files(self, dataset: str) -> None:
        """Raise ValueError if a file or folder of the user's does not exist."""
        data_file, data_folder = npz_path(dataset), own_folder(dataset)
        if data_file is not None and not data_file.is_file():
            raise ValueError(f"dataset={self.dataset!r} does not exist: check the path of the file")
        if data_folder is not None and not data_folder.is_dir():
            raise ValueError(
                f"dataset={self.dataset!r} does not exist: check the path of the folder"
            )
        if self.code_dir and not Path(self.code_dir).is_dir():
            raise ValueError(f"code-dir={self.code_dir!r} does not exist: give a folder")
        paths = [
            (key, value, source_file(value, self.code_dir))
            for key, value in self._own().items()
            if is_reference(value)
        ]
        paths.append(("partition", self.partition, partition_file(self.partition, self.code_dir)))
        for key, value, path in paths:
            if path is not None and not path.is_file():
                raise ValueError(
                    f"{key}={value!r}: the file {path.absolute()} does not exist: check the path, "
                    "which starts at code-dir"
                )

    def _own(self) -> dict[str, str]:
        """Return those values that name something of the user's own, by their keys."""
        named = {key: getattr(self, key) for key in ("model", "loss", "metric", "augment")}
        own = {key: value for key, value in named.items() if is_reference(value)}
        if parse_dataset(self.dataset) not in known_datasets():
            own["dataset"] = self.dataset
        if is_own_partition(self.partition):
            own["partition"] = self.partition
        return own

    @property
    def own_work(self) -> bool:
        """Whether the run uses a model, data or anything else of the user's own."""
        return bool(self._own())

    def at_node(self, node: Mapping[str, Any]) -> RunConfig:
        """Return the config of a deployed worker, which may have data and folders of its own.

        Parameters
        ----------
        node : Mapping
            Its node config; ``dataset``, ``data-dir``, ``code-dir`` and ``device`` go before the
            run's values.
        """
        return replace(
            self,
            dataset=str(node.get("dataset", self.dataset)),
            # With data of its own it holds all rows, alone.
            partition="iid" if "dataset" in node else self.partition,
            data_dir=str(node.get("data-dir", self.data_dir)),
            code_dir=str(node.get("code-dir", self.code_dir)),
            device=str(node.get("device", self.device)),
        )

    def worker_counts(self) -> list[int]:
        """Return the number of workers of each hub."""
        if self.hubs < 1:
            raise ValueError(f"hubs={self.hubs}: there must be at least one")
        numbers = _numbers("workers-per-hub", self.workers_per_hub)
        counts = [int(n) for n in numbers if math.isfinite(n)]
        if counts != numbers or min(counts) < 1:
            raise ValueError(
                f"workers-per-hub={self.workers_per_hub!r}: give whole numbers of at least 1"
            )
        if len(counts) == 1:
            return counts * self.hubs
        if len(counts) != self.hubs:
            raise ValueError(
                f"workers-per-hub={self.workers_per_hub!r} has {len(counts)} entries for "
                f"hubs={self.hubs}: give one number, or one per hub"
            )
        return counts

    def network(self, examples: Any = None) -> HubNetwork:
        """Return the network.

        With ``weights = examples`` the weights are the example counts, or equal while these are
        not known.
        """
        weights: Any = self.weights
        if weights == "examples":
            weights = "equal" if examples is None else examples
        elif weights != "equal":
            weights = _numbers("weights", weights, "equal, examples, or one number per worker")
        rates: Any = self.rates
        if rates[:1].isdigit() or rates[:1] in "-.+":
            rates = _numbers("rates", rates)
            rates = rates[0] if len(rates) == 1 else rates
        return HubNetwork.build(
            self.hubs, self.worker_counts(), self.graph, weights, rates, self.seed
        )

    @property
    def corrections(self) -> Corrections:
        """The corrections that go past the paper."""
        return Corrections.from_keys(self.to_run_config())

    @property
    def nodes(self) -> int:
        """SuperNodes that a simulation needs: one per hub, or one per worker."""
        return self.hubs if self.pool == "hub" else sum(self.worker_counts())

    def schedule(self) -> list[Round]:
        """Return the run's rounds, on the simulated clock.

        With ``wait-for-all``, rounds after the last mixing are left out.
        """
        plan = list(self._rounds())
        if self.wait_for_all and len(plan) > self.q:
            del plan[len(plan) - len(plan) % self.q :]
        return plan

    def _rounds(self) -> Iterator[Round]:
        slots_until = load_clock(self.clock).slots_until if self.clock else None
        return rounds(
            *(self.network(), self.tau, self.q, self.slots, self.seed, self.wait_for_all),
            slots_until,
        )

    def step_counts(
        self, workers: Sequence[int], numbers: Sequence[int], rates: Sequence[float]
    ) -> NDArray[np.int64]:
        """Return the steps of workers, with these rates, in some rounds, [rounds, workers].

        The coins decide, or a clock that has a trace.
        """
        clock = load_clock(self.clock) if self.clock and not self.wait_for_all else None
        if clock is None or not clock.traced:
            return step_counts(self.seed, workers, numbers, self.tau, rates)
        return np.array([[clock.steps(i, n, self.tau) for i in workers] for n in numbers])

    @property
    def absent_rule(self) -> AbsentRule:
        """``absent``, with the type that the averages take."""
        return cast(AbsentRule, self.absent)

    def milestones(self) -> list[float]:
        """Return the fractions of the run at which the learning rate falls."""
        marks = _numbers("lr-milestones", self.lr_milestones) if self.lr_milestones else []
        if any(not 0 < mark < 1 for mark in marks):
            raise ValueError(
                f"lr-milestones={self.lr_milestones!r}: give fractions of the run between 0 and 1"
            )
        return marks

    def learning_rate_at(self, slot: int) -> float:
        """Return the learning rate of a round that starts at ``slot``."""
        passed = sum(slot >= mark * self.slots for mark in self.milestones())
        return self.learning_rate * self.lr_factor**passed

    def rounds_per_message(self, rounds: int) -> int:
        """Return how many rounds one message covers, in a run of ``rounds`` rounds.

        A simulated SuperNode that hosts a whole hub (``pool = hub``) plays all rounds up to the
        next event that the server side must see: a mixing, an evaluation, the end of the run.
        """
        if self.pool == "worker":
            return 1
        together = math.gcd(self.evaluate_rounds(), rounds)
        mixes = self.hubs > 1 or self.outer != "none"
        return math.gcd(self.q, together) if mixes else together

    def evaluate_rounds(self) -> int:
        """Return the number of rounds between two evaluations."""
        return self.evaluate_every // self.tau if self.evaluate_every else self.q


def _numbers(
    name: str, text: str, wanted: str = "a number, or numbers with commas between them"
) -> list[float]:
    try:
        return [float(part) for part in str(text).split(",")]
    except ValueError:
        raise ValueError(f"{name}={text!r}: give {wanted}") from None


def _convert(name: str, value: Any, kind: type) -> Any:
    """Convert a value to the type of its key: 4 to "4", "0.1" to 0.1."""
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
    elif kind is str:
        return str(value)
    else:
        with suppress(ValueError, TypeError, OverflowError):
            if kind is int and isinstance(value, str):
                value = int(value) if value.strip("+- ").isdigit() else float(value)
            # Not by way of a float, which has 53 bits: a seed may have more.
            number = kind(value)
            if not isinstance(value, bool) and (kind is float or number == value):
                return number
    expected = {bool: "true or false", int: "a whole number", float: "a number"}
    raise ValueError(f"{name}={value!r}: give {expected[kind]}")
