"""CIFAR-10 at half size: the data set of ResNet-18's small runs, made from the published one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mll_flower.tasks.data import load_dataset

FEW_TESTS = 512
"""Test images that are kept, of 10,000."""

NAME = "cifar10-half-size.npz"
SOURCE = "cifar10"
LABEL = f"CIFAR-10 at half size (16x16; tested on {FEW_TESTS} of the 10,000 test images)"
"""Name of the data set in results."""


def is_derived(dataset: str) -> bool:
    """Whether a data set has to be made before it can be read."""
    return dataset == f"npz:{NAME}"


def make_derived(folder: Path, data_dir: str | None) -> Path:
    """Make the derived data set, unless it exists; return its file.

    Parameters
    ----------
    folder : Path
        Folder to write it to.
    data_dir : str, optional
        Folder of the original.
    """
    path = folder / NAME
    if path.is_file():
        return path
    data = load_dataset(SOURCE, data_dir, "standard")
    rows = np.arange(FEW_TESTS) * len(data.x_test) // FEW_TESTS
    folder.mkdir(parents=True, exist_ok=True)
    # Two processes may make it at the same time: each writes a file of its own and renames it.
    # The last one wins, with the same bytes.
    part = path.with_name(f"{os.getpid()}-{NAME}")
    np.savez(
        part,
        x_train=_half(data.x_train),
        y_train=data.y_train,
        x_test=_half(data.x_test[rows]),
        y_test=data.y_test[rows],
    )
    part.replace(path)
    return path


def _half(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Halve height and width: each pixel is the mean of two by two."""
    rows, channels, height, width = images.shape
    blocks = images.reshape(rows, channels, height // 2, 2, width // 2, 2)
    return np.asarray(blocks.mean(axis=(3, 5)), dtype=np.float32)
