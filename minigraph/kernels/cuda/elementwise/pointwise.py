"""Pointwise kernels, generated from one C++ expression per operator.

    relu      "X > 0 ? X : C(0)"        variables are named like the slots, C is the type computed in

Operands broadcast to the shape of the output. Axes along which all operands step alike are merged,
so most calls have one axis and no index arithmetic; an operand that lies as the output does needs none in any
call. Where rows are long enough, an element pack of 16 bytes is loaded and stored at once. Reads every operand and
writes every output once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.record.compile import KEPT, read_source
from minigraph.kernels.cuda.record.symbolic import SizeSymbol, scalar
from minigraph.types import bfloat16, float16

THREADS = 256
PACK_BYTES = 16
COMPUTE = {float16: "float", bfloat16: "float"}

Shape = tuple[int, ...]


def compute_type(dtype: np.dtype) -> str:
    """The C++ type in which values of `dtype` are computed."""
    return COMPUTE.get(dtype, CUDA_TYPES[dtype])


def bind_pointwise(
    binder: Binder, outputs: Mapping[str, Buffer], inputs: Mapping[str, Buffer], expressions: Mapping[str, str],
    scalars: Mapping[str, Any] | None = None, shapes: Mapping[str, Shape] | None = None,
) -> None:  # fmt: skip
    """outputs[name] = expressions[name] at every element.

    inputs   broadcast to the outputs' shape, seen with `shapes[name]` where given
    scalars  numbers that expressions name; passed by value
    """
    shape = next(iter(outputs.values())).shape
    shapes = shapes or {}
    size = math.prod(shape)
    if size == 0:
        return
    operands = [*inputs.values(), *outputs.values()]
    seen = [shapes.get(name, b.shape) for name, b in inputs.items()] + [shape] * len(outputs)
    extents, strides = merged_axes(shape, seen)
    written, widest = (max(b.dtype.itemsize for b in some) for some in (outputs.values(), operands))
    most = min(PACK_BYTES // written, 4 * PACK_BYTES // widest)  # a wider input takes up to four accesses
    pack = pack_size(operands, extents, strides, most)
    scalars = {name: _scalar(value) for name, value in (scalars or {}).items()}
    wide = size >= 2**31
    source = pointwise_source(outputs, inputs, expressions, scalars, walks(extents, strides), pack, wide)
    packs = size // pack
    binder.launch_source(
        source, "pointwise", blocks_for(packs, THREADS), THREADS, *inputs.values(), *outputs.values(),
        *scalars.values(), i64(packs), *walk_arguments(extents, strides),
    )  # fmt: skip


def merged_axes(shape: Shape, operands: Sequence[Shape]) -> tuple[list[int], list[list[int]]]:
    """Extents of the fewest axes, and each operand's stride along them (0 where it broadcasts)."""
    strides = [_strides(o, len(shape)) for o in operands]
    extents: list[int] = []
    merged: list[list[int]] = [[] for _ in operands]
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        alike = bool(extents) and all(m[-1] == s[axis] * extent for m, s in zip(merged, strides, strict=True))
        if alike:
            extents[-1] *= extent
        else:
            extents.append(extent)
        for m, s in zip(merged, strides, strict=True):
            if alike:
                m[-1] = s[axis]
            else:
                m.append(s[axis])
    if not extents:
        return [1], [[1] for _ in operands]
    return extents, merged


def _strides(shape: Shape, ndim: int) -> list[int]:
    """Elements from one index to the next along each of `ndim` axes; 0 along broadcast ones."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(0 if extent == 1 else step)
        step *= extent
    return [0] * (ndim - len(shape)) + strides[::-1]


def pack_size(
    operands: Sequence[Buffer], extents: Sequence[int], strides: Sequence[Sequence[int]], most: int = 0
) -> int:
    """Elements per access: `most`, else 16 bytes of the widest operand, where rows and addresses allow it."""
    pack = most or PACK_BYTES // max(b.dtype.itemsize for b in operands)
    while pack > 1:
        packed = [(b, s) for b, s in zip(operands, strides, strict=True) if s[-1] != 0]  # others: one element a row
        whole = extents[-1] % pack == 0
        rows = all(s[-1] == 1 and all(outer % pack == 0 for outer in s[:-1]) for _, s in packed)
        aligned = all(b.alignment % (pack * b.dtype.itemsize) == 0 for b, _ in packed)
        if whole and rows and aligned:
            return pack
        pack //= 2
    return 1


def pointwise_source(
    outputs: Mapping[str, Buffer], inputs: Mapping[str, Buffer], expressions: Mapping[str, str],
    scalars: Mapping[str, np.generic], steps: tuple[str, ...], pack: int, wide: bool,
) -> str:  # fmt: skip
    """The kernel's text. It depends on types, walks and pack size only, never on names of users."""
    updated = {id(b) for b in outputs.values()}  # an operand that is updated in place must not be read ahead
    return _source(
        tuple((n, b.dtype) for n, b in outputs.items()),
        tuple((n, b.dtype, id(b) in updated) for n, b in inputs.items()), tuple(expressions[n] for n in outputs),
        tuple((n, _ctype(v)) for n, v in scalars.items()), steps, pack, wide,
    )  # fmt: skip


