"""The channels_last memory format: when it is chosen, and batches in it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mll_flower.training._fast.channels_last import channels_last_pays, to_channels_last


def test_channels_last_is_chosen_by_sizes() -> None:
    conv = nn.Sequential(nn.Conv2d(1, 10, 5), nn.Dropout(), nn.Flatten())
    assert channels_last_pays(conv, torch.zeros(1, 28, 28), 1)
    assert conv.training
    heavy = nn.Conv2d(512, 512, 3)  # one output pixel for 2.4 million weights
    assert not channels_last_pays(heavy, torch.zeros(512, 3, 3), 8)
    assert not channels_last_pays(nn.Flatten(), torch.zeros(1, 28, 28), 32)
    assert not channels_last_pays(nn.Linear(4, 2), torch.zeros(4), 32)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_keeps_its_values_and_gets_the_format(channels: int) -> None:
    batch = torch.arange(2 * channels * 4 * 5).reshape(2, channels, 4, 5).float()
    found = to_channels_last(batch)
    assert torch.equal(found, batch)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert nn.functional.max_pool2d(found, 2).stride()[1] == 1  # torch goes on in this format
