"""The files of the user's that a run config names, by their contents."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from mll_flower.config import RunConfig
from mll_flower.tasks.data import npz_path
from mll_flower.tasks.own_code import OWN_KEYS, is_reference, source_file
from mll_flower.tasks.own_partitions import partition_file


def named_files(config: RunConfig) -> list[Path]:
    """Return the files of the user's that a config names: graph, H, clock, data, rows, code.

    A module is looked for in code-dir alone. What the user's code imports or reads is not known.
    """
    values = config.to_run_config()
    named: list[Path | None] = [Path(config.graph), Path(config.mixing), npz_path(config.dataset)]
    named.append(Path(config.clock))
    named.append(partition_file(config.partition, config.code_dir))
    for reference in (str(values[key]) for key in OWN_KEYS):
        if is_reference(reference):
            place = reference.rpartition(":")[0].replace(".", "/")
            named.append(source_file(reference, config.code_dir))
            named += [Path(config.code_dir, f"{place}{end}") for end in (".py", "/__init__.py")]
    return sorted({path.absolute() for path in named if path is not None and path.is_file()})


def digests(config: RunConfig) -> dict[str, str]:
    """Return a digest of each file that a config names."""
    return {str(path): _digest(path) for path in named_files(config)}


def _digest(path: Path) -> str:
    about = path.stat()
    return _digest_of_version(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=64)
def _digest_of_version(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
