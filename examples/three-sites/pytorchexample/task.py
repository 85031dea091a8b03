"""The model, the data, and how they are trained and tested."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import numpy as np

TEST_EXAMPLES = 397


class Net(nn.Module):
    """A small convolutional network for images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.tensor(images[order] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return x, torch.tensor(labels[order])


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    """Load a partition of the digits: four fifths to train on, one fifth to test on."""
    x, y = (t[TEST_EXAMPLES:][partition_id::num_partitions] for t in _digits())
    split = len(y) * 4 // 5
    train = DataLoader(TensorDataset(x[:split], y[:split]), batch_size, shuffle=True)
    return train, DataLoader(TensorDataset(x[split:], y[split:]), batch_size)


def load_centralized_dataset() -> DataLoader:
    """Load the digits that are in no partition."""
    x, y = (t[:TEST_EXAMPLES] for t in _digits())
    return DataLoader(TensorDataset(x, y), batch_size=128)


def train(net: nn.Module, trainloader: DataLoader, epochs: int, lr: float) -> float:
    """Train the model; return the mean loss."""
    net.train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    total = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(trainloader))


@torch.no_grad()
def test(net: nn.Module, testloader: DataLoader) -> tuple[float, float]:
    """Return the model's loss and accuracy."""
    net.eval()
    criterion = nn.CrossEntropyLoss(reduction="sum")
    loss, correct, total = 0.0, 0, 0
    for images, labels in testloader:
        outputs = net(images)
        loss += criterion(outputs, labels).item()
        correct += (outputs.argmax(1) == labels).sum().item()
        total += len(labels)
    return loss / total, correct / total
