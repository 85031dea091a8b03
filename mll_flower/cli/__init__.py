"""The command line: ``mll-flower COMMAND``.

Each command is a function in a module of this package: `run` simulates a run, `resume` goes on with
one, `sweep` runs a grid of them (with `batch`, which the experiments use too), `network` describes
a network, `plan` finds the setting for a goal, `results` plots, compares and reports runs, `watch`
follows one live, `deploy` runs a network of real hubs, `logs` shows what they write, `supernode`
runs Flower's SuperNode with warm workers, `flower_app` writes the built-in app for Flower's own
commands. The modules import torch, ray, matplotlib and the like inside their functions, so that
``mll-flower --help`` stays fast.
"""

from __future__ import annotations

from typing import Annotated, Any

import click
import typer
from rich.console import Console
from typer.core import TyperGroup

from mll_flower import __version__
from mll_flower.cli import (
    deploy,
    flower_app,
    logs,
    network,
    plan,
    results,
    resume,
    run,
    supernode,
    sweep,
    watch,
)
from mll_flower.extras import explain


class Commands(TyperGroup):
    """A group of commands that answers bad input with one red line and exit code 2.

    The project raises ValueError and OSError for a value or a file that is wrong, with a message
    for the user, and an import of a package that an extra installs fails with the name of that
    extra. Any other exception is a fault of the program and keeps its traceback; ``--traceback``
    shows the traceback of every error.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; print what is wrong with its input, if anything."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # whatever read the output has closed it: a message would reach nobody
        except (ValueError, OSError, ModuleNotFoundError) as error:
            message = explain(error) if isinstance(error, ModuleNotFoundError) else str(error)
            if message is None or ctx.params.get("traceback"):
                raise
            console = Console(stderr=True, highlight=False)
            message = " ".join(message.split()) or type(error).__name__
            console.print(f"Error: {message}", style="bold red", markup=False, soft_wrap=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands,
    name="mll-flower",
    help="Multi-Level Local SGD for Flower: simulate networks of hubs and workers, or deploy them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"mll-flower {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Multi-Level Local SGD for Flower: simulate networks of hubs and workers, or deploy them."""


app.command("run")(run.run_command())
app.command("resume")(resume.resume)
app.command("sweep")(sweep.sweep)
app.command("network")(network.network)
app.command("plan")(plan.plan)
app.command("plot")(results.plot)
app.command("compare")(results.compare)
app.command("report")(results.report)
app.command("watch")(watch.watch)
app.command("app")(flower_app.write)
deploy.register(app)
app.command("logs")(logs.logs)
supernode.register(app)
