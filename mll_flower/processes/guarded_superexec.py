"""Flower's SuperExec, which starts the ServerApp, with its task's token out of the command line.

Run as ``python -m mll_flower.processes.guarded_superexec`` with the arguments of
``flower-superexec``. Flower gives the token as ``--token``, which every user of the machine sees in
``ps``; here the new process inherits it as an open file without a name (``--token-file``).
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

COMMAND = "flower-superexec"
_EXECUTOR = "flwr.supercore.superexec.executor.subprocess_executor"


def superexec_command(stock: Sequence[str], trusted: Path | None = None) -> list[str]:
    """Return the command that runs this module, from the one that Flower would run.

    Parameters
    ----------
    stock : Sequence[str]
        What Flower would run.
    trusted : Path, optional
        The certificate that the SuperLink shows to it, in place of the authority's.
    """
    if stock[0] != COMMAND:
        raise ValueError(f"{stock[0]!r}: the SuperExec of Flower 1.41 is {COMMAND}")
    arguments = list(stock[1:])
    if trusted is not None:
        arguments[arguments.index("--root-certificates") + 1] = str(trusted)
    return [sys.executable, "-m", "mll_flower.processes.guarded_superexec", *arguments]


def check_flower() -> ModuleType:
    """Return Flower's module that starts processes; `AttributeError` if it has changed."""
    executor = importlib.import_module(_EXECUTOR)
    names = executor.SubprocessExecutor.launch.__code__.co_names
    if executor.subprocess is not subprocess or "Popen" not in names:
        raise AttributeError(f"{_EXECUTOR} starts its processes in another way")
    return executor


def main() -> None:
    """Run the SuperExec until it is ended."""
    from flwr.supercore.cli.flower_superexec import flower_superexec

    executor: Any = check_flower()
    executor.subprocess = _Subprocess
    flower_superexec()


class _Subprocess:
    """What Flower's executor uses of `subprocess`; any other use is an error."""

    DEVNULL = subprocess.DEVNULL

    @staticmethod
    def Popen(args: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        command = list(args)
        place = command.index("--token")
        with tempfile.TemporaryFile() as file:
            file.write(command[place + 1].encode())
            file.flush()
            file.seek(0)
            command[place : place + 2] = ["--token-file", f"/dev/fd/{file.fileno()}"]
            return subprocess.Popen(command, pass_fds=[file.fileno()], **more)


if __name__ == "__main__":
    main()
