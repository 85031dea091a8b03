"""Whether the ``forward`` of a module could take another way next time: `find_condition`.

Python functions are read, not run: a function with a condition is found before any condition was
true. Followed are the names that a ``forward`` and the functions behind them use: methods and
attributes of the module, functions of the file, and functions of other files.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import nn

_STEERING = ("__call__", "__getattr__", "train", "eval")


def find_condition(module: nn.Module) -> str | None:
    """Return what makes a module's way depend on more than its input; None if nothing does.

    Parameters
    ----------
    module : Module
        The model. torch's own layers and functions are not looked into.
    """
    for part in module.modules():
        kind = type(part)
        for name in _STEERING:
            if getattr(kind, name) is not getattr(nn.Module, name):
                return f"{kind.__name__} has a method {name!r} of its own"
        for function in _functions(part):
            if _branches(function.__code__):
                return f"{function.__qualname__} has a condition or a with block"
    return None


def _functions(part: nn.Module) -> Iterator[FunctionType]:
    """Return the functions that may run in a module's forward, each once."""
    seen: set[FunctionType] = set()
    waiting = _methods(part, {"forward"})
    while waiting:
        function = waiting.pop()
        if function in seen or _is_torchs(function.__module__):
            continue
        seen.add(function)
        yield function
        names = set(_names(function.__code__))
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        values = {**function.__globals__, **{name: _content(cell) for name, cell in cells}}
        used = [values[name] for name in names if name in values]
        for file in used:
            if isinstance(file, ModuleType) and not _is_torchs(file.__name__):
                waiting += _as_functions(getattr(file, name, None) for name in names)
        waiting += _as_functions(used)
        waiting += _methods(part, names)


def _methods(part: nn.Module, names: set[str]) -> list[FunctionType]:
    """Return the functions that a module and its classes have under some names."""
    places = [vars(place) for place in (part, *type(part).__mro__)]
    return _as_functions(place[name] for place in places for name in names if name in place)


def _as_functions(values: Any) -> list[FunctionType]:
    """Return the Python functions behind some values: methods, properties, partial functions."""
    functions = []
    for value in values:
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, partial):
            value = value.func
        inner = getattr(value, "__func__", value)
        if isinstance(inner, FunctionType):
            functions.append(inner)
    return functions


def _names(code: CodeType) -> Iterator[str]:
    """Return the names that some code uses, also in the functions within it."""
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _is_torchs(name: str | None) -> bool:
    return (name or "").partition(".")[0] == "torch"


def _branches(code: CodeType) -> bool:
    """Return whether code has conditional jumps, except those of ``for``."""
    names = (instruction.opname for instruction in dis.get_instructions(code))
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return any("JUMP" in name and "_IF_" in name for name in names) or any(map(_branches, inner))
