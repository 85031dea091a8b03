"""End this process when its parent dies, however that happens."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PARENT = "MLL_FLOWER_PARENT"
"""Environment variable with the id of the process that starts a SuperNode and answers for it."""

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def die_with_parent(parent: int) -> None:
    """End this process by SIGKILL as soon as its parent has ended.

    Parameters
    ----------
    parent : int
        Id of the parent, which may have ended already.
    """
    # Linux sends the signal itself, even if this process hangs in a library. It counts the thread
    # that has started us as the parent: that must be one that lasts.
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if sys.platform != "linux":
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
