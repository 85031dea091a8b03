"""Words to write loops over vectors in LLVM's language: `Kernel`, `Index` and `Buffer`.

A vector has sixteen numbers (`LANES`) unless a kernel asks for fewer. A CPU with AVX-512 holds
sixteen in one register, a CPU with AVX2 in two; LLVM splits them, and the results are the same to
the bit, because every lane is computed by the same operations in either case. Sums of products use
fused multiply-adds that are written as such (`Kernel.fma`); LLVM never fuses or reorders anything
by itself.

A loop of LLVM's is a ``with`` block; a loop of Python's around emitted code is unrolled:

    with kernel.loop(rows) as row:            # a loop in the machine code
        for lane in range(4):                 # four copies of what follows
            kernel.store(value, kernel.at(buffer, row * 2 + lane))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ir

LANES = 16
"""Numbers of a vector."""

FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
INT, LONG = ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()
VECTOR, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT, LANES)


@dataclass(frozen=True)
class Index:
    """A whole number that is known when the machine code runs: loop counters times constants.

    Made by `Kernel.loop`; grows by ``+`` and by ``*`` with a constant. Constants stay apart, so
    that they become part of an instruction's address and cost nothing.
    """

    terms: tuple[tuple[Any, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other)
        return Index(self.terms + other.terms, self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, factor: int) -> Index:
        terms = tuple((value, scale * factor) for value, scale in self.terms)
        return Index(terms, self.constant * factor)


@dataclass(frozen=True)
class Buffer:
    """An array of 4-byte numbers in the memory that a kernel's argument points to.

    Parameters
    ----------
    pointer : str
        Name of the argument.
    start : int
        Where the array begins.
    strides : tuple of int
        Distance between neighbours in each dimension.
    """

    pointer: str
    start: int
    strides: tuple[int, ...]


class Variable:
    """A value that changes while the machine code runs, such as the sum of a loop."""

    def __init__(self, kernel: Kernel, start: Any) -> None:
        self._kernel, self._type = kernel, start.type
        self._place = ir.IRBuilder(kernel.entry).alloca(start.type)
        self.set(start)

    def get(self) -> Any:
        """Return its value at this point of the code."""
        return self._kernel.builder.load(self._place, typ=self._type)

    def set(self, value: Any) -> None:
        """Give it another value."""
        self._kernel.builder.store(value, self._place)


class Kernel:
    """A function of machine code under construction; `done` ends it.

    Parameters
    ----------
    module : Module
        LLVM's unit of compilation, to which the function is added.
    name : str
        Name of the function.
    arguments : sequence of (str, type)
        Its arguments.
    returns : type, optional
        Type of its result.
    lanes : int
        Numbers of a vector of this kernel.
    """

    def __init__(
        self,
        module: Any,
        name: str,
        arguments: Sequence[tuple[str, Any]],
        *,
        returns: Any = None,
        lanes: int = LANES,
    ) -> None:
        kinds = [kind for _, kind in arguments]
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(returns or ir.VoidType(), kinds), name)
        # Copies of large functions in their callers would only take time to compile.
        self.function.attributes.add("noinline")
        self.lanes = lanes
        self.vector, self.ints = ir.VectorType(FLOAT, lanes), ir.VectorType(INT, lanes)
        names = [name for name, _ in arguments]
        self.arguments = dict(zip(names, self.function.args, strict=True))
        # Variables are declared in a block of their own, before all loops.
        self.entry = self.function.append_basic_block("entry")
        self._first = self.function.append_basic_block("body")
        self.builder = ir.IRBuilder(self._first)
        self._shifted: dict[Any, Any] = {}

    def done(self, result: Any = None) -> None:
        """End the function."""
        if result is None:
            self.builder.ret_void()
        else:
            self.builder.ret(result)
        ir.IRBuilder(self.entry).branch(self._first)

    # Numbers and addresses

    def number(self, index: Index | int) -> Any:
        """Return an index as a value of LLVM's."""
        if isinstance(index, int):
            return LONG(index)
        total = LONG(index.constant) if index.constant or not index.terms else None
        for value, scale in index.terms:
            part = value if scale == 1 else self.builder.mul(value, LONG(scale), flags=("nsw",))
            total = part if total is None else self.builder.add(total, part, flags=("nsw",))
        return total

    def at(self, buffer: Buffer, *indices: Index | int) -> Any:
        """Return the address of an entry of a buffer, given one index per dimension."""
        place = Index(constant=buffer.start)
        for index, stride in zip(indices, buffer.strides, strict=True):
            place = place + index * stride
        return self.shift(self.arguments[buffer.pointer], place)

    def shift(self, pointer: Any, index: Index | int, kind: Any = FLOAT) -> Any:
        """Return the address that many numbers further on."""
        index = index if isinstance(index, Index) else Index(constant=index)
        if index.terms:
            # Neighbours differ in the constant alone: what they share is computed once per block.
            key = (self.builder.block, pointer, index.terms)
            if key not in self._shifted:
                moved = [self.number(Index(index.terms))]
                self._shifted[key] = self.builder.gep(pointer, moved, True, source_etype=kind)
            pointer = self._shifted[key]
        if index.constant:
            constant = [LONG(index.constant)]
            pointer = self.builder.gep(pointer, constant, inbounds=True, source_etype=kind)
        return pointer

    # Loops

    @contextmanager
    def loop(self, count: Any, start: Any = 0, step: int = 1) -> Iterator[Index]:
        """Emit a loop from ``start`` to below ``count``, both a constant or a value of LLVM's."""
        builder = self.builder
        end = LONG(count) if isinstance(count, int) else count
        begin = LONG(start) if isinstance(start, int) else start
        before = builder.block
        body = self.function.append_basic_block("loop")
        after = self.function.append_basic_block("after")
        builder.cbranch(builder.icmp_signed("<", begin, end), body, after)
        builder.position_at_end(body)
        counter = builder.phi(LONG)
        counter.add_incoming(begin, before)
        yield Index(((counter, 1),))
        following = builder.add(counter, LONG(step), flags=("nsw",))
        counter.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, end), body, after)
        builder.position_at_end(after)

    def tiles(self, count: int, most: int) -> Iterator[tuple[Index, int]]:
        """Emit loops over tiles of nearly equal size; yield the start and the size of a tile.

        Use it in a ``for`` statement without ``break``. It yields at most twice: for the tiles
        of the larger size, and for those of the smaller one.
        """
        number = -(-count // max(1, most))
        size, larger = divmod(count, number)
        for start, repeats, width in (
            (0, larger, size + 1),
            (larger * (size + 1), number - larger, size),
        ):
            if repeats:
                with self.loop(repeats) as tile:
                    yield tile * width + start, width

    # Memory

    def load(self, address: Any, kind: Any = None) -> Any:
        """Read a vector, or a value of another type; a vector may begin at any number."""
        kind = kind or self.vector
        return self.builder.load(address, typ=kind, align=8 if kind in (LONG, DOUBLE) else 4)

    def store(self, value: Any, address: Any) -> None:
        """Write a vector or a scalar."""
        self.builder.store(value, address, align=4)

    def load_part(self, address: Any, count: int) -> Any:
        """Read the first ``count`` numbers of a vector, and no memory behind them; rest zero."""
        if count == self.lanes:
            return self.load(address)
        vector = self.constant(0.0)
        for lane in range(count):
            value = self.load(self.shift(address, lane), FLOAT)
            vector = self.builder.insert_element(vector, value, INT(lane))
        return vector

    def store_part(self, vector: Any, address: Any, count: int) -> None:
        """Write the first ``count`` numbers of a vector."""
        if count == self.lanes:
            return self.store(vector, address)
        for lane in range(count):
            self.store(self.builder.extract_element(vector, INT(lane)), self.shift(address, lane))

    # Arithmetic

    def variable(self, start: Any) -> Variable:
        """Declare a value that changes."""
        return Variable(self, start)

    def constant(self, value: float, kind: Any = None) -> Any:
        """Return a vector of one constant: floats, or those of another type."""
        return ir.Constant(kind or self.vector, [value] * self.lanes)

    def spread(self, scalar: Any) -> Any:
        """Return a vector with a scalar in every lane."""
        kind, lanes = ir.VectorType(scalar.type, self.lanes), self.lanes
        single = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, INT(0))
        return self.shuffle(single, single, [0] * lanes)

    def load_spread(self, address: Any) -> Any:
        """Read one number into every lane."""
        return self.spread(self.load(address, FLOAT))

    def shuffle(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        """Return the given lanes of two vectors; those of ``b`` count from the length of ``a``."""
        mask = ir.Constant(ir.VectorType(INT, len(lanes)), list(lanes))
        return self.builder.shuffle_vector(a, b, mask)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return a b + c, rounded once."""
        name = f"llvm.fma.v{self.lanes}f32"
        function = self.module.globals.get(name) or ir.Function(
            self.module, ir.FunctionType(self.vector, [self.vector] * 3), name
        )
        return self.builder.call(function, [a, b, c])

    def positive_part(self, vector: Any) -> Any:
        """Return max(v, 0); a NaN stays one."""
        return self.where_positive(vector, vector)

    def where_positive(self, condition: Any, vector: Any) -> Any:
        """Return ``vector`` where ``condition`` is positive or NaN, else 0."""
        zero = self.constant(0.0)
        return self.builder.select(self.builder.fcmp_unordered(">", condition, zero), vector, zero)

    def lane_sum(self, vector: Any) -> Any:
        """Return the sum of the lanes, always in the same order: halves added to halves."""
        width = vector.type.count
        while width > 1:
            width //= 2
            low = self.shuffle(vector, vector, range(width))
            high = self.shuffle(vector, vector, range(width, 2 * width))
            vector = self.builder.fadd(low, high)
        return self.builder.extract_element(vector, INT(0))

    def transpose(self, rows: Sequence[Any]) -> list[Any]:
        """Transpose sixteen vectors: lane j of vector i becomes lane i of vector j."""
        matrix, bit = list(rows), 1
        while bit < LANES:
            # Swap the blocks off the diagonal of every (2 bit) x (2 bit) square.
            low = [j - bit + LANES if j & bit else j for j in range(LANES)]
            high = [j + LANES if j & bit else j + bit for j in range(LANES)]
            for i in range(LANES):
                if not i & bit:
                    a, b = matrix[i], matrix[i + bit]
                    matrix[i], matrix[i + bit] = self.shuffle(a, b, low), self.shuffle(a, b, high)
            bit *= 2
        return matrix
