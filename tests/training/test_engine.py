"""The engine's steps equal a plain torch loop, whatever order the workers are trained in."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mll_flower.training.engine import Engine
from tests.support.torch_modules import (
    WORKERS,
    BatchNormNet,
    DropoutNet,
    HiddenDropoutNet,
    OddNet,
    close,
    make_engine,
    make_task,
    plain_loop,
    same,
)

MODELS = ["cnn", "mlp", "logistic", BatchNormNet, DropoutNet, HiddenDropoutNet, OddNet]
WITHOUT_DROPOUT = ["cnn", "mlp", "logistic", BatchNormNet, OddNet]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("model", WITHOUT_DROPOUT)
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.01}],
)
def test_steps_equal_a_plain_loop(model: object, options: dict[str, float]) -> None:
    task = make_task(model)
    engine = make_engine(task, **options)
    flat = engine.initial()
    loss = engine.train(flat, 2, 7, 6, 0.05)
    state, plain_loss = plain_loop(task, engine.initial(), 2, 7, 6, 0.05, **options)
    close(engine, flat, state)
    assert loss == pytest.approx(plain_loss, rel=1e-5)
    assert not same(flat, engine.initial())


@pytest.mark.parametrize("channels", [1, 3])
def test_steps_in_channels_last_equal_a_plain_loop(channels: int) -> None:
    task = make_task("cnn", channels=channels, size=12)
    engine = make_engine(task, engine="autograd")
    assert engine._trainer._gradients._channels_last
    flat = engine.initial()
    engine.train(flat, 0, 1, 5, 0.05)
    close(engine, flat, plain_loop(task, engine.initial(), 0, 1, 5, 0.05)[0])


def test_steps_of_a_resnet_equal_a_plain_loop() -> None:
    task = make_task("resnet18", channels=3)
    engine = make_engine(task)
    flat = engine.initial()
    engine.train(flat, 0, 1, 2, 0.01)
    # BatchNorm magnifies rounding errors when batches and images are small.
    close(engine, flat, plain_loop(task, engine.initial(), 0, 1, 2, 0.01)[0], 1e-4)
    assert engine.layout.arrays(flat)["bn1.num_batches_tracked"] == 2


def test_many_steps_of_logistic_equal_autograd() -> None:
    task = make_task("logistic", size=28)
    engine = make_engine(task, batch_size=32)
    flat = engine.initial()
    loss = engine.train(flat, 1, 3, 500, 0.02)
    state, plain_loss = plain_loop(task, engine.initial(), 1, 3, 500, 0.02, batch_size=32)
    close(engine, flat, state, 1e-5)
    assert loss == pytest.approx(plain_loss, abs=1e-5)


def test_logistic_survives_huge_logits() -> None:
    engine = make_engine(make_task("logistic"))
    flat = engine.initial()
    flat["float32"][:] = 1e4
    with np.errstate(all="raise"):
        assert math.isfinite(engine.train(flat, 0, 0, 3, 0.1))
    assert np.isfinite(flat["float32"]).all()


@pytest.mark.parametrize("model", MODELS)
def test_a_result_does_not_depend_on_what_was_trained_before(model: object) -> None:
    # With momentum, which could leak from one worker into the next.
    first, second = (make_engine(make_task(model), momentum=0.5) for _ in range(2))
    results = {}
    for worker in range(WORKERS):
        results[worker] = first.initial()
        first.train(results[worker], worker, 1, 1 + worker, 0.1)
    for worker in reversed(range(WORKERS)):
        torch.rand(worker + 1)  # other code draws random numbers
        flat = second.initial()
        second.train(flat, worker, 1, 1 + worker, 0.1)
        assert same(flat, results[worker])
    distinct = {hashlib.sha256(r["float32"].tobytes()).hexdigest() for r in results.values()}
    assert len(distinct) == WORKERS


def digest(model: str) -> str:
    names = {c.__name__: c for c in (BatchNormNet, DropoutNet, HiddenDropoutNet)}
    engine = make_engine(make_task(names.get(model, model)), momentum=0.5)
    flat = engine.initial()
    engine.train(flat, 4, 9, 3, 0.1)
    return hashlib.sha256(b"".join(v.tobytes() for v in flat.values())).hexdigest()


@pytest.mark.parametrize(
    "model", ["cnn", "logistic", "BatchNormNet", "DropoutNet", "HiddenDropoutNet"]
)
def test_another_process_gives_the_same_bits(model: str) -> None:
    code = (
        "import torch; from mll_flower.training.process import prepare_process; prepare_process(); "
        "torch.rand(3); from tests.training.test_engine import digest; "
        f"print(digest({model!r}))"
    )
    env = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == digest(model)


@pytest.mark.parametrize("model", ["cnn", "logistic"])
def test_the_number_of_threads_does_not_matter(model: str) -> None:
    task = make_task(model, size=28)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            engine = make_engine(task, batch_size=32)
            flat = engine.initial()
            engine.train(flat, 0, 0, 3, 0.1)
            assert torch.get_num_threads() == threads
            results.append(flat)
    finally:
        torch.set_num_threads(before)
    assert same(*results)


def test_zero_steps_change_nothing() -> None:
    engine = make_engine(make_task())
    flat = engine.initial()
    assert math.isnan(engine.train(flat, 0, 0, 0, 0.1))
    assert same(flat, engine.initial())


def test_error_messages_name_the_wrong_value() -> None:
    task = make_task()
    with pytest.raises(ValueError, match="worker 1 has 0 rows"):
        Engine(task, [np.array([1]), np.array([], dtype=int)], batch_size=2, seed=0)
    with pytest.raises(ValueError, match="from 0 to 119"):
        Engine(task, [np.array([120])], batch_size=2, seed=0)
    with pytest.raises(ValueError, match="batch_size=0"):
        make_engine(task, batch_size=0)
    with pytest.raises(ValueError, match="momentum=1"):
        make_engine(task, momentum=1.0)
    with pytest.raises(ValueError, match="weight_decay=inf"):
        make_engine(task, weight_decay=math.inf)
    engine = make_engine(task)
    with pytest.raises(ValueError, match=f"worker {WORKERS}: there are {WORKERS}, numbered from 0"):
        engine.train(engine.initial(), WORKERS, 0, 1, 0.1)
    with pytest.raises(ValueError, match="steps=-1"):
        engine.train(engine.initial(), 0, 0, -1, 0.1)