@lru_cache(maxsize=KEPT)
def _source(
    outputs: tuple[tuple[str, np.dtype], ...], inputs: tuple[tuple[str, np.dtype, bool], ...],
    expressions: tuple[str, ...], scalars: tuple[tuple[str, str], ...], steps: tuple[str, ...], pack: int, wide: bool,
) -> str:  # fmt: skip
    operands = [(n, dtype) for n, dtype, *_ in (*inputs, *outputs)]
    computed = _computed([dtype for _, dtype in operands])
    names = [n for n, _ in operands]
    index = "u64" if wide else "u32"
    parameters = [f"const {CUDA_TYPES[d]}* {'' if updated else '__restrict__ '}p_{n}" for n, d, updated in inputs]
    parameters += [f"{CUDA_TYPES[d]}* p_{n}" for n, d in outputs]
    parameters += [f"{ctype} s_{n}" for n, ctype in scalars]
    own = dict(zip(names, steps, strict=True))
    parameters += ["i64 packs", *walk_parameters(own)]
    body = [
        "u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;",
        "if (at >= packs) return;",
        *offsets(own, pack, index),
    ]
    for n, dtype, _ in inputs:
        t = CUDA_TYPES[dtype]
        if pack == 1 or own[n][-1] == "0":
            body.append(f"const {t} v_{n} = p_{n}[o_{n}];")
        else:
            body.append(f"const Pack<{t}, {pack}> v_{n} = *(const Pack<{t}, {pack}>*)(p_{n} + o_{n});")
    for n, dtype in outputs:
        body.append(f"Pack<{CUDA_TYPES[dtype]}, {pack}> r_{n};")
    body += ["#pragma unroll", f"for (int i = 0; i < {pack}; ++i) {{"]
    for n, dtype, _ in inputs:
        value = f"v_{n}" if pack == 1 or own[n][-1] == "0" else f"v_{n}.v[i]"
        body.append(f"    const {compute_type(dtype)} {n} = up({value});")
    body += [f"    const C {n} = C(s_{n});" for n, _ in scalars]
    for (n, dtype), expression in zip(outputs, expressions, strict=True):
        body.append(f"    r_{n}.v[i] = down<{CUDA_TYPES[dtype]}>({compute_type(dtype)}({expression}));")
    body.append("}")
    for n, dtype in outputs:
        t = CUDA_TYPES[dtype]
        body.append(f"*(Pack<{t}, {pack}>*)(p_{n} + o_{n}) = r_{n};")
    lines = "\n    ".join(body)
    return (
        f"{read_source('record/prelude.cuh')}\n#define C {computed}\n"
        f'extern "C" __global__ void __launch_bounds__({THREADS}) pointwise(\n    '
        + ",\n    ".join(parameters)
        + f")\n{{\n    {lines}\n}}\n"
    )


# A walk says how an operand steps along the merged axes: a letter for each, 0, 1, or n where the step is an argument of
# the kernel; FLAT where elements lie as those of the output do.
FLAT = "flat"


def walks(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """The walk of each operand."""
    flat = [math.prod(extents[a + 1 :]) for a in range(len(extents))]
    return tuple(FLAT if list(s) == flat else "".join("01n"[min(step, 2)] for step in s) for s in strides)


def walk_parameters(steps: Mapping[str, str]) -> list[str]:
    """What a kernel must be told of sizes: extents of the axes but the first, and steps."""
    axes = max((len(walk) for walk in steps.values() if walk != FLAT), default=1)
    return [f"i64 extent{a}" for a in range(1, axes)] + [
        f"i64 step_{n}_{a}" for n, walk in steps.items() if walk != FLAT for a, c in enumerate(walk) if c == "n"
    ]


def walk_arguments(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> list[np.int64]:
    """The numbers for `walk_parameters`."""
    own = list(zip(walks(extents, strides), strides, strict=True))
    sizes = extents[1:] if any(walk != FLAT for walk, _ in own) else ()
    steps = [s for walk, steps_of in own if walk != FLAT for s, c in zip(steps_of, walk, strict=True) if c == "n"]
    return [i64(n) for n in (*sizes, *steps)]


def offsets(steps: Mapping[str, str], pack: int, index: str) -> list[str]:
    """Where each operand's elements of this thread begin."""
    axes = max((len(walk) for walk in steps.values() if walk != FLAT), default=1)
    lines = []
    if axes > 1:
        lines.append(f"{index} rest = {index}(at * {pack});")
        for a in range(axes - 1, 0, -1):
            lines += [f"const {index} i{a} = rest % {index}(extent{a});", f"rest /= {index}(extent{a});"]
        lines.append(f"const {index} i0 = rest;")
    for n, walk in steps.items():
        if walk == FLAT:
            lines.append(f"const u64 o_{n} = at * {pack};")
            continue
        terms = [f"i{a}" + f" * {index}(step_{n}_{a})" * (c == "n") for a, c in enumerate(walk) if c != "0"]
        lines.append(f"const u64 o_{n} = {' + '.join(terms) or 0};")
    return lines


def _computed(dtypes: Sequence[np.dtype]) -> str:
    """C: the type of the first floating operand, else of the first one."""
    floats = [d for d in dtypes if d.kind == "f" or d in (bfloat16, float16)]
    return compute_type((floats or dtypes)[0])


def _scalar(value: Any) -> np.generic:
    if isinstance(value, SizeSymbol):
        return scalar(np.int64, value)
    return np.int64(value) if np.asarray(value).dtype.kind in "bi" else np.float64(value)


def _ctype(value: np.generic) -> str:
    return "i64" if value.dtype.kind == "i" else "double"


