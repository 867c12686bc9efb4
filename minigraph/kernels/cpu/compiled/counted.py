"""Counters that threads share: how many blocks of work have been begun, how much is done."""

from __future__ import annotations

from typing import Any

from numba import extending, types

LINE = 8  # counters in a cache line: threads that count do not disturb each other

intrinsic: Any = extending.intrinsic(prefer_literal=True)  # what it makes has a parameter less than the function


@intrinsic
def counted(context, counters, index, more):
    """The value of a counter, to which `more` is added at once."""

    def emit(context, builder, signature, values):
        array = context.make_array(signature.args[0])(context, builder, values[0])
        return builder.atomic_rmw("add", builder.gep(array.data, [values[1]]), values[2], "seq_cst")

    return types.int64(counters, types.intp, types.int64), emit
