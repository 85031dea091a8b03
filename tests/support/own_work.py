"""A user's file with a model, data and everything else, as awkward as they come."""

from __future__ import annotations

from pathlib import Path

FILE = '''"""Everything that a user may bring."""

import helper  # a module beside this one
import numpy as np
import torch
from torch import nn


class Awkward(nn.Module):
    """Cannot be pickled; has buffers, tied weights and dropout."""

    def __init__(self, input_shape, classes):
        super().__init__()
        self.first = nn.Linear(input_shape[0], 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 8)
        self.third.weight = self.second.weight
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(8, classes)
        self.activation = lambda x: torch.relu(x)
        self.register_buffer("scale", torch.tensor(np.random.rand(8), dtype=torch.float32))

    def forward(self, x):
        h = self.drop(self.activation(self.norm(self.first(x))))
        return self.out(self.third(self.activation(self.second(h))) * self.scale)


def plain(input_shape, outputs):
    return nn.Sequential(nn.Linear(input_shape[0], 16), nn.ReLU(), nn.Linear(16, outputs))


def lazy():
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(helper.CLASSES))


def _rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6))
    return x, x @ rng.normal(size=(6, helper.CLASSES))


def classes():
    x, scores = _rows()
    y = scores.argmax(1)
    return x[:240], y[:240], x[240:], y[240:]


def noisy(x):
    return x.add_(0.1 * torch.randn_like(x))


def numbers():
    x, scores = _rows()
    y = scores[:, 0] + 10
    return (x[:240], y[:240]), (x[240:], y[240:])


def smooth(output, target):
    return nn.functional.cross_entropy(output, target, label_smoothing=0.1)


def share_right(output, target):
    return (output.argmax(1) == target).float().mean()


def unequal(labels, hub_of, seed):
    cuts = np.cumsum(np.arange(1, len(hub_of) + 1))
    return np.split(np.arange(len(labels)), len(labels) * cuts[:-1] // cuts[-1])
'''


def write_user_files(folder: Path) -> Path:
    """Write ``mine.py`` and the module that it imports; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(FILE)
    (folder / "helper.py").write_text("CLASSES = 3\n")
    return folder
