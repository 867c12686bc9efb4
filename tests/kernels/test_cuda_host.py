"""Every operator's CUDA kernels, run on a CPU: the samples of test_ops give what the reference gives."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import numpy as np
import pytest

from minigraph.types import FLOATS, bfloat16, float16, float32, float64
from tests.gpu.check import assert_like_cpu
from tests.support.cuda_host import COMPILER, Bound, NotOnHost, build
from tests.support.every_call import of_every_call
from tests.support.opcheck import Call, Slots, all_calls, apply, inferred_types, tolerance

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")

CALLS = [
    call for call in all_calls()
    if (call.opdef.gpu or call.opdef.cuda) and "side_effect" not in call.opdef.traits
]  # fmt: skip
FIRST = {str(call).rpartition("-")[0]: call for call in reversed(CALLS)}  # one sample of each operator


SHORTER = [c for c in FIRST.values() if c.float_places]
HALVES = float16, bfloat16  # taken in turns
SOONER = [(c, float64) for c in CALLS] + [(c, t) for i, c in enumerate(SHORTER) for t in (float32, HALVES[i % 2])]
LATER = [(c, HALVES[i % 2 - 1]) for i, c in enumerate(SHORTER)]
CASES = SOONER + LATER
TOGETHER = 32  # neighbours whose kernels are built together
PLACE = {(id(call), dtype): place for place, (call, dtype) in enumerate(CASES)}


def bound(call: Call) -> Bound:
    """The GPU form, ready to run."""
    opdef = call.opdef

    def of_slots(slots, given):
        return {s.name: x if not (x := given.get(s.name)) or s.variadic else x[0] for s in slots}

    types = inferred_types(call)
    return Bound(
        opdef.gpu_bind, of_slots(opdef.inputs, call.inputs), of_slots(opdef.outputs, types), call.attrs,
        unread=opdef.unread([*types]), seed=7, reference=opdef.reference,
    )  # fmt: skip


@cache
def build_neighbours(group: int) -> None:
    """Build the kernels of a group of cases; one that cannot be bound says so in its own test."""
    kernels = []
    for call, dtype in CASES[group * TOGETHER : (group + 1) * TOGETHER]:
        with suppress(Exception):
            kernels += bound(call.for_gpu(dtype)).kernels
    build(kernels)


def on_host(call: Call) -> Slots:
    """{output slot: arrays} of the GPU form."""
    slots = (*call.opdef.inputs, *call.opdef.outputs)
    variadic = {slot.name for slot in slots if slot.variadic}
    made, fault = bound(call).run()
    assert not fault.any()
    return {name: x if name in variadic else [x] for name, x in made.items() if x is not None}


def check(call: Call, dtype: np.dtype) -> None:
    """All in float64, the first also in shorter floats: what the reference gives, rounded."""
    build_neighbours(PLACE[id(call), dtype] // TOGETHER)
    rounded = call.for_gpu(dtype)
    try:
        found = on_host(rounded)
    except NotOnHost as why:
        pytest.skip(str(why))
    exact = apply(call.opdef.reference, rounded.as_dtype(float64))
    types = inferred_types(rounded)
    assert found.keys() == exact.keys()
    if call.opdef.type.startswith("memory_efficient") and dtype in (float16, bfloat16):
        plain = apply(call.opdef.reference, rounded)  # probabilities are rounded on their way to the tensor cores
        for slot, (right,) in exact.items():
            finite = np.isfinite(right)
            assert_like_cpu(found[slot][0][finite], plain[slot][0][finite], right[finite], dtype, slot)
        return
    for slot, arrays in exact.items():
        for expected, f, t in zip(arrays, found[slot], types[slot], strict=True):
            assert f.shape == np.shape(expected)
            assert f.dtype == t.dtype
            if t.dtype not in FLOATS:
                np.testing.assert_array_equal(f, expected)
                continue
            wide, right = f.astype(float), np.asarray(expected, float)
            np.testing.assert_array_equal(np.isnan(wide), np.isnan(right))
            with np.errstate(invalid="ignore"):
                fine = (np.abs(wide - right) <= tolerance(t.dtype, right, rounded)) | (wide == right) | np.isnan(right)
            assert fine.all(), f"{slot}: {wide[~fine]} instead of {right[~fine]}"


test_samples_give_what_the_reference_gives = of_every_call(SOONER)(check)
test_samples_in_the_other_16_bits = of_every_call(LATER, pytest.mark.sweep)(check)
