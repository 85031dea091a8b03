"""Nothing in the path of torch assumes the CPU; which device a run takes; what is refused.

There need not be a GPU: `tests.support.far_device` is a device on which tensors compute but refuse
to meet those of the CPU, as a GPU's do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mll_flower.apps.launch import run_in_process, run_on_flower
from mll_flower.config import RunConfig
from mll_flower.processes.ray_cluster import Resources
from mll_flower.tasks.task_check import check_task
from mll_flower.training import device, evaluation, torch_trainer
from mll_flower.training.device import check_device, resolve_device
from mll_flower.training.engine import Engine
from tests.support.far_device import FAR, far_device
from tests.support.torch_modules import (
    CLASSES,
    BatchNormNet,
    DropoutNet,
    OddNet,
    make_engine,
    make_task,
    same,
)


def play(engine: Engine) -> tuple[Any, ...]:
    """Train two workers for two rounds, one of them corrected; evaluate the result."""
    flat = engine.initial()
    result = engine.run_hub(flat, [0, 1], [1, 3], [1, 2], np.array([[2, 3], [3, 1]]), [0.1, 0.05])
    shift = {dtype: np.full_like(vector, 1) for dtype, vector in flat.items()}
    shift["float32"] *= np.float32(1e-3)
    _, shifted = engine._take_steps(result.flat, 2, 3, 2, 0.1, shift=shift)
    copy = {dtype: vector.copy() for dtype, vector in shifted.items()}
    return result.flat, copy, result.losses, *engine.evaluate(copy)


@pytest.mark.parametrize("model", [BatchNormNet, DropoutNet, OddNet, "mlp", "cnn", "logistic"])
@pytest.mark.parametrize("optimiser", [{"momentum": 0.5}, {"optimiser": "adamw"}])
def test_another_device_trains_the_same_model(
    model: Any, optimiser: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only on the CPU do convolutions have another memory format, with other last bits.
    for module in (torch_trainer, evaluation):
        monkeypatch.setattr(module, "channels_last_pays", lambda *args: False)
    options = {"weight_decay": 0.01, "engine": "autograd", **optimiser}
    expected = play(make_engine(make_task(model), device="cpu", **options))
    with far_device() as far:
        engine = make_engine(make_task(model), device=far, **options)
        found = play(engine)
    assert engine.device == FAR
    assert engine.gradient_engine == "autograd"
    for here, there in zip(expected[:2], found[:2], strict=True):
        if model == "logistic" and "momentum" in optimiser:  # on the CPU trained without torch
            np.testing.assert_allclose(there["float32"], here["float32"], rtol=1e-4, atol=1e-6)
        else:
            assert same(here, there)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-5)
    assert found[3:] == pytest.approx(expected[3:], rel=1e-5)


class AssumesTheCpu(nn.Module):
    """A tensor that is neither a parameter nor a buffer stays where it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, CLASSES)
        self.scale = torch.ones(64)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.flatten(1) * self.scale)


def test_a_module_that_assumes_the_cpu_is_found_before_the_run() -> None:
    check_task(make_task(AssumesTheCpu), 4)
    with far_device() as far, pytest.raises(ValueError, match="tensors of two devices meet"):
        check_task(make_task(AssumesTheCpu), 4, far)
    with far_device() as far:
        check_task(make_task(BatchNormNet), 4, far)


@pytest.mark.parametrize(
    ("choice", "engine", "model", "gpu", "expected"),
    [
        ("auto", "auto", "cnn", True, "cuda"),
        ("auto", "auto", "cnn", False, "cpu"),
        ("auto", "autograd", "cnn", True, "cuda"),
        ("auto", "compiled", "cnn", True, "cpu"),
        ("auto", "auto", "logistic", True, "cpu"),
        ("cpu", "auto", "cnn", True, "cpu"),
        ("cuda", "auto", "logistic", True, "cuda"),
    ],
)
def test_which_device_a_run_takes(
    choice: str, engine: str, model: str, gpu: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve_device(choice, engine, model, gpu) == expected
    monkeypatch.setattr(device, "has_gpu", lambda: gpu)
    assert resolve_device(choice, engine, model) == expected


def test_what_is_impossible_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="compiled gradients are made for CPUs; use engine='auto'"):
        RunConfig.from_run_config({"device": "cuda", "engine": "compiled"})
    with pytest.raises(ValueError, match="device='gpu' is not known: use auto, cpu, cuda"):
        RunConfig.from_run_config({"device": "gpu"})
    with pytest.raises(ValueError, match="no GPU; give each a share of one"):
        resolve_device("cuda", "auto", "cnn", gpu=False)
    monkeypatch.setattr(device, "has_gpu", lambda: False)
    with pytest.raises(ValueError, match="torch finds no GPU on this machine; use device='auto'"):
        check_device("cuda")
    check_device("cuda", actor_gpus=0.5, elsewhere=True)
    monkeypatch.setattr(device, "has_gpu", lambda: True)
    check_device("cuda", actor_gpus=0.5)
    with pytest.raises(ValueError, match=r"actors that take no GPU: .*--actor-gpus"):
        check_device("cuda", actor_gpus=0.0)


def test_a_run_without_a_gpu_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "has_gpu", lambda: False)
    values = {"device": "cuda", "output": str(tmp_path / "out")}
    with pytest.raises(ValueError, match="torch finds no GPU"):
        run_in_process(values)
    with pytest.raises(ValueError, match="torch finds no GPU"):
        run_on_flower(values, print)
    with pytest.raises(ValueError, match="actors that take no GPU"):
        run_on_flower(values, print, resources=Resources(address="10.0.0.1:6379"))
    assert not (tmp_path / "out").exists()


def test_a_deployed_worker_may_decide_for_itself() -> None:
    assert RunConfig(device="cuda").at_node({"device": "cpu"}).device == "cpu"
    assert RunConfig(device="cuda").at_node({}).device == "cuda"
