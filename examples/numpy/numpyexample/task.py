"""Softmax regression on scikit-learn's digits."""

from collections.abc import Iterator

from sklearn.datasets import load_digits

import numpy as np

TEST_EXAMPLES = 397
Arrays = list[np.ndarray]


def initial_model() -> Arrays:
    """Return weights and biases: a plain list of arrays."""
    return [np.zeros((64, 10), dtype=np.float32), np.zeros(10, dtype=np.float32)]


def load_data(partition_id: int, num_partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """Load a partition of the training digits."""
    images, labels = _digits()
    return (
        images[TEST_EXAMPLES:][partition_id::num_partitions],
        labels[TEST_EXAMPLES:][partition_id::num_partitions],
    )


def load_test_data() -> tuple[np.ndarray, np.ndarray]:
    """Load the digits that are in no partition."""
    images, labels = _digits()
    return images[:TEST_EXAMPLES], labels[:TEST_EXAMPLES]


def batches(images, labels, size: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield mini-batches drawn at random, without end."""
    rng = np.random.default_rng(seed)
    while True:
        chosen = rng.integers(len(labels), size=size)
        yield images[chosen], labels[chosen]


def step(model: Arrays, images: np.ndarray, labels: np.ndarray, lr: float) -> float:
    """Take one gradient step in place; return the loss before it."""
    weights, bias = model
    p = _softmax(images @ weights + bias)
    rows = np.arange(len(labels))
    loss = -np.log(p[rows, labels] + 1e-12).mean()
    p[rows, labels] -= 1
    weights -= lr * images.T @ p / len(labels)
    bias -= lr * p.mean(axis=0)
    return float(loss)


def accuracy(model: Arrays, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images that the model gets right."""
    weights, bias = model
    return float(((images @ weights + bias).argmax(axis=1) == labels).mean())


def _softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order] / 16).astype(np.float32), labels[order]
