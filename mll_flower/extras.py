"""Packages that only some uses need, and the extras of this project that install them.

The strategies, the network commands and the certificates work without them. A command that needs
one says so before it starts anything.
"""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {
    "torch": ("torch", "torchvision", "sklearn", "matplotlib", "flwr_datasets", "ray"),
    "optimal": ("cvxpy",),
    "tensorboard": ("tensorboard",),
}
"""The packages, as they are imported, by the extra that installs them."""


class MissingPackage(ModuleNotFoundError):
    """A package that is not installed, with the extra that installs it."""


def require(what: str, *packages: str) -> None:
    """Raise `MissingPackage` if a package is not installed.

    Parameters
    ----------
    what : str
        What needs the packages, such as ``mll-flower run``.
    packages : str
        Their names, as they are imported.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingPackage(_message(f"{what} needs", missing), name=missing[0])


def explain(error: ModuleNotFoundError) -> str | None:
    """Return which extra installs the package that an import did not find.

    None if no extra of this project installs it: then the error is a fault of the program.
    """
    if isinstance(error, MissingPackage):
        return str(error)
    name = (error.name or "").partition(".")[0]
    return _message("this needs", [name]) if _extra_of(name) else None


def _message(beginning: str, packages: list[str]) -> str:
    extras = dict.fromkeys(_extra_of(name) or name for name in packages)
    return f"{beginning} {', '.join(packages)}: pip install 'mll-flower[{','.join(extras)}]'"


def _extra_of(package: str) -> str | None:
    return next((extra for extra, names in EXTRAS.items() if package in names), None)
