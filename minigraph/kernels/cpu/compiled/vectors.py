"""What a matrix product needs of a processor's vectors, as LLVM's instructions: numba has no vectors of its own.

Each function here is written into the machine code that calls it. Addresses and distances are int64, in bytes; `kind`
is any number of the type that the memory holds, float32 or float64.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core.cgutils import get_or_insert_function

BYTES = 64  # of a vector
ROWS, VECTORS = 8, 2  # of a tile: 16 sums that do not wait for each other, and 10 loads for 16 multiplications

intrinsic: Any = extending.intrinsic(prefer_literal=True)
WORD, INDEX = ir.IntType(64), ir.IntType(32)


def lanes(kind: Any) -> int:
    """Numbers in a vector of this numba type."""
    return BYTES * 8 // kind.bitwidth


class Vectors:
    """Writes instructions on vectors of one type."""

    def __init__(self, builder: Any, kind: Any) -> None:
        self.builder, self.lanes, self.itemsize = builder, lanes(kind), kind.bitwidth // 8
        self.scalar = ir.FloatType() if kind == types.float32 else ir.DoubleType()
        self.type = ir.VectorType(self.scalar, self.lanes)

    def at(self, address: Any, distance: Any = 0) -> Any:
        """The address that many bytes further."""
        return self.builder.add(address, WORD(distance) if isinstance(distance, int) else distance)

    def load(self, address: Any, type_: Any = None) -> Any:
        """A vector, or what else `type_` is; it need not begin where a vector would."""
        return self.builder.load(self._pointer(address, type_ or self.type), align=self.itemsize)

    def store(self, value: Any, address: Any) -> None:
        self.builder.store(value, self._pointer(address, value.type), align=self.itemsize)

    def broadcast(self, address: Any) -> Any:
        """The number at an address, in all lanes."""
        number, none = self.load(address, self.scalar), ir.Constant(self.type, ir.Undefined)
        one = self.builder.insert_element(none, number, INDEX(0))
        return self.builder.shuffle_vector(one, none, ir.Constant(ir.VectorType(INDEX, self.lanes), [0] * self.lanes))

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, rounded once."""
        name = f"llvm.fma.v{self.lanes}f{self.itemsize * 8}"
        function = get_or_insert_function(self.builder.module, ir.FunctionType(self.type, [self.type] * 3), name)
        return self.builder.call(function, [a, b, c])

    def interleaved(self, vectors: list[Any]) -> list[Any]:
        """The numbers of the first and of the second half of the vectors in turn.

        Matrices of 2**a rows are transposed after a of these.
        """
        half, n, result = len(vectors) // 2, self.lanes, list[Any]()
        for first, second in zip(vectors[:half], vectors[half:], strict=True):
            for start in (0, n // 2):
                turns = [lane for j in range(start, start + n // 2) for lane in (j, n + j)]
                result.append(
                    self.builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(INDEX, n), turns))
                )
        return result

    def _pointer(self, address: Any, type_: Any) -> Any:
        return self.builder.inttoptr(address, type_.as_pointer())


@intrinsic
def add_tile(context, kind, a, b, c, step, length, more):
    """c [ROWS, VECTORS vectors] = sum of a[k] b[k] over `length` k, added to what c has where `more` is not 0.

    a     ROWS numbers for each k, one after the other
    b     VECTORS vectors for each k, one after the other
    step  from a row of c to the next
    """

    def emit(context, builder, signature, values):
        _, a, b, c, step, length, more = values
        v, before = Vectors(builder, kind), builder.block
        loop, end = (builder.function.append_basic_block(name) for name in ("products", "write"))
        builder.branch(loop)
        builder.position_at_end(loop)
        left, a_at, b_at = (builder.phi(WORD) for _ in range(3))
        sums = [[builder.phi(v.type) for _ in range(VECTORS)] for _ in range(ROWS)]
        columns = [v.load(v.at(b_at, j * BYTES)) for j in range(VECTORS)]
        found = list[list[Any]]()
        for i, row in enumerate(sums):
            number = v.broadcast(v.at(a_at, i * v.itemsize))
            found.append([v.multiply_add(number, x, y) for x, y in zip(columns, row, strict=True)])
        rest = builder.sub(left, WORD(1))
        following = rest, v.at(a_at, ROWS * v.itemsize), v.at(b_at, VECTORS * BYTES)
        for phi, first, then in zip((left, a_at, b_at), (length, a, b), following, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(then, loop)
        for phi, then in zip(sum(sums, []), sum(found, []), strict=True):
            phi.add_incoming(ir.Constant(v.type, [0.0] * v.lanes), before)
            phi.add_incoming(then, loop)
        builder.cbranch(builder.icmp_signed(">", rest, WORD(0)), loop, end)
        builder.position_at_end(end)
        places = [[v.at(v.at(c, builder.mul(step, WORD(i))), j * BYTES) for j in range(VECTORS)] for i in range(ROWS)]
        with builder.if_else(builder.icmp_signed("!=", more, WORD(0))) as (add, write):
            for way, added in ((add, True), (write, False)):
                with way:
                    for place, value in zip(sum(places, []), sum(found, []), strict=True):
                        v.store(builder.fadd(v.load(place), value) if added else value, place)
        return context.get_dummy_value()

    return types.none(kind, *[types.int64] * 6), emit


@intrinsic
def copy(context, kind, to, source, count):
    """Copy `count` numbers, a literal."""

    def emit(context, builder, signature, values):
        v = Vectors(builder, kind)
        v.store(v.load(values[2], ir.VectorType(v.scalar, count.literal_value)), values[1])
        return context.get_dummy_value()

    return types.none(kind, types.int64, types.int64, count), emit


@intrinsic
def transpose(context, kind, to, step, source, row, rows):
    """A vector from each of `rows` rows, a literal power of 2 up to the lanes, transposed.

    row   from a row of the source to the next
    step  from a vector of the result to the next: several of its rows where it has fewer columns than a vector
    """

    def emit(context, builder, signature, values):
        _, to, step, source, row, _ = values
        v, vectors = Vectors(builder, kind), list[Any]()
        for _ in range(rows.literal_value):
            vectors.append(v.load(source))
            source = v.at(source, row)
        for _ in range(rows.literal_value.bit_length() - 1):
            vectors = v.interleaved(vectors)
        for vector in vectors:
            v.store(vector, to)
            to = v.at(to, step)
        return context.get_dummy_value()

    return types.none(kind, types.int64, types.int64, types.int64, types.int64, rows), emit


@intrinsic
def number_at(context, kind, address):
    """The number at an address."""

    def emit(context, builder, signature, values):
        v = Vectors(builder, kind)
        return v.load(values[1], v.scalar)

    return kind(kind, types.int64), emit


@intrinsic
def put(context, kind, number, address):
    """Write a number to an address."""

    def emit(context, builder, signature, values):
        Vectors(builder, kind).store(values[1], values[2])
        return context.get_dummy_value()

    return types.none(kind, kind, types.int64), emit
