"""The command line: ``mll-flower COMMAND``.

A command is a function in a module of this package, registered below in one line. Command
modules import torch, ray, matplotlib and the like inside their functions, so that
``mll-flower --help`` stays fast.
"""

from __future__ import annotations

from typing import Annotated, Any

import click
import typer
from rich.console import Console
from typer.core import TyperGroup

from mll_flower import __version__
from mll_flower.cli import deploy, network, results, run


class Commands(TyperGroup):
    """Commands whose errors of input end as one red line and exit code 2.

    ValueError and OSError are what this project raises for a value or a file that is not
    right, in words for the user. Any other exception is a fault and keeps its traceback;
    ``--traceback`` shows that of every error.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; say what was wrong with its input."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of the output has left: nobody to tell
        except (ValueError, OSError) as error:
            if ctx.params.get("traceback"):
                raise
            console = Console(stderr=True, highlight=False)
            message = " ".join(str(error).split()) or type(error).__name__
            console.print(f"Error: {message}", style="bold red", markup=False, soft_wrap=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands,
    name="mll-flower",
    help="Multi-Level Local SGD for Flower.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mll-flower {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error comes from.")
    ] = False,
) -> None:
    """Multi-Level Local SGD for Flower."""


app.command("run")(run.run_command())
app.command("network")(network.network)
app.command("plot")(results.plot)
app.command("compare")(results.compare)
app.command("report")(results.report)
deploy.register(app)
