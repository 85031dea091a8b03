"""Which source a path names: a run's folder, a sweep's, or the network file of a deployment."""

from __future__ import annotations

from pathlib import Path

from mll_flower.deployment.network_file import load_network
from mll_flower.results import files
from mll_flower.watching import sweep_source
from mll_flower.watching.deployment_source import DeploymentSource
from mll_flower.watching.run_source import RunSource
from mll_flower.watching.source import Source


def open_source(path: Path, wait: bool = False, insecure: bool = False) -> Source:
    """Return the source that a path names.

    Parameters
    ----------
    path : Path
        A run's output, a sweep's output, or a network's TOML file.
    wait : bool
        Whether the folder of a run that has not begun may be missing or empty.
    insecure : bool
        Without TLS; for a deployment.

    Raises
    ------
    ValueError, OSError
        If it is none of these; the message says what is missing.
    """
    if path.is_file():
        if path.suffix.lower() != ".toml":
            raise ValueError(
                f"{path} is a file: give the output folder of a run or of a sweep, or a network's "
                ".toml file"
            )
        return DeploymentSource(load_network(path.absolute()), insecure)
    if (path / sweep_source.FILE).is_file():
        sweep_source.read_sweep(path)
        return sweep_source.SweepSource(path)
    if (path / files.CONFIG).is_file() or wait:
        return RunSource(path)
    if not path.exists():
        raise ValueError(f"{path} does not exist: for a run that has not begun, add --wait")
    if (path / "network.toml").is_file():
        raise ValueError(f"{path} is no run: for its deployment, give {path / 'network.toml'}")
    inside = sorted(p.parent for p in path.glob(f"*/{files.CONFIG}"))
    hint = f"; it contains runs, such as {inside[-1]}: name one of them" if inside else ""
    raise ValueError(
        f"{path} is neither a run's output (it has no {files.CONFIG}) nor a sweep's (no "
        f"{sweep_source.FILE}){hint}"
    )
