"""What a product of float32 matrices needs of a processor's vectors, as LLVM's instructions: numba has no vectors.

Each function here is written into the machine code that calls it. Addresses and distances are int64, in bytes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core.cgutils import get_or_insert_function

SIZE, LANES = 4, 16  # bytes of a number, numbers in a vector
BYTES = SIZE * LANES
ROWS, VECTORS = 8, 2  # of a tile: 16 sums that do not wait for each other, and 10 loads for 16 multiplications
COLUMNS = VECTORS * LANES

intrinsic: Any = extending.intrinsic(prefer_literal=True)
NUMBER, WORD, INDEX = ir.FloatType(), ir.IntType(64), ir.IntType(32)
VECTOR, CHOICE = ir.VectorType(NUMBER, LANES), ir.VectorType(INDEX, LANES)


class Vectors:
    """Writes instructions."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def at(self, address: Any, distance: Any) -> Any:
        """The address that many bytes further."""
        return self.builder.add(address, WORD(distance) if isinstance(distance, int) else distance)

    def load(self, address: Any, type_: Any = VECTOR) -> Any:
        """What lies at an address; it need not begin where a vector would."""
        return self.builder.load(self._pointer(address, type_), align=_alignment(type_))

    def store(self, value: Any, address: Any) -> None:
        """Write to an address."""
        self.builder.store(value, self._pointer(address, value.type), align=_alignment(value.type))

    def broadcast(self, address: Any) -> Any:
        """The number at an address, in all lanes."""
        none = ir.Constant(VECTOR, ir.Undefined)
        one = self.builder.insert_element(none, self.load(address, NUMBER), INDEX(0))
        return self.builder.shuffle_vector(one, none, ir.Constant(CHOICE, [0] * LANES))

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, rounded once."""
        type_ = ir.FunctionType(VECTOR, [VECTOR] * 3)
        return self.builder.call(get_or_insert_function(self.builder.module, type_, f"llvm.fma.v{LANES}f32"), [a, b, c])

    def interleaved(self, vectors: list[Any]) -> list[Any]:
        """The numbers of the first and of the second half of the vectors in turn.

        2**n rows are transposed after n of these.
        """
        half, result = len(vectors) // 2, list[Any]()
        for first, second in zip(vectors[:half], vectors[half:], strict=True):
            for start in (0, LANES // 2):
                turns = [lane for j in range(start, start + LANES // 2) for lane in (j, LANES + j)]
                result.append(self.builder.shuffle_vector(first, second, ir.Constant(CHOICE, turns)))
        return result

    def _pointer(self, address: Any, type_: Any) -> Any:
        return self.builder.inttoptr(address, type_.as_pointer())


def _alignment(type_: Any) -> int:
    """Bytes whose multiple an address is: of bits only one is."""
    return 1 if isinstance(type_, ir.IntType) else SIZE


@intrinsic
def add_tile(context, a, b, c, step, length, more):
    """c [ROWS, COLUMNS] = sum of a[k] b[k] over `length` k, added to what c has where `more` is not 0.

    a     ROWS numbers for each k, one after the other
    b     COLUMNS numbers for each k, one after the other
    step  from a row of c to the next
    """

    def emit(context, builder, signature, values):
        a, b, c, step, length, more = values
        v, before = Vectors(builder), builder.block
        loop, end = (builder.function.append_basic_block(name) for name in ("products", "write"))
        builder.branch(loop)
        builder.position_at_end(loop)
        left, a_at, b_at = (builder.phi(WORD) for _ in range(3))
        sums = [builder.phi(VECTOR) for _ in range(ROWS * VECTORS)]
        columns = [v.load(v.at(b_at, j * BYTES)) for j in range(VECTORS)]
        numbers = (v.broadcast(v.at(a_at, i * SIZE)) for i in range(ROWS))
        terms = [(number, column) for number in numbers for column in columns]
        found = [v.multiply_add(*term, before_it) for term, before_it in zip(terms, sums, strict=True)]
        rest = builder.sub(left, WORD(1))
        then = rest, v.at(a_at, ROWS * SIZE), v.at(b_at, COLUMNS * SIZE), *found
        zeros = [ir.Constant(VECTOR, [0.0] * LANES)] * len(sums)
        for phi, first, next_ in zip((left, a_at, b_at, *sums), (length, a, b, *zeros), then, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(next_, loop)
        builder.cbranch(builder.icmp_signed(">", rest, WORD(0)), loop, end)
        builder.position_at_end(end)
        rows = [v.at(c, builder.mul(step, WORD(i))) for i in range(ROWS)]
        places = [v.at(row, j * BYTES) for row in rows for j in range(VECTORS)]
        with builder.if_else(builder.icmp_signed("!=", more, WORD(0))) as (add, write):
            for way, added in ((add, True), (write, False)):
                with way:
                    for place, value in zip(places, found, strict=True):
                        v.store(builder.fadd(v.load(place), value) if added else value, place)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 6), emit


@intrinsic
def copy(context, to, source, count):
    """Copy `count` numbers, a literal."""

    def emit(context, builder, signature, values):
        v = Vectors(builder)
        v.store(v.load(values[1], ir.VectorType(NUMBER, count.literal_value)), values[0])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, count), emit


@intrinsic
def transpose(context, to, step, source, row, rows):
    """LANES numbers from each of `rows` rows, a literal power of 2 up to LANES, transposed.

    row   from a row of the source to the next
    step  from a vector of the result to the next: several of its rows where it has fewer columns than a vector
    """

    def emit(context, builder, signature, values):
        to, step, source, row, _ = values
        v, vectors = Vectors(builder), list[Any]()
        for _ in range(rows.literal_value):
            vectors.append(v.load(source))
            source = v.at(source, row)
        for _ in range(rows.literal_value.bit_length() - 1):
            vectors = v.interleaved(vectors)
        for vector in vectors:
            v.store(vector, to)
            to = v.at(to, step)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64, types.int64, rows), emit


@intrinsic
def number_at(context, address):
    """The number at an address."""

    def emit(context, builder, signature, values):
        return Vectors(builder).load(values[0], NUMBER)

    return types.float32(types.int64), emit


@intrinsic
def put(context, number, address):
    """Write a number to an address."""

    def emit(context, builder, signature, values):
        Vectors(builder).store(values[0], values[1])
        return context.get_dummy_value()

    return types.none(types.float32, types.int64), emit


@intrinsic
def add_vector(context, to, other):
    """Add LANES numbers to others."""

    def emit(context, builder, signature, values):
        v, (to, other) = Vectors(builder), values
        v.store(builder.fadd(v.load(to), v.load(other)), to)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), emit


@intrinsic
def positive_part(context, at):
    """Of LANES numbers those above 0 and NaN stay, others become 0, not -0; bits that say which are above."""

    def emit(context, builder, signature, values):
        v, zeros = Vectors(builder), ir.Constant(VECTOR, [0.0] * LANES)
        numbers = v.load(values[0])
        v.store(builder.select(builder.fcmp_unordered(">", numbers, zeros), numbers, zeros), values[0])
        bits = builder.bitcast(builder.fcmp_ordered(">", numbers, zeros), ir.IntType(LANES))
        return builder.zext(bits, WORD)

    return types.int64(types.int64), emit


@intrinsic
def keep(context, at, bits):
    """Of LANES numbers those whose bit, in memory, is 0 become 0."""

    def emit(context, builder, signature, values):
        v, (at, bits) = Vectors(builder), values
        chosen = builder.bitcast(v.load(bits, ir.IntType(LANES)), ir.VectorType(ir.IntType(1), LANES))
        zeros = ir.Constant(VECTOR, [0.0] * LANES)
        v.store(builder.select(chosen, v.load(at), zeros), at)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), emit


@intrinsic
def put_bits(context, bits, at):
    """Write the bits of LANES numbers."""

    def emit(context, builder, signature, values):
        Vectors(builder).store(builder.trunc(values[0], ir.IntType(LANES)), values[1])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), emit
