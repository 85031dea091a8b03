"""Which code computes gradients: the run config's key ``engine``.

``autograd`` is PyTorch's, for any module. ``compiled`` is machine code made for the network, for
plain stacks of layers on a CPU that can run it: several times faster, different in the last bits,
and with random numbers of its own for dropout. So a run decides once, at its start, and tells all
its processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mll_flower.training._compiled.gradients import why_not_compiled

if TYPE_CHECKING:
    from mll_flower.tasks.task import Task

GradientEngine = Literal["autograd", "compiled"]


def resolve_engine(choice: str, task: Task) -> GradientEngine:
    """Return the engine of a task on this machine.

    Parameters
    ----------
    choice : str
        ``autograd``, ``compiled``, or ``auto``: compiled where that is possible.
    task : Task
        Data, model and loss.

    Raises
    ------
    ValueError
        If ``compiled`` is asked for and not possible; the text names the layer in the way.
    """
    if choice == "autograd":
        return "autograd"
    if choice not in ("auto", "compiled"):
        raise ValueError(f"engine={choice!r} is not known: use auto, autograd or compiled")
    reason = why_not_compiled(task)
    if reason is None:
        return "compiled"
    if choice == "auto":
        return "autograd"
    raise ValueError(
        f"engine='compiled' is not possible for model={task.model!r}: {reason}; use "
        "engine='auto' or 'autograd'"
    )
