"""Flower's SuperNode with warm workers, or as it is, and in both cases with a watchdog.

Run as ``python -m mll_flower.processes.warm.supernode [SETTINGS] -- ARGUMENTS``, the arguments
being those of ``flower-supernode``.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from mll_flower.processes.warm.flower_internals import differences, warning
from mll_flower.processes.warm.parent_death import PARENT, die_with_parent
from mll_flower.processes.warm.settings import WarmSettings
from mll_flower.processes.warm.watchdog import Watchdog, end_for_restart

_MODULE = "mll_flower.processes.warm.supernode"


def supernode_words(settings: WarmSettings, arguments: Sequence[str]) -> list[str]:
    """Return the command of a SuperNode.

    Parameters
    ----------
    settings : WarmSettings
        How its ClientApps are run.
    arguments : Sequence[str]
        The arguments of ``flower-supernode``.
    """
    return [sys.executable, "-m", _MODULE, *settings.words(), *arguments]


def main(words: Sequence[str]) -> None:
    """Run the SuperNode until it is stopped, or no longer does its work.

    Parameters
    ----------
    words : Sequence[str]
        Settings, ``--`` and the arguments of ``flower-supernode``.
    """
    parent = os.environ.pop(PARENT, None)
    if parent is not None:
        die_with_parent(int(parent))
    settings, arguments = WarmSettings.from_words(words)
    watchdog = Watchdog(_superlink(arguments))
    watchdog.start()
    if not settings.cold:
        found = differences()
        if found:
            print(f"Warning: {warning(found)}", file=sys.stderr, flush=True)
        else:
            from mll_flower.processes.warm.executor_link import ExecutorLink
            from mll_flower.processes.warm.main_loop import MainLoop

            MainLoop(ExecutorLink(settings), watchdog, settings.parallel).install()
    from flwr.supernode.cli import flower_supernode

    sys.argv = ["flower-supernode", *arguments]
    try:
        flower_supernode()
    except Exception:
        traceback.print_exc()
        os._exit(1)
    # Flower has logged why its main loop has ended; its other threads would keep the process.
    end_for_restart("its main loop has ended")


def _superlink(arguments: Sequence[str]) -> str:
    from flwr.supercore.constant import SUPERLINK_DEFAULT_CLIENT_ADDRESS

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--superlink", default=SUPERLINK_DEFAULT_CLIENT_ADDRESS)
    address: str = parser.parse_known_args(arguments)[0].superlink
    return address


if __name__ == "__main__":
    main(sys.argv[1:])
