"""Fused bodies as one kernel; this file binds them and makes those without rows.

Each input is read once and each output written once, whatever lies between.

A body without a layout for its real shapes, or with more than registers hold, runs member by member with the members'
own kernels; the report says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from minigraph.kernels.cuda.elementwise.pointwise import (
    THREADS,
    merged_axes,
    offsets,
    pack_size,
    walk_arguments,
    walk_parameters,
    walks,
)
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.opdef.body import fused_body
from minigraph.types import TensorType

from .code import Code, TooMuch, add_pointwise, kernel_source, operand_parameters, read_names
from .members import bind_members
from .rows import bind_rows

Slots = Mapping[str, Any]


def fused_elementwise(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Outputs of a body, by one kernel where that can be."""
    x, like, out = ins["X"], ins.get("Like") or [], outs["Out"]
    fused = fused_body(attrs["body"], tuple(map(_type, x)), tuple(map(_type, like)))
    buffers = {f"x{i}": b for i, b in enumerate(x)} | {f"s{i}": b for i, b in enumerate(like)}
    buffers |= {f"y{i}": b for i, b in enumerate(out)}
    calls = len(binder.calls)
    try:
        if isinstance(fused.layout, str):
            raise TooMuch(fused.layout)
        if math.prod(fused.layout.shape) == 0:
            raise TooMuch("there are no elements")
        bind = _bind_whole if fused.layout.row is None else bind_rows
        bind(binder, fused, _apart(binder, buffers, fused.layout))
    except TooMuch as why:
        del binder.calls[calls:]
        binder.note(f"runs member by member: {why}")
        bind_members(binder, fused, buffers)


def _apart(binder: Binder, buffers: Mapping[str, Buffer], layout: Any) -> dict[str, Buffer]:
    """The buffers, with a copy of each input that is read after an output was written into its memory.

    A thread of one kernel reads its own elements before it writes them, so only what threads share is copied.
    """
    written = {id(b) for name, b in buffers.items() if name[0] == "y"}
    apart = dict(buffers)
    for name, b in buffers.items():
        own = layout.kinds.get(name) == "whole" and b.shape == layout.shape
        if name[0] == "x" and id(b) in written and not own:
            apart[name] = binder.scratch(b.shape, b.dtype)
            binder.copy(apart[name], b)
    return apart


def _type(buffer: Buffer) -> TensorType:
    return TensorType(buffer.shape, buffer.dtype)


# the kernel of a body without rows


def _bind_whole(binder: Binder, fused: Any, buffers: Mapping[str, Buffer]) -> None:
    """One thread for each pack of WIDTH elements."""
    shape = fused.layout.shape
    inputs = read_names(fused, buffers)
    names = [*inputs, *fused.outputs]
    operands = [buffers[n] for n in names]
    extents, strides = merged_axes(shape, [b.shape for b in operands])
    pack = pack_size(operands, extents, strides)
    steps = dict(zip(names, walks(extents, strides), strict=True))
    code = Code(fused.types, fused.layout.kinds)
    for n in inputs:
        b, whole = buffers[n], steps[n][-1] != "0"
        packed = pack > 1 and whole
        t, source = CUDA_TYPES[b.dtype], f"p_{n} + o_{n}"
        variable = code.declare(n, whole)
        if packed:
            code.lines.append(f"const Pack<{t}, {pack}> q_{n} = *(const Pack<{t}, {pack}>*)({source});")
        value = f"q_{n}.v[i]" if packed else f"*({source})"
        code.lines.append(f"{'ALL ' * (n in code.arrays)}{variable}{'[i]' * (n in code.arrays)} = up({value});")
    for m in fused.members:
        add_pointwise(code, m, binder)
    for n in fused.outputs:
        t = CUDA_TYPES[buffers[n].dtype]
        code.lines += [
            f"Pack<{t}, {pack}> r_{n};", f"ALL r_{n}.v[i] = down<{t}>({code.at(n)});",
            f"*(Pack<{t}, {pack}>*)(p_{n} + o_{n}) = r_{n};",
        ]  # fmt: skip
    size = math.prod(shape)
    index = "u64" if size >= 2**31 else "u32"
    parameters = [*operand_parameters(inputs, fused.outputs, buffers), *code.parameters, "i64 packs"]
    parameters += walk_parameters(steps)
    body = [
        "const u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;", "if (at >= packs) return;",
        f"const auto element = [&](int) {{ return at * {pack}; }};",
        *offsets(steps, pack, index), *code.lines,
    ]  # fmt: skip
    source = kernel_source("fused", {"WIDTH": pack, "PACKS": 1}, parameters, body, THREADS)
    packs = size // pack
    binder.launch_source(
        source, "fused", blocks_for(packs, THREADS), THREADS, *operands, *code.arguments, i64(packs),
        *walk_arguments(extents, strides),
    )  # fmt: skip
