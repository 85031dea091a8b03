"""Where tensors are trained: the run config's key ``device``.

``cpu`` and ``cuda`` are torch's names. ``auto`` is a GPU if the processes that train have one. A
GPU adds in another order than a CPU, so a run decides once, at its start, and tells all its
processes. torch is imported when a device is asked for: commands check settings without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Device = Literal["cpu", "cuda"]


def has_gpu() -> bool:
    """Return whether torch can train on a GPU in this process."""
    import torch

    return torch.cuda.is_available()


def resolve_device(choice: str, engine: str, model: str, gpu: bool | None = None) -> Device:
    """Return the device on which a model is trained.

    Parameters
    ----------
    choice : str
        ``cpu``, ``cuda``, or ``auto``: a GPU if there is one and the model can use it. Compiled
        gradients and logistic regression, which has a trainer of its own, are a CPU's.
    engine, model : str
        The keys of the run config.
    gpu : bool, optional
        Whether the processes that train have a GPU; by default this process trains.

    Raises
    ------
    ValueError
        If ``cuda`` is asked for and there is no GPU.
    """
    if choice == "cpu":
        return "cpu"
    if choice not in ("auto", "cuda"):
        raise ValueError(f"device={choice!r} is not known: use auto, cpu or cuda")
    if choice == "auto" and (engine == "compiled" or model == "logistic"):
        return "cpu"
    if has_gpu() if gpu is None else gpu:
        return "cuda"
    if choice == "auto":
        return "cpu"
    raise ValueError(
        "device='cuda': the processes that train have no GPU; give each a share of one "
        "(--actor-gpus 0.5; with flwr run: client-resources-num-gpus), or use device='auto'"
    )


def check_device(choice: str, actor_gpus: float | None = None, elsewhere: bool = False) -> None:
    """Raise ValueError if a run asks for a GPU that the processes that train will not have.

    Parameters
    ----------
    choice : str
        The key ``device`` of the run config.
    actor_gpus : float, optional
        Share of a GPU that each actor takes; None if this process trains.
    elsewhere : bool
        Whether actors are on other machines, whose GPUs this process cannot see.
    """
    if choice != "cuda":
        return
    if not elsewhere and not has_gpu():
        raise ValueError(
            "device='cuda': torch finds no GPU on this machine; use device='auto' or 'cpu', or "
            "install a torch for CUDA and the GPU's driver"
        )
    if actor_gpus == 0:
        raise ValueError(
            "device='cuda' with actors that take no GPU: say which share of one each of them "
            "takes, such as --actor-gpus 0.5 for two actors on a GPU"
        )


def seed_noise(device: torch.device, seed: int) -> None:
    """Seed the randomness of a module's own, such as dropout."""
    import torch

    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
