"""A device that is not there: tensors that compute as on the CPU but must not meet its tensors.

Its name is torch's ``meta``, whose tensors hold no numbers; a `FarTensor` says that it is on that
device and has its numbers beside it. What a GPU refuses fails here too: an operation on tensors of
both kinds, an array of a far tensor, a far tensor made by accident.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

FAR = torch.device("meta")

_CROSSES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class FarTensor(Tensor):
    """A tensor of the far device; ``near`` has its numbers."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> FarTensor:
        tensor: FarTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            near.size(),
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=FAR,
        )
        tensor.near = near
        return tensor

    def __repr__(self, **options: Any) -> str:
        return f"FarTensor({self.near!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _Operations(TorchDispatchMode):
    """Computes with far tensors; also those that are made from nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _Assignments(TorchFunctionMode):
    """``tensor.data = other`` takes the numbers along."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.data.__set__ and isinstance(args[0], FarTensor):  # type: ignore[attr-defined]
            args[0].near = args[1].near
        return func(*args, **(kwargs or {}))


@contextmanager
def far_device() -> Iterator[torch.device]:
    """Let the far device exist; yield it."""
    # As on the way to a GPU, a parameter that two modules share remains one.
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with _Operations(), _Assignments():
            yield FAR
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    far = [tensor for tensor in tensors if isinstance(tensor, FarTensor)]
    if far and len(far) < len(tensors) and func not in _CROSSES:
        raise RuntimeError(f"{func}: tensors of two devices meet")
    result_is_far = bool(far)
    if kwargs.get("device") is not None:
        result_is_far = torch.device(kwargs["device"]).type == FAR.type
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*tree_map(_near, args), **tree_map(_near, kwargs))
    if func._schema.name.endswith("_"):  # in place
        return None if result is None else args[0]
    return tree_map(lambda leaf: _far(leaf) if result_is_far else leaf, result)


def _near(leaf: Any) -> Any:
    return leaf.near if isinstance(leaf, FarTensor) else leaf


def _far(leaf: Any) -> Any:
    return FarTensor(leaf) if isinstance(leaf, Tensor) else leaf
