"""``mll-flower run``: one simulated run, from config to curves."""

from __future__ import annotations

import inspect
import json
import os
import threading
import tomllib
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from mll_flower.config import PRESETS, RunConfig

console = Console()

# Lines of Flower's log that say nothing about a run started here.
_NO_NEWS = ("default simulated SuperNodes", "federation size", "federation simulation-config")

HELP = {
    "preset": f"Algorithm: {', '.join(PRESETS)}.",
    "hubs": "Number of hubs (D).",
    "workers_per_hub": "Workers of every hub, or of each: 4 or 3,5,4.",
    "graph": "Hub graph: complete, path, ring, star, grid, random-regular, ... or a file.",
    "mixing": "How H is made: auto, metropolis, complete, diffusion, optimal, or a file.",
    "tau": "Slots between two sub-network averages.",
    "q": "Sub-network averages between two hub mixings.",
    "slots": "Slots of the whole run (K).",
    "wait_for_all": "Wait until each worker has taken tau steps.",
    "rates": "A number, 0.5,1,..., fixed, uniform, skewed-fast, skewed-slow or two-speed.",
    "weights": "equal, examples, or one number a worker.",
    "dataset": "digits, mnist, fashion-mnist, emnist, cifar10 or npz:PATH.",
    "data_dir": "Where the data sets are, or are downloaded to.",
    "partition": "iid, sized, dirichlet(ALPHA), shards(N) or by-hub.",
    "model": "logistic, mlp, cnn or resnet18.",
    "batch_size": "Examples a step.",
    "learning_rate": "Step size.",
    "lr_milestones": "Fractions of the run at which the step size falls: 0.5,0.75.",
    "lr_factor": "What it is multiplied by there.",
    "momentum": "Of the workers' SGD; starts anew in every round.",
    "weight_decay": "Of the workers' SGD.",
    "evaluate_every": "Slots between two evaluations; 0: at every mixing.",
    "evaluate_limit": "Training rows that the training loss is measured on; 0: all.",
    "pool": "What a SuperNode hosts: a whole hub, or one worker.",
    "absent": "Shares of absent workers: keep or renormalise.",
    "reply_timeout": "Seconds after which a silent node is absent.",
    "node_timeout": "Seconds to wait for all nodes.",
    "seed": "Seed of everything random.",
    "checkpoint_every": "Mixings between two checkpoints; 0: none.",
    "resume": "A checkpoint, or an earlier run's output, to go on from.",
    "output": "Where results go; default: runs/ and the time.",
}


def run(
    config: Path | None, flwr_home: Path | None, in_process: bool, actors: int, **values: Any
) -> None:
    """Simulate a multi-level network: D hubs, N workers, one command.

    Runs the Flower app of this project on Flower's simulation engine, shows its progress,
    and ends with a summary. Every option is a key of the run config; without any, five
    hubs on a ring with four workers each learn to read digits.
    """
    given = {key: value for key, value in values.items() if value is not None}
    settings = {**_read(config), **{key.replace("_", "-"): v for key, v in given.items()}}
    settings = _absolute(settings)
    checked = RunConfig.from_run_config(settings)
    output = Path(checked.output)
    with _progress() as progress:
        watch = _Watch(progress, output / "progress.json", checked.slots)
        try:
            if in_process:
                _run_here(checked, watch)
            else:
                _run_flower(settings, checked, flwr_home, actors, watch)
        except RuntimeError as failure:
            progress.stop()
            console.print(f"Error: {failure}", style="bold red", markup=False, soft_wrap=True)
            raise typer.Exit(1) from None
        finally:
            watch.over.set()
        watch.look()
    summarise(output)


def _run_flower(
    settings: dict[str, Any], checked: RunConfig, home: Path | None, actors: int, watch: _Watch
) -> None:
    from mll_flower.launch import app_directory, run_app, simulation_superlink

    nodes = checked.hubs if checked.pool == "hub" else checked.network().workers
    cores = actors or len(os.sched_getaffinity(0))
    federation = {
        "num-supernodes": nodes,
        "client-resources-num-cpus": 1,
        "init-args-num-cpus": cores,
        "init-args-log-to-driver": False,
    }
    app = app_directory()
    watch.say("Starting Flower (about 20 s)")
    with simulation_superlink(home) as superlink:
        # All keys: what is not given might have another default in pyproject.toml.
        values = RunConfig.read(settings).to_run_config()
        run_app(superlink, app, values, federation, watch.line)


def _run_here(checked: RunConfig, watch: _Watch) -> None:
    from client_app.app import app
    from mll_flower.inprocess import InProcessGrid
    from server_app.network_run import run_network

    nodes = checked.hubs if checked.pool == "hub" else checked.network().workers
    values = checked.to_run_config()
    run_network(InProcessGrid(app, nodes, values), values, watch.look)


