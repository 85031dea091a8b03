"""``mll-flower app``: write the built-in Flower app, for Flower's own commands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text


def write(
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
) -> None:
    """Write the built-in Flower app to a folder, for `flwr run` and `flwr build`.

    FOLDER is the folder to write, which must not exist yet. It will hold the library
    and its apps as they are installed, and a pyproject.toml with every key of the
    run config.
    """
    from mll_flower.processes.flower_app import write_app

    if folder.exists():
        raise FileExistsError(f"{folder} exists; nothing was written: choose another name")
    write_app(folder)
    console = Console(highlight=False)
    console.print(Text(f"{folder}: run it with Flower's own command:"), soft_wrap=True)
    command = ["flwr", "run", str(folder), "--stream", "--federation-config", "num-supernodes=5"]
    # Or else Flower installs all packages anew for every run.
    setting = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"
    console.print(Text(f"{setting} {shlex.join(command)}"), soft_wrap=True)
