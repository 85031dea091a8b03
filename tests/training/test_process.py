"""The set-up of a process that trains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mll_flower.training.process import prepare_process, reproducible, torch_threads


def test_a_process_can_be_prepared_twice() -> None:
    before = torch.get_num_threads()
    try:
        prepare_process()
        prepare_process()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_threads_are_restored_after_an_error() -> None:
    before = torch.get_num_threads()

    def fail() -> None:
        with torch_threads(before + 1):
            assert torch.get_num_threads() == before + 1
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert torch.get_num_threads() == before


def test_reproducible_code_runs_on_one_thread_and_leaves_the_random_state_alone() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    with reproducible():
        assert torch.get_num_threads() == 1
        torch.rand(3)
        assert np.float32(1e38) * np.float32(10) == np.inf  # and no warning
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
