"""Set-up of a process that trains: threads, memory, and results that repeat to the bit."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import numpy as np
import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

# Parameters of glibc's mallopt, and values that keep a step's temporary arrays in the process.
_M_TRIM_THRESHOLD, _KEEP_FREE = -1, 1 << 30
_M_MMAP_THRESHOLD, _FROM_HEAP = -3, 32 << 20

CPU = torch.device("cpu")


def prepare_process() -> None:
    """Set up a process that does nothing but train, such as an actor of a simulation.

    From now on it computes on one thread, because two such processes are faster than one with
    two threads. Memory that a step frees is kept for the next step instead of being returned to
    the system, which would have to clear it page by page every time; this needs glibc and is
    skipped without it.
    """
    torch.set_num_threads(1)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_TRIM_THRESHOLD, _KEEP_FREE)
    mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use ``count`` threads; if None, one per core that the process may use."""
    if count is None:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    count = count or os.cpu_count() or 1
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def reproducible(device: torch.device = CPU) -> Iterator[None]:
    """Compute on one thread, and leave torch's random state as it was.

    Several threads add in a different order than one, which changes the last bits. NumPy's
    warnings of overflow are off: a worker that diverges is recognised by its model. On a GPU,
    cuDNN uses only algorithms that repeat their results.

    Parameters
    ----------
    device : torch.device
        Where tensors are trained.
    """
    on_gpu = device.type == "cuda"
    with (
        torch_threads(1),
        _blas().limit(limits=1, user_api="blas"),
        torch.random.fork_rng(devices=[torch.cuda.current_device()] if on_gpu else []),
        _repeating_cudnn() if on_gpu else nullcontext(),
        np.errstate(all="ignore"),
    ):
        yield


def _repeating_cudnn() -> AbstractContextManager[None]:
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return flags
