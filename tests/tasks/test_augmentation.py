"""Augmentation: images are moved and mirrored, by the seed alone, and only in training."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from mll_flower.tasks.augmentation import CropFlip
from mll_flower.tasks.task import Task
from mll_flower.training.engine import Engine
from mll_flower.training.run_engine import forget_engines
from tests.support.simulated import play

SHAPE = (2, 7, 6)


def crops(image: torch.Tensor) -> list[bytes]:
    """Every crop of an image with a mirrored border, and its mirror image, as torch makes them."""
    _, rows, columns = image.shape
    padded = functional.pad(image[None], (4, 4, 4, 4), mode="reflect")[0]
    plain = [padded[:, i : i + rows, j : j + columns] for i in range(9) for j in range(9)]
    return [crop.contiguous().numpy().tobytes() for p in plain for crop in (p, p.flip(2))]


def test_images_are_crops_and_all_of_them_appear() -> None:
    torch.manual_seed(0)
    images = torch.randn(3, *SHAPE)
    augment = CropFlip(SHAPE)
    for number, image in enumerate(images):
        possible = crops(image)
        assert len(set(possible)) > 9 * 9
        many = augment(images[torch.full((3000,), number)])
        found = [row.numpy().tobytes() for row in many]
        assert set(found) == set(possible)


def test_torchs_seed_decides() -> None:
    augment, images = CropFlip(SHAPE), torch.randn(20, *SHAPE)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(augment(images))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("shape", [(4,), (1, 4, 9), (1, 9, 4), (9, 9)])
def test_examples_must_be_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"augment='crop-flip' takes images .* have the shape"):
        CropFlip(shape)


def test_logistic_regression_has_none() -> None:
    with pytest.raises(ValueError, match="augment='crop-flip': model 'logistic' has a trainer of"):
        Task.load(dataset="digits", model="logistic", augment="crop-flip")


def steps(augment: str, engine: str, noise: int = 3) -> tuple[float, np.ndarray]:
    """The loss and the model after a few steps of one worker."""
    task = Task.load(dataset="digits", model="cnn", augment=augment)
    worker = Engine(task, [np.arange(500)], batch_size=16, seed=0, engine=engine)
    trainer = worker._trainer
    for dtype, vector in worker.initial().items():
        trainer.row[dtype][...] = vector
    batches = np.arange(4 * 16).reshape(4, 16)
    loss = trainer.steps(batches, 0.05, (noise,))
    return loss, trainer.row["float32"].copy()


def test_compiled_steps_see_what_autograd_sees() -> None:
    loss, model = steps("crop-flip", "autograd")
    compiled_loss, compiled_model = steps("crop-flip", "compiled")
    assert math.isclose(loss, compiled_loss, rel_tol=1e-5)
    np.testing.assert_allclose(compiled_model, model, atol=1e-5)
    # Not by ignoring the augmentation: without it, or with other numbers, the model differs.
    for other in (steps("none", "compiled"), steps("crop-flip", "compiled", noise=4)):
        assert np.abs(other[1] - compiled_model).max() > 1e-3


def test_both_pools_give_the_same_bits(tmp_path: Path) -> None:
    settings = {"model": "cnn", "dataset": "digits", "learning-rate": 0.05, "slots": 8}
    runs = {
        (pool, augment): play(
            tmp_path / f"{pool}-{augment}", pool=pool, augment=augment, **settings
        )
        for pool, augment in [("hub", "crop-flip"), ("worker", "crop-flip"), ("hub", "none")]
    }
    assert runs["hub", "crop-flip"].same_model(runs["worker", "crop-flip"])
    assert not runs["hub", "crop-flip"].same_model(runs["hub", "none"])
    # Evaluations see the data as they are: both runs begin with the same loss.
    first = [run.report["evaluations"][0]["loss"] for run in runs.values()]
    assert len(set(first)) == 1
    forget_engines()
