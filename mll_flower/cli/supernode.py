"""``mll-flower supernode``: Flower's SuperNode with warm workers, for any Flower project."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer
from rich.console import Console

from mll_flower.cli.announcer import Announcer
from mll_flower.cli.stopping import stop_on_signals
from mll_flower.cli.warm_options import Cold, MaxMemory, Parallel, Preload, StartMethod

_RESTART_PAUSE = 3.0  # seconds until a SuperNode that no longer works is started again


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    # What is not an option here is one of flower-supernode's.
    others = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("supernode", context_settings=others)(supernode)


def supernode(
    context: typer.Context,
    cold: Cold = False,
    start_method: StartMethod = "fork",
    preload: Preload = "numpy,torch",
    max_memory: MaxMemory = None,
    parallel: Parallel = 1,
) -> None:
    """Run Flower's SuperNode with ClientApps in processes that stay.

    All other arguments are those of flower-supernode: --superlink, --root-certificates and so on.
    The SuperNode is started again when it no longer does its work.
    """
    from mll_flower.processes.process_tree import Processes
    from mll_flower.processes.warm.parent_death import PARENT
    from mll_flower.processes.warm.settings import WarmSettings, module_names
    from mll_flower.processes.warm.supernode import supernode_words
    from mll_flower.processes.warm.watchdog import AGAIN

    settings = WarmSettings(cold, start_method, module_names(preload), max_memory, parallel)
    command = supernode_words(settings, context.args)
    # Flower's commands, also when the environment is not activated.
    path = str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", "")
    env = {**os.environ, "PATH": path, PARENT: str(os.getpid())}
    told = Announcer(Console(highlight=False), "text", "supernode")
    with stop_on_signals() as stop, Processes() as processes:
        processes.start("SuperNode", command, env)
        while not stop.wait(0.5):
            for ended in processes.ended():
                if ended.code != AGAIN:
                    raise typer.Exit(ended.code if ended.code >= 0 else 128 - ended.code)
                told.say(f"{ended}; it is started again in {_RESTART_PAUSE:g} s")
                if not stop.wait(_RESTART_PAUSE):
                    processes.start("SuperNode", command, env)
