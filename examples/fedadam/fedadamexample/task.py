"""scikit-learn's logistic regression by stochastic gradient descent, on its digits."""

from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import numpy as np

TEST_EXAMPLES = 397
CLASSES = np.arange(10)


def initial_model() -> list[np.ndarray]:
    """Return coefficients and intercepts of an untrained model."""
    return [np.zeros((10, 64)), np.zeros(10)]


def classifier(arrays: list[np.ndarray], lr: float = 0.01) -> SGDClassifier:
    """Make a classifier from its coefficients and intercepts."""
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=lr, random_state=0)
    model.classes_ = CLASSES
    model.coef_, model.intercept_ = arrays
    return model


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


def _digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return images[order] / 16, labels[order]
