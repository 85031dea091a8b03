"""Flower's SuperExec with an executor of ours, which keeps ClientApps' processes.

Two names in Flower's module are replaced: what makes the executor, and the class that hands it a
task, so that it learns the task's run.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from typing import Any

from mll_flower.processes.warm.executor import WarmExecutor
from mll_flower.processes.warm.parent_death import die_with_parent
from mll_flower.processes.warm.settings import WarmSettings


def main() -> None:
    """Run SuperExec until the SuperNode ends.

    The command line has the descriptor of the pipe to the SuperNode, the SuperNode's process id,
    the settings, ``--``, and the arguments of ``flower-superexec``.
    """
    descriptor, parent, *words = sys.argv[1:]
    die_with_parent(int(parent))
    settings, arguments = WarmSettings.from_words(words)
    executor = WarmExecutor(Connection(int(descriptor)), settings)
    # The least that Flower allows: the executor itself waits until there is a task.
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.01"
    import flwr.supercore.superexec.run_superexec as run_superexec
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.plugin import AutoExecPlugin

    class Plugin(AutoExecPlugin):
        """Tells the executor a task's run."""

        def launch_task(self, token: str, task: Any) -> Any:
            executor.run = task.run_id
            return super().launch_task(token, task)

    flower: Any = run_superexec
    flower.AutoExecPlugin = Plugin
    flower.get_executor = lambda *_, **__: executor
    sys.argv = ["flower-superexec", *arguments]
    flower_superexec()
