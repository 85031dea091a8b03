"""Functions and classes of the user's own, named in the run config: found, called, checked.

A name has the form ``package.module:name`` or ``path/to/file.py:name``. Modules are looked for in
the folder ``code-dir`` and wherever Python looks (installed packages, PYTHONPATH); a path starts
at ``code-dir``. Every error names the key, its value and what is wrong.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

OWN_KEYS = ("model", "dataset", "augment", "loss", "metric", "partition")
"""Keys of the run config that may name something of the user's own."""

_DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"

_NOT_MODULES = ("npz", "hf", "emnist")  # data sets: npz:PATH, hf:NAME, emnist:SPLIT

# Files that were executed: path -> (its time of change, module).
_executed: dict[Path, tuple[int, ModuleType]] = {}


def is_reference(text: str) -> bool:
    """Return whether a value names something in Python: ``module:name`` or ``file.py:name``."""
    place, _, name = text.rpartition(":")
    if not re.fullmatch(_DOTTED, name) or place in _NOT_MODULES:
        return False
    return place.endswith(".py") or re.fullmatch(_DOTTED, place) is not None


def source_file(reference: str, code_dir: str) -> Path | None:
    """Return the file that ``file.py:name`` names; None for ``module:name``."""
    place = reference.rpartition(":")[0]
    return Path(code_dir, Path(place).expanduser()).absolute() if place.endswith(".py") else None


def find(key: str, reference: str, code_dir: str = "") -> Callable[..., Any]:
    """Return the function or class that a reference names.

    Parameters
    ----------
    key : str
        The key of the run config, for messages.
    reference : str
        ``package.module:name`` or ``path/to/file.py:name``.
    code_dir : str
        The folder in which modules and files are looked for first.

    Raises
    ------
    ValueError
        If it is not found, importing it fails, or it cannot be called.
    """
    path = source_file(reference, code_dir)
    for folder in (code_dir, str(path.parent) if path else ""):
        # At the end: a file of the user's must never take the place of an installed module.
        if folder and folder not in sys.path:
            sys.path.append(folder)
    place, _, name = reference.rpartition(":")
    found: Any = _import(key, reference, place, code_dir) if path is None else _run(key, path)
    for part in name.split("."):
        if not hasattr(found, part):
            known = sorted(n for n, value in vars(found).items() if _is_own(value, found))
            raise ValueError(
                f"{key}={reference!r}: {place} has no {part!r}"
                + (f"; it has {', '.join(known)}" if known else "")
            )
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{key}={reference!r} is a {type(found).__name__}: name a function")
    target: Callable[..., Any] = found
    return target


def call(key: str, reference: str, code_dir: str = "", **offered: Any) -> Any:
    """Call what a reference names, with those of the offered values that it has parameters for.

    Parameters
    ----------
    key, reference, code_dir
        As in `find`.
    **offered
        Values by the name of the parameter that gets them; other parameters need defaults.
    """
    function = find(key, reference, code_dir)
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        parameters = {}
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    unknown = [name for name in needed if name not in offered]
    if unknown:
        raise ValueError(
            f"{key}={reference!r} needs a value for {', '.join(map(repr, unknown))}: its "
            f"parameters may be called {', '.join(offered)}, any other needs a default"
        )
    given = {name: value for name, value in offered.items() if name in parameters}
    with named_errors(key, reference):
        return function(**given)


@contextmanager
def named_errors(key: str, value: str, doing: str = "") -> Iterator[None]:
    """Turn any error inside into one that names a value of the run config.

    Parameters
    ----------
    key, value : str
        The key of the run config and its value.
    doing : str
        What the user's function was given, such as ``on a batch of shape (32, 4)``.
    """
    try:
        yield
    except Exception as error:
        given = f" {doing}" if doing else ""
        raise ValueError(f"{key}={value!r}{given} raised {_described(error)}") from error


def forget_changed_files() -> bool:
    """Forget files of the user's that have changed since they were executed; tell if any had."""
    changed = [path for path, (time, _) in _executed.items() if _changed_at(path) != time]
    for path in changed:
        del _executed[path]
    return bool(changed)


def needs_code_dir(settings: Mapping[str, Any]) -> bool:
    """Return whether a run config names code or rows of the user's own."""
    values = [str(settings.get(key, "")) for key in OWN_KEYS]
    return any(is_reference(value) for value in values) or values[-1].endswith((".json", ".npz"))


def _import(key: str, reference: str, name: str, code_dir: str) -> ModuleType:
    looked = f"modules are looked for in {code_dir or 'code-dir (not set)'} and on PYTHONPATH"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"{key}={reference!r}: {name} raised {_described(error)}") from error
        raise ValueError(f"{key}={reference!r}: no module {error.name!r}; {looked}") from None
    except Exception as error:
        raise ValueError(f"{key}={reference!r}: {name} raised {_described(error)}") from error
    top = name.partition(".")[0]
    own = [Path(code_dir, f"{top}.py"), Path(code_dir, top, "__init__.py")] if code_dir else []
    origin = getattr(module, "__file__", None)
    elsewhere = origin and Path(code_dir).resolve() not in Path(origin).resolve().parents
    if elsewhere and any(path.is_file() for path in own):
        raise ValueError(
            f"{key}={reference!r}: Python finds another module {top!r} at {origin}: rename yours, "
            "or name it by its path, file.py:name"
        )
    return module


def _run(key: str, path: Path) -> ModuleType:
    """Execute a file as a module, once per process unless it changes."""
    if path in _executed:
        return _executed[path][1]
    if not path.is_file():
        raise ValueError(
            f"{key}: the file {path} does not exist: check the path, which starts at code-dir"
        )
    name = f"_own_{path.stem}_{zlib.crc32(bytes(path)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    changed_at = _changed_at(path)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"{key}: {path} raised {_described(error)}") from error
    _executed[path] = (changed_at, module)
    return module


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


def _is_own(value: Any, module: Any) -> bool:
    return callable(value) and getattr(value, "__module__", "") == module.__name__


def _described(error: Exception) -> str:
    """Return an error with the line that raised it."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    if isinstance(error, SyntaxError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    # Python's own frames and ours say nothing to the user.
    others = ("<", str(Path(importlib.__file__).parents[1]), str(Path(__file__).parents[1]))
    own = [f for f in frames if not f.filename.startswith(others)]
    return f"{text} ({own[-1].filename}, line {own[-1].lineno})" if own else text
