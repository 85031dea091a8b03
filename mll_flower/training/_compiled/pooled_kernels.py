"""The gradient of a convolution with a pool, from the entries that are not zero.

A pool hands its gradient to one entry of its window, and a ReLU stops much of that: at least three
in four of the entries before a pool of 2x2 are zero. So the entries that are not zero are listed,
image by image, and each is multiplied with all that it touches. Samples cannot be in the lanes
then, since each has its maxima elsewhere; channels are, and images lie as [row][column][channel].
A row of a kernel is then a run of numbers without gaps, of as many as columns times channels.

This takes about half the time of the dense way (`convolution_kernels`) if such runs fill vectors
well. The sizes alone decide (`workspace.few_are_not_zero`), because the two ways differ in the last
bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import llvmlite.ir as ir

from mll_flower.native.vector_code import FLOAT, INT, INTS, LANES, LONG, Buffer, Index
from mll_flower.training._compiled.stages import Convolution
from mll_flower.training._compiled.step_kernel import StepKernel
from mll_flower.training._compiled.workspace import Places, whole_vectors


def write_backward(
    k: StepKernel, stage: Convolution, here: Places, before: Places | None, relu: bool
) -> None:
    """Compute the gradients of the weights and of the inputs, one group after another.

    Without a stage before this one nobody needs the gradient with respect to the inputs.
    """
    kernel = _Pooled(k, stage, here)
    kernel.clear_weight_sums()
    if before:
        kernel.make_table()
    with k.loop(k.groups) as group:
        kernel.sort_by_image(group)
        kernel.turn_inputs(group)
        with k.loop(LANES) as image:
            kernel.add_to_weight_sums(image)
            if before:
                kernel.compute_input_gradient(image)
        if before:
            kernel.turn_input_gradient(group, before, relu)
    kernel.write_weight_sums()
    k.done()


class _Pooled:
    """The parts of the kernel. ``here.pooled`` names the buffers, which groups use in turn."""

    def __init__(self, k: StepKernel, stage: Convolution, here: Places) -> None:
        assert here.pooled is not None
        assert here.maxima is not None
        self.k, self.stage, self.here, self.at = k, stage, here, here.pooled
        self.maxima = here.maxima
        self.row_of_image = (stage.width + 2 * stage.padding) * stage.channels
        self.row_of_taps = whole_vectors(stage.kernel * stage.channels)
        self.outputs = stage.outputs * stage.out_height * stage.out_width
        # Sums that are computed side by side.
        self.most = k.sums + k.sums // 4

    def sort_by_image(self, group: Index) -> None:
        """Turn gradients and maxima from lanes to images.

        The place of a maximum becomes two distances: in an image of the inputs, and in the table.
        """
        k, b, pool = self.k, self.k.builder, self.stage.pool
        maxima = Buffer("work", self.maxima.start, self.here.flat_gradient.strides)
        row_in_table = self.at.table.strides[1]
        with k.loop(self.outputs, step=LANES) as start:
            gradients, in_image, in_table = [], [], []
            for lane in range(LANES):
                gradients.append(k.load(k.at(self.here.flat_gradient, group, start + lane, 0)))
                place = k.load(k.at(maxima, group, start + lane, 0), INTS)
                image = table = k.constant(0, INTS)
                for number in range(1, pool * pool):
                    i, j = divmod(number, pool)
                    here = b.icmp_signed("==", place, k.constant(number, INTS))
                    far = i * self.row_of_image + j * self.stage.channels
                    image = b.select(here, k.constant(far, INTS), image)
                    far = i * row_in_table + j * self.stage.channels
                    table = b.select(here, k.constant(far, INTS), table)
                in_image.append(image)
                in_table.append(table)
            for vectors, into in (
                (gradients, self.at.gradients),
                (in_image, self.at.image_places),
                (in_table, self.at.table_places),
            ):
                for image, vector in enumerate(k.transpose(vectors)):
                    k.store(vector, k.at(into, image, start))

    def turn_inputs(self, group: Index) -> None:
        """Lay out the inputs image by image, with the channels side by side.

        What fills up the last vector of a row is zero, and is written over by the next row.
        """
        k, padding = self.k, self.stage.padding
        with k.loop(self.stage.height) as row:
            for column, entries in self._vectors_of_a_row():
                down, across = row + padding, column + padding
                rows = [
                    k.load(k.at(self.here.inputs, group, channel, down, across + right, 0))
                    for right, channel in entries
                ]
                rows += [k.constant(0.0)] * (LANES - len(rows))
                right, channel = entries[0]
                for image, vector in enumerate(k.transpose(rows)):
                    place = (image, down, across + right, channel)
                    k.store(vector, k.at(self.at.images, *place))

    def clear_weight_sums(self) -> None:
        """Begin the sums of the weights' gradient."""
        k = self.k
        size = self.stage.outputs * self.stage.kernel * self.row_of_taps
        with k.loop(size, step=LANES) as i:
            k.store(k.constant(0.0), k.at(self.at.weight_sums, 0, i))

    def add_to_weight_sums(self, image: Index) -> None:
        """Add an image's part: each gradient times the inputs that its kernel covered."""
        k, stage = self.k, self.stage
        positions = stage.out_height * stage.out_width
        taps = [
            (kh, start) for kh in range(stage.kernel) for start in range(0, self.row_of_taps, LANES)
        ]
        with k.loop(stage.outputs) as o:
            count = k.variable(LONG(0))
            with k.loop(stage.out_height) as row, k.loop(stage.out_width) as column:
                place = o * positions + row * stage.out_width + column
                corner = (row * self.row_of_image + column * stage.channels) * stage.pool
                self._note(count, image, place, self.at.image_places, k.number(corner))
            for some in _parts(taps, self.most):
                sums = {
                    tap: k.variable(k.load(k.at(self.at.weight_sums, o, self._tap(*tap))))
                    for tap in some
                }
                with k.loop(count.get()) as entry:
                    slope = k.load_spread(k.at(self.at.listed_gradients, entry))
                    covered = k.shift(k.at(self.at.images, image, 0, 0, 0), self._listed(entry))
                    for (kh, start), total in sums.items():
                        x = k.load(k.shift(covered, kh * self.row_of_image + start))
                        total.set(k.fma(slope, x, total.get()))
                for tap, total in sums.items():
                    k.store(total.get(), k.at(self.at.weight_sums, o, self._tap(*tap)))

    def write_weight_sums(self) -> None:
        """Write the gradient of the weights, in PyTorch's order."""
        k, stage = self.k, self.stage
        into = k.gradient(self.here.weights, 1)
        with k.loop(stage.outputs) as o, k.loop(stage.channels) as c, k.loop(stage.kernel) as kh:
            for kw in range(stage.kernel):
                tap = kh * self.row_of_taps + kw * stage.channels + c
                total = k.load(k.at(self.at.weight_sums, o, tap), FLOAT)
                weight = (o * stage.channels + c) * stage.kernel**2 + kh * stage.kernel + kw
                k.store(total, k.at(into, weight))

    def make_table(self) -> None:
        """Write the weights as [output][row][column][channel], inside a border of zeros.

        The border is as wide as a pool less one: a kernel that begins at any entry of its pool is
        then a window of the table, of one size for all entries.
        """
        k, stage, border = self.k, self.stage, self.stage.pool - 1
        weights = k.model(self.here.weights, 1)
        with k.loop(stage.outputs) as o, k.loop(stage.channels) as c, k.loop(stage.kernel) as kh:
            for kw in range(stage.kernel):
                weight = (o * stage.channels + c) * stage.kernel**2 + kh * stage.kernel + kw
                value = k.load(k.at(weights, weight), FLOAT)
                k.store(value, k.at(self.at.table, o, kh + border, kw + border, c))

    def compute_input_gradient(self, image: Index) -> None:
        """Add each gradient times its kernel to the inputs' gradient, pool by pool."""
        k, stage, border = self.k, self.stage, self.stage.pool - 1
        positions = stage.out_height * stage.out_width
        into = self.at.input_gradients
        window = stage.kernel + border  # rows and columns that the kernels of one pool cover
        covered = [
            (row, start)
            for row in range(window)
            for start in range(0, window * stage.channels, LANES)
        ]
        with k.loop(into.strides[0], step=LANES) as i:
            k.store(k.constant(0.0), k.shift(k.at(into, image, 0, 0, 0), i))
        with k.loop(stage.out_height) as row, k.loop(stage.out_width) as column:
            count = k.variable(LONG(0))
            with k.loop(stage.outputs) as o:
                place = o * positions + row * stage.out_width + column
                kernel = k.number(o * self.at.table.strides[0])
                self._note(count, image, place, self.at.table_places, kernel, minus=True)
            corner = k.at(into, image, row * stage.pool, column * stage.pool, 0)
            for some in _parts(covered, self.most):
                sums = {part: k.variable(k.constant(0.0)) for part in some}
                with k.loop(count.get()) as entry:
                    slope = k.load_spread(k.at(self.at.listed_gradients, entry))
                    first = k.at(self.at.table, 0, border, border, 0)
                    weights = k.shift(first, self._listed(entry))
                    for (down, start), total in sums.items():
                        part = k.load(k.shift(weights, down * self.at.table.strides[1] + start))
                        total.set(k.fma(slope, part, total.get()))
                for (down, start), total in sums.items():
                    place_of_part = k.shift(corner, down * into.strides[1] + start)
                    value = self._first_lanes(total.get(), window * stage.channels - start)
                    k.store(k.builder.fadd(k.load(place_of_part), value), place_of_part)

    def turn_input_gradient(self, group: Index, before: Places, relu: bool) -> None:
        """Turn the inputs' gradient back to lanes, past the ReLU that made the inputs."""
        k, padding = self.k, self.stage.padding
        with k.loop(self.stage.height) as row:
            for column, entries in self._vectors_of_a_row():
                right, channel = entries[0]
                first = (row + padding, column + (padding + right), channel)
                rows = [
                    k.load(k.at(self.at.input_gradients, image, *first)) for image in range(LANES)
                ]
                for (right, channel), value in zip(entries, k.transpose(rows), strict=False):
                    place = (group, channel, row, column + right, 0)
                    if relu:
                        value = k.where_positive(k.load(k.at(before.output, *place)), value)
                    k.store(value, k.at(before.gradient, *place))

    def _vectors_of_a_row(self) -> Iterator[tuple[Index, list[tuple[int, int]]]]:
        """Emit a loop over a row of an image; yield each vector of it.

        A vector is a column and its entries, each a number of columns to the right and a channel.
        Vectors and columns begin together every few columns, and the loop goes by these.
        Use it in a ``for`` statement without ``break``.
        """
        channels, width = self.stage.channels, self.stage.width
        together = math.lcm(channels, LANES) // channels
        whole = width // together * together
        if whole:
            with self.k.loop(whole, step=together) as column:
                for entries in _vectors(together, channels):
                    yield column, entries
        for entries in _vectors(width - whole, channels):
            yield Index(constant=whole), entries

    def _note(
        self,
        count: Any,
        image: Index,
        place: Index,
        distances: Buffer,
        start: Any,
        minus: bool = False,
    ) -> None:
        """Append a gradient and the place to which it leads, unless the gradient is zero.

        Without a branch, which the CPU would guess wrong half of the time: the entry is written
        in any case, and only counts if it is not zero.
        """
        k, b = self.k, self.k.builder
        value = k.load(k.at(self.at.gradients, image, place), FLOAT)
        distance = k.load(k.at(distances, image, place), INT)
        start = b.trunc(start, INT)
        led = b.sub(start, distance) if minus else b.add(start, distance)
        end = Index(((count.get(), 1),))
        k.store(value, k.at(self.at.listed_gradients, end))
        k.store(led, k.at(self.at.listed_places, end))
        # A NaN is not zero.
        counts = b.zext(b.fcmp_unordered("!=", value, FLOAT(0.0)), LONG)
        count.set(b.add(count.get(), counts))

    def _listed(self, entry: Index) -> Index:
        """Return the place to which an entry of the list leads."""
        k = self.k
        place = k.builder.sext(k.load(k.at(self.at.listed_places, entry), INT), LONG)
        return Index(((place, 1),))

    def _tap(self, kh: int, start: int) -> int:
        return kh * self.row_of_taps + start

    def _first_lanes(self, vector: Any, count: int) -> Any:
        """Return a vector with zeros after the first lanes."""
        if count >= LANES:
            return vector
        kept = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [j < count for j in range(LANES)])
        return self.k.builder.select(kept, vector, self.k.constant(0.0))


def _parts(items: list[tuple[int, int]], most: int) -> list[list[tuple[int, int]]]:
    """Cut a list into parts of nearly equal size."""
    number = -(-len(items) // most)
    bounds = [len(items) * part // number for part in range(number + 1)]
    return [items[a:b] for a, b in pairwise(bounds)]


def _vectors(columns: int, channels: int) -> list[list[tuple[int, int]]]:
    """Return columns and channels of the numbers in each vector of some columns."""
    entries = [divmod(number, channels) for number in range(columns * channels)]
    return [entries[start : start + LANES] for start in range(0, len(entries), LANES)]
