"""Random changes to the examples of a batch before each step: the run config's key ``augment``.

Torch is seeded before a worker's steps, so what is random here is the same in every process that
takes the same steps. Evaluations see the data as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Augment = Callable[["Tensor"], "Tensor"]
"""Changes a batch of examples; shape and dtype stay."""

NONE, CROP_FLIP = "none", "crop-flip"

_BORDER = 4


def known_augmentations() -> tuple[str, ...]:
    """Return the values of the key ``augment``."""
    return (NONE, CROP_FLIP, "module:function", "file.py:function")


class CropFlip:
    """Move every image by up to four pixels each way, and mirror every other one left to right.

    Pixels that come in at an edge are those inside it, mirrored. This is the usual augmentation of
    CIFAR-10: a border of four mirrored pixels, then a random crop of the old size.

    Parameters
    ----------
    shape : tuple of int
        Shape of an image: channels, rows, columns.

    Raises
    ------
    ValueError
        If examples of this shape are not images, or too small.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        import torch

        if len(shape) != 3 or min(shape[1:]) <= _BORDER:
            raise ValueError(
                f"augment={CROP_FLIP!r} takes images (channels, rows, columns) of more than "
                f"{_BORDER} rows and columns, and the examples have the shape {shape}: use "
                f"augment={NONE!r}, or a function of your own"
            )
        rows, columns = (torch.stack(_windows(size)) for size in shape[1:])
        # Places in a flat image: of the beginning of a row, and in a row.
        self._rows = rows * shape[2]
        self._columns = torch.cat([columns, columns.flip(1)])

    def __call__(self, x: Tensor) -> Tensor:
        """Return the batch with each image moved and perhaps mirrored."""
        import torch

        down = self._rows[torch.randint(len(self._rows), x.shape[:1])]
        across = self._columns[torch.randint(len(self._columns), x.shape[:1])]
        places = (down[:, :, None] + across[:, None, :]).flatten(1)
        every_channel = places[:, None, :].expand(*x.shape[:2], -1)
        return x.flatten(2).gather(2, every_channel).view_as(x)


def _windows(size: int) -> list[Tensor]:
    """Return which pixels of a line are seen, for each way to move it."""
    import torch

    inside = torch.arange(size)
    before, after = inside[1 : _BORDER + 1].flip(0), inside[-_BORDER - 1 : -1].flip(0)
    line = torch.cat([before, inside, after])
    return [line[start : start + size] for start in range(2 * _BORDER + 1)]
