"""Loops over elements as machine code by numba: one call for all arrays, whose blocks are shared by threads.

    def axpy(x, y, a):
        for i in elements(x):
            y[i] = y[i] + a * x[i]

Compiled, `i` counts through the elements, so a loop reads and writes each array once whatever its
body computes. It does the operations of the NumPy form on each element in the same order, without
contractions, so results are bit-equal. The lock of the interpreter is released meanwhile.

Every thread has a share of the blocks, one after the other in memory, and takes blocks of others when it has ended.
What hands out blocks is compiled once, for all loops and dtypes: it calls the loop at an address.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numba import cfunc, njit, types
from numba.extending import overload
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import carray, from_dtype

from minigraph.kernels.cores import cores
from minigraph.kernels.parallel import together
from minigraph.kernels.updates import Loop, elements

from .counted import LINE, counted, intrinsic
from .kept import OPTIONS, kept

BLOCK = 16384  # elements that a thread takes at once
SHARE = 131072  # elements that are worth another thread, which takes time to wake
INNER: dict[str, Any] = OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # Python never calls it
CALLED = types.int64(*[types.int64] * 5)  # machine code as work() of handed_out calls it

_bodies: dict[str, Any] = {}  # loops that other compiled code calls by name


def bound(loop: Loop, columns: Sequence[Sequence[np.ndarray]]) -> Callable[[Any, tuple[float, float]], None]:
    """run(numbers, change): `loop(*arrays, *numbers)` on all elements of these arrays, spread over the cores.

    columns  the loop's arguments, C-contiguous arrays of one dtype, as many of the same sizes in each list
    numbers  `sets` of numbers, and in `rows` which of them is for each array of a list
    change   (scale, coeff): where that is not (1, 0) the loop gets, for its first array, a copy that is multiplied
             by `scale`, and to which the second array times `coeff` is added
    """
    sizes, dtype = [a.size for a in columns[0]], columns[0][0].dtype
    for column in columns:
        for a, size in zip(column, sizes, strict=True):
            if a.size != size or a.dtype != dtype or not a.flags.c_contiguous:  # or other memory would be written
                raise ValueError(f"{a.dtype}{list(a.shape)} where {size} elements of {dtype} are expected")
            if not a.flags.writeable and column is not columns[0]:
                raise ValueError("output array is read-only")
    transposed = zip(*columns, strict=True)
    table = np.array([[a.__array_interface__["data"][0] for a in row] for row in transposed], np.int64)
    ends = np.cumsum(sizes, dtype=np.int64)
    work, address = handed_out(), machine_code(loop, len(columns), dtype).address
    most = int(ends[-1]) // SHARE  # threads that have enough to do
    ways = itertools.cycle((False, True))  # from the other end each time: what came last is still in the cache
    rows, listed = np.empty(0, np.int64), []

    def run(numbers: Any, change: tuple[float, float]) -> None:
        nonlocal rows, listed
        if numbers.rows != listed:
            rows, listed = np.array(numbers.rows, np.int64), numbers.rows
        typed = np.array([n + change for n in numbers.sets], dtype).view(np.uint8)
        room = BLOCK * dtype.itemsize if change != (1, 0) else 0
        threads = max(1, min(cores(), most))
        turns = np.zeros((threads + 1) * LINE, np.int64)
        own = partial(work, address, table, ends, rows, typed, room, next(ways), turns)
        own.arrays = columns  # type: ignore[attr-defined]  # machine code has only their addresses
        together(threads, own, ends[-1], lambda: turns[-LINE])

    return run


@cache
def handed_out() -> Callable[..., int]:
    """work(address, table, ends, rows, numbers, room, backward, turns, me) -> the number of elements that it did.

    address   of the machine code of a loop
    table     int64 [arrays, columns] of addresses
    ends      int64 [arrays]: the sums of their sizes up to each
    rows      int64 [arrays]: which row of `numbers` is for each
    numbers   the bytes of [sets, numbers of the loop + 2]: the last are those of `change`
    room      bytes that `change` needs; 0 where it is (1, 0)
    backward  whether the last block comes first
    turns     int64: for each thread how many blocks of its share have been begun; last, how many elements are done
    me        which share comes first
    """

    def work(address, table, ends, rows, numbers, room, backward, turns, me):
        threads, size, passed, done = turns.size // LINE - 1, ends[-1], 0, 0
        scratch = np.empty(room, np.uint8)
        changed = scratch.ctypes.data if room > 0 else 0
        while passed < threads:
            owner = (me + passed) % threads
            begin, end = size * owner // threads, size * (owner + 1) // threads
            blocks, turn = (end - begin + BLOCK - 1) // BLOCK, counted(turns, owner * LINE, 1)
            if turn >= blocks:
                passed += 1
                continue
            start = begin + BLOCK * (blocks - 1 - turn if backward else turn)
            stop = min(start + BLOCK, end)
            i, length = np.searchsorted(ends, start, side="right"), stop - start  # the first array that ends behind it
            while start < stop:
                first, n = start - (ends[i - 1] if i > 0 else 0), min(stop, ends[i]) - start
                if n > 0:
                    _call_at(address, table[i].ctypes.data, first, n, numbers[rows[i]].ctypes.data, changed)
                start, i = start + n, i + 1
            done += length
            counted(turns, threads * LINE, length)
        return done

    words, word = types.int64[::1], types.int64
    pairs, bytes_ = types.int64[:, ::1], types.uint8[:, ::1]
    return kept(njit, word(word, pairs, words, words, bytes_, word, types.boolean, words, word), nogil=True)(work)


@cache
def machine_code(loop: Loop, columns: int, dtype: np.dtype) -> Any:
    """A function of C, at `address`: `loop` on n elements, from number `first` on, of one array of each column.

    block(row, first, n, numbers, changed) -> n

    row      address of the arrays' addresses
    numbers  address of the loop's numbers, and of (scale, coeff)
    changed  address of memory for the first array as `change` makes it; 0 leaves it as it is
    """
    code = loop.__code__
    shown = repr((code.co_code, code.co_consts, code.co_names, code.co_varnames))
    # what numba finds machine code on disk by; a function in its place would be another one in each process
    name = f"{loop.__name__} {hashlib.sha256(shown.encode()).hexdigest()}"
    count = code.co_argcount - columns
    _bodies[name] = njit(**INNER)(loop)

    def block(row, first, n, numbers, changed):
        arguments = _arguments(row, first, n, numbers, columns, count)
        if changed != 0:
            g, p, made = arguments[0], arguments[1], carray(_pointer(changed, numbers), n)
            change = carray(numbers, count + 2)
            for j in range(n):
                made[j] = g[j] * change[count]
            if change[count + 1] != 0:  # or a parameter that is infinite would make the gradient NaN
                for j in range(n):
                    made[j] = made[j] + p[j] * change[count + 1]
            arguments = (made,) + arguments[1:]  # noqa: RUF005  (numba cannot unpack here)
        _call(name, arguments)
        return n

    word = types.int64
    return kept(cfunc, word(word, word, word, types.CPointer(from_dtype(dtype)), word))(block)


# inlined, or the compiler does not see that indices are never negative, and does not vectorise
overload(elements, inline="always")(lambda array: lambda array: range(array.size))


def _call(name, arguments):
    """Call one of `_bodies`."""


@overload(_call, prefer_literal=True)
def _(name, arguments):
    body = _bodies[name.literal_value]
    return lambda name, arguments: body(*arguments)


@intrinsic
def _arguments(context, row, first, n, numbers, columns, count):
    """What a loop is called with: `n` elements of the arrays whose addresses lie at `row`, and its numbers."""
    array, dtype = types.Array(numbers.dtype, 1, "C"), numbers.dtype
    made = types.Tuple([array] * columns.literal_value + [dtype] * count.literal_value)

    def emit(context, builder, signature, values):
        def item(pointer, place):
            return builder.load(builder.gep(pointer, [context.get_constant(types.intp, place)]))

        row, first, n, numbers = values[:4]
        itemsize, parts = context.get_constant(types.intp, dtype.bitwidth // 8), []
        addresses = builder.inttoptr(row, context.get_value_type(types.CPointer(types.intp)))
        for k in range(columns.literal_value):
            address = builder.add(item(addresses, k), builder.mul(first, itemsize))
            view = context.make_array(array)(context, builder)
            start = builder.inttoptr(address, context.get_data_type(dtype).as_pointer())
            populate_array(view, data=start, shape=[n], strides=[itemsize], itemsize=itemsize, meminfo=None)
            parts.append(view._getvalue())
        parts += [item(numbers, k) for k in range(count.literal_value)]
        return context.make_tuple(builder, made, parts)

    return made(types.intp, types.intp, types.intp, numbers, columns, count), emit


@intrinsic
def _pointer(context, address, like):
    """An address as a pointer of the type of `like`."""

    def emit(context, builder, signature, values):
        return builder.inttoptr(values[0], context.get_value_type(like))

    return like(types.intp, like), emit


@intrinsic
def _call_at(context, address, row, first, n, numbers, changed):
    """Call machine code at an address."""

    def emit(context, builder, signature, values):
        function = context.get_value_type(types.ExternalFunctionPointer(CALLED, None))
        return context.call_function_pointer(builder, builder.inttoptr(values[0], function), values[1:])

    return types.int64(types.int64, *CALLED.args), emit
