"""What all kernels of a training step have in common: `StepKernel`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mll_flower.native.vector_code import LANES, LONG, POINTER, Buffer, Index, Kernel

ARGUMENTS = (
    ("model", POINTER),  # float32, the flat model
    ("gradient", POINTER),  # float32, the loss's gradient with respect to it
    ("work", POINTER),  # the workspace
    ("x", POINTER),  # float32, the training data
    ("y", POINTER),  # int64, their labels
    ("rows", POINTER),  # int64, the rows of the batch
    ("batch", LONG),  # how many they are
    ("noise", LONG),  # random bits, for dropout
)


class StepKernel(Kernel):
    """A kernel of a training step.

    Parameters
    ----------
    module : Module
        LLVM's unit of compilation.
    name : str
        Name of the function.
    vectors : int
        Registers of the CPU that hold sixteen numbers.
    halves : bool
        Whether to compute half a group at a time where sixteen numbers take two registers, so
        that more different sums fit into them.
    """

    def __init__(self, module: Any, name: str, vectors: int, halves: bool = False) -> None:
        many = vectors >= 32
        lanes = LANES // 2 if halves and not many else LANES
        super().__init__(module, name, ARGUMENTS, lanes=lanes)
        # Sums that are computed side by side: enough to keep the multipliers busy, with
        # registers left for what is multiplied.
        self.sums = 20 if many else 5 * LANES // self.lanes
        filled = self.builder.add(self.arguments["batch"], LONG(LANES - 1))
        self.groups = self.builder.lshr(filled, LONG(4))

    def model(self, start: int, *strides: int) -> Buffer:
        """Return a part of the flat model as a buffer."""
        return Buffer("model", start, strides)

    def gradient(self, start: int, *strides: int) -> Buffer:
        """Return a part of the gradient as a buffer."""
        return Buffer("gradient", start, strides)

    def groups_together(self) -> Iterator[tuple[Index, int]]:
        """Emit loops over the groups; yield the first of some groups, and their number.

        With many registers two groups go together, so that a weight is read once for both.
        Use it in a ``for`` statement without ``break``.
        """
        done: Any = 0
        if self.sums >= 16:
            done = self.builder.and_(self.groups, LONG(-2))
            with self.loop(done, step=2) as group:
                yield group, 2
        with self.loop(self.groups, start=done) as group:
            yield group, 1

    def unrolled(self, count: int, times: int) -> Iterator[Index]:
        """Emit a loop whose body is repeated; yield the index of each repetition."""
        whole = count // times * times
        if whole:
            with self.loop(whole, step=times) as index:
                for repetition in range(times):
                    yield index + repetition
        for rest in range(whole, count):
            yield Index(constant=rest)
