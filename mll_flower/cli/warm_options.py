"""The options of warm workers, which several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Cold = Annotated[
    bool, typer.Option("--cold", help="Run ClientApps as Flower does: a new process per message.")
]
StartMethod = Annotated[
    str, typer.Option(help="How processes begin: fork, or spawn for apps that use a GPU.")
]
Preload = Annotated[
    str, typer.Option(help="Modules to import before the first message, with commas.")
]
MaxMemory = Annotated[
    float | None,
    typer.Option(help="Gigabytes that a ClientApp may use; above, it is ended. Default: no limit."),
]
Parallel = Annotated[
    int, typer.Option(help="Messages of different runs that are worked on at the same time.")
]
