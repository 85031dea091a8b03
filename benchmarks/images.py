"""Images of 28x28 pixels to train on: MNIST if its files exist, else random ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def image_data(data_dir: str, folder: Path, rows: int) -> dict[str, str]:
    """Return ``dataset`` and ``data-dir`` of a run config.

    Parameters
    ----------
    data_dir : str
        Root folder of torchvision's data sets; used if it holds MNIST.
    folder : Path
        Folder to which random images are written otherwise.
    rows : int
        Number of random training images.
    """
    raw = Path(data_dir or "data") / "MNIST" / "raw"
    if list(raw.glob("train-images-idx3-ubyte*")):
        return {"dataset": "mnist", "data-dir": str(Path(data_dir or "data").absolute())}
    rng = np.random.default_rng(0)
    path = folder / "images.npz"
    np.savez(
        path,
        x_train=rng.integers(256, size=(rows, 28, 28), dtype=np.uint8),
        y_train=np.arange(rows) % 10,
        x_test=rng.integers(256, size=(100, 28, 28), dtype=np.uint8),
        y_test=np.arange(100) % 10,
    )
    return {"dataset": f"npz:{path.absolute()}", "data-dir": ""}
