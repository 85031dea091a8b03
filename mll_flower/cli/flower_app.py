"""``mll-flower app``: write the built-in Flower app, for Flower's own commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text


def write(
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
) -> None:
    """Write the built-in Flower app to a folder, for `flwr run` and `flwr build`.

    FOLDER must not exist. It holds the library and its apps as they are installed, and a
    pyproject.toml with every key of the run config.
    """
    from mll_flower.processes.flower_app import write_app

    if folder.exists():
        raise FileExistsError(f"{folder} exists; nothing was written: choose another name")
    write_app(folder)
    console = Console(highlight=False)
    lines = f"{folder}: run it with Flower's own command, in this environment:\n" + (
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 "
        f"flwr run {folder} --stream --federation-config 'num-supernodes=5'"
    )
    console.print(Text(lines), soft_wrap=True)
