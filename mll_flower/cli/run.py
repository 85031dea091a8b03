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

from mll_flower.config import RunConfig
from mll_flower.tasks.data import absolute_dataset

console = Console()

# Lines of Flower's log that say nothing about a run started here.
_NO_NEWS = ("default simulated SuperNodes", "federation size", "federation simulation-config")


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
    from mll_flower.processes.simulation import app_directory, run_app, simulation_superlink

    cores = actors or len(os.sched_getaffinity(0))
    federation = {
        "num-supernodes": checked.nodes,
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
    from mll_flower.apps.network_run import run_network
    from mll_flower.apps.worker_app import worker_app
    from mll_flower.grids.in_process import InProcessGrid

    values = checked.to_run_config()
    run_network(InProcessGrid(worker_app(), checked.nodes, values), values, watch.look)


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
    if "dataset" in settings:
        settings["dataset"] = absolute_dataset(str(settings["dataset"]), Path.cwd())
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
            f"{field.metadata['help']} (default: {field.default!r})".replace(" (default: '')", ""),
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