def summarise(output: Path) -> None:
    """Print what a run led to and where its results are."""
    report = json.loads((output / "metrics.json").read_text())
    summary, config = report["summary"], report["config"]
    table = Table(title=f"{config['preset']} on {report['data']}", show_header=False)
    first = report["evaluations"][0]
    rows = [
        ("network", f"{config['hubs']} hubs, {len(report['workers'])} workers, {config['graph']}"),
        ("mixing", f"tau {config['tau']}, q {config['q']}, zeta {report['network']['zeta']:.4f}"),
        ("slots, rounds", f"{summary['slot']}, {summary['rounds']}"),
        ("steps taken", f"{summary['steps']:,}"),
        ("training loss", f"{first['loss']:.4f} -> {summary['loss']:.4f}"),
        ("test accuracy", f"{first['accuracy']:.4f} -> {summary['accuracy']:.4f}"),
        ("absences", str(summary["absent"])),
        ("models moved", f"{summary['bytes'] / 1e6:,.1f} MB"),
        ("time", f"{summary['seconds']:.1f} s"),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"Results: [bold]{output}[/bold]", soft_wrap=True)
    for plot in sorted((output / "plots").glob("*.png")):
        console.print(f"  plots/{plot.name}")


class _Watch:
    """Keeps the progress bar up to date from the file that the run writes."""

    def __init__(self, progress: Progress, path: Path, slots: int) -> None:
        self.progress, self.path = progress, path
        self.task = progress.add_task("starting", total=slots, words="")
        self.over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self.over.wait(0.5):
            self.look()

    def line(self, line: str) -> None:
        """Show a line of the log, less what the bar says and what is no news."""
        words = Text.from_ansi(line)
        plain = words.plain.strip()
        if plain and not plain.endswith("INFO :") and not any(n in plain for n in _NO_NEWS):
            self.progress.console.print(words, soft_wrap=True)

    def say(self, words: str) -> None:
        """Say what is going on."""
        self.progress.update(self.task, words=words)

    def look(self) -> None:
        """Read how far the run is."""
        try:
            now = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return
        words = ""
        if "loss" in now:
            words = f"loss {now['loss']:.4f}  accuracy {now['accuracy']:.4f}"
        self.progress.update(
            self.task,
            completed=now.get("slot", 0),
            total=now["total"],
            description="slots",
            words=words,
        )


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,
    )


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    if not path.is_file():
        raise ValueError(f"config file {path} is not there: check the path")
    try:
        text = path.read_text()
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ValueError(f"config file {path} cannot be read: {error}") from None
    return dict(data)


def _absolute(settings: dict[str, Any]) -> dict[str, Any]:
    """Make paths absolute: the run's processes work elsewhere."""
    settings = dict(settings)
    output = settings.get("output") or f"runs/{datetime.now():%Y%m%d-%H%M%S}"
    settings["output"] = str(Path(output).absolute())
    data = settings.get("data-dir") or os.environ.get("MLL_FLOWER_DATA") or "data"
    if settings.get("data-dir") or Path(data).is_dir():
        settings["data-dir"] = str(Path(data).absolute())
    if settings.get("resume"):
        settings["resume"] = str(Path(settings["resume"]).absolute())
    for key in ("graph", "mixing"):
        value = str(settings.get(key, ""))
        if Path(value).is_file():
            settings[key] = str(Path(value).absolute())
    dataset = str(settings.get("dataset", ""))
    if dataset.startswith("npz:"):
        settings["dataset"] = f"npz:{Path(dataset[4:]).absolute()}"
    return settings


def run_command() -> Callable[..., None]:
    """Return `run` with one option for each key of the run config."""
    own = [
        _option("config", Path | None, None, "A TOML or JSON file with keys of the run config."),
        _option("flwr_home", Path | None, None, "Flower's home; default: one that is removed."),
        _option("in_process", bool, False, "Without Flower's runtime: same numbers, one core."),
        _option("actors", int, 0, "Processes that train; 0: one a core."),
    ]
    kinds = {bool: bool | None, int: int | None, float: float | None, str: str | None}
    keys = [
        _option(
            field.name,
            kinds[type(field.default)],
            None,
            f"{HELP[field.name]} (default: {field.default!r})".replace(" (default: '')", ""),
        )
        for field in fields(RunConfig)
    ]

    def command(**values: Any) -> None:
        run(**values)

    command.__doc__ = run.__doc__
    command.__name__ = "run"
    command.__signature__ = inspect.Signature(own + keys)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in own + keys}
    return command


def _option(name: str, kind: Any, default: Any, words: str) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer.Option(flag, help=words, show_default=False)],
    )
