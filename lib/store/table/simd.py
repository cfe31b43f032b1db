"""What numba cannot say: a prefetch, and arithmetic on sixteen floats at a time wherever in memory they lie.

Compilers add tests for overlap to short loops over rows, which then cost more than the sums. These operations state their
vectors themselves. Guaranteed: every element sees the same IEEE operations in the same order, whatever the width that a
machine's vectors have, and nothing is contracted or reassociated, so the bits are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

WIDTHS = (16, 4, 1)
_BYTE, _INT, _FLOAT = ir.IntType(8), ir.IntType(32), ir.FloatType()


@intrinsic
def prefetch(context, address):
    """Ask for the cache line at an address; never faults."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _BYTE.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _INT, _INT, _INT])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, _INT(0), _INT(3), _INT(1)])  # to read, into every level, data
        return context.get_dummy_value()

    return types.void(types.uint64), codegen


@intrinsic
def poke(context, address, word):
    """Write a uint32 at an address."""

    def codegen(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], _INT.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint32), codegen


@njit
def prefetch_range(address, size):
    """Ask for the lines that hold `size` bytes from an address on.

    As many turns for every address, and one line at times twice: a branch on where lines begin is one that no processor foresees.
    """
    offset = types.uint64(0)
    while offset < size:
        prefetch(address + offset)
        offset += types.uint64(64)
    prefetch(address + size - types.uint64(1))


class Lane:
    """Instructions on `width` neighbouring floats, in the middle of generated code."""

    def __init__(self, builder, width: int, addresses, offset, numbers):
        self.width, self._builder, self._addresses, self._offset = width, builder, addresses, offset
        self.type = ir.VectorType(_FLOAT, width) if width > 1 else _FLOAT
        self.numbers = [self._spread(number) for number in numbers]

    def load(self, which: int):
        value = self._builder.load(self._pointer(which), typ=self.type)
        value.align = 4
        return value

    def store(self, value, which: int) -> None:
        self._builder.store(value, self._pointer(which)).align = 4

    def add(self, a, b):
        return self._builder.fadd(a, b)

    def sub(self, a, b):
        return self._builder.fsub(a, b)

    def mul(self, a, b):
        return self._builder.fmul(a, b)

    def div(self, a, b):
        return self._builder.fdiv(a, b)

    def sqrt(self, a):
        suffix = f"v{self.width}f32" if self.width > 1 else "f32"
        kind = ir.FunctionType(self.type, [self.type])
        function = cgutils.get_or_insert_function(self._builder.module, kind, f"llvm.sqrt.{suffix}")
        return self._builder.call(function, [a])

    def clip(self, a, low, high):
        """Not-a-number stays what it is."""
        a = self._builder.select(self._builder.fcmp_ordered("<", a, low), low, a)
        return self._builder.select(self._builder.fcmp_ordered(">", a, high), high, a)

    def total(self, a):
        """The sum of the lane: halves are added until one number is left."""
        width = self.width
        while width > 1:
            width //= 2
            low, high = (ir.Constant(ir.VectorType(_INT, width), [s + i for i in range(width)]) for s in (0, width))
            a = self.add(self._builder.shuffle_vector(a, a, low), self._builder.shuffle_vector(a, a, high))
        return self._builder.extract_element(a, _INT(0)) if self.width > 1 else a

    def _spread(self, number):
        if self.width == 1:
            return number
        none = ir.Constant(self.type, ir.Undefined)
        first = self._builder.insert_element(none, number, _INT(0))
        return self._builder.shuffle_vector(first, none, ir.Constant(ir.VectorType(_INT, self.width), [0] * self.width))

    def _pointer(self, which: int):
        address = self._builder.add(self._addresses[which], self._offset)
        return self._builder.inttoptr(address, self.type.as_pointer())


def _at(width: int, body: Callable[[Lane], object], result):
    @intrinsic
    def operation(context, addresses, offset, numbers):
        def codegen(context, builder, signature, args):
            lane = Lane(
                builder, width, cgutils.unpack_tuple(builder, args[0]), args[1], cgutils.unpack_tuple(builder, args[2])
            )
            value = body(lane)
            return context.get_dummy_value() if value is None else value

        return result(addresses, types.uint64, numbers), codegen

    return operation


def lanewise(body: Callable[[Lane], None]):
    """A compiled `run(count, addresses, numbers)` that carries `body` out on `count` floats from each address on."""
    by16, by4, by1 = (_at(width, body, types.void) for width in WIDTHS)

    @njit
    def run(count, addresses, numbers):
        offset, stop = types.uint64(0), types.uint64(4) * types.uint64(count)
        while offset + types.uint64(64) <= stop:
            by16(addresses, offset, numbers)
            offset += types.uint64(64)
        while offset + types.uint64(16) <= stop:
            by4(addresses, offset, numbers)
            offset += types.uint64(16)
        while offset < stop:
            by1(addresses, offset, numbers)
            offset += types.uint64(4)

    return run


def summed(body: Callable[[Lane], object]):
    """A compiled `run(count, addresses, numbers)` that adds up what `body` returns for each lane."""
    by16, by4, by1 = (_at(width, body, types.float32) for width in WIDTHS)

    @njit
    def run(count, addresses, numbers):
        offset, stop, total = types.uint64(0), types.uint64(4) * types.uint64(count), types.float32(0)
        while offset + types.uint64(64) <= stop:
            total += by16(addresses, offset, numbers)
            offset += types.uint64(64)
        while offset + types.uint64(16) <= stop:
            total += by4(addresses, offset, numbers)
            offset += types.uint64(16)
        while offset < stop:
            total += by1(addresses, offset, numbers)
            offset += types.uint64(4)
        return total

    return run


@lanewise
def copy(lane: Lane) -> None:
    """First address <- second."""
    lane.store(lane.load(1), 0)


@lanewise
def join(lane: Lane) -> None:
    """First address <- second + third."""
    lane.store(lane.add(lane.load(1), lane.load(2)), 0)


@lanewise
def add(lane: Lane) -> None:
    """First address += second."""
    lane.store(lane.add(lane.load(0), lane.load(1)), 0)
