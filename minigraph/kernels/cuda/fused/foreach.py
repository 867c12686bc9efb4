"""foreach_elementwise as one kernel: the text of its body, and the lists of tensors that it goes over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.record.tensors import Tensors, chosen_mode, launch_over
from minigraph.opdef.body import Member, infer_body, output_names, parse_body
from minigraph.types import TensorType

from .code import Code, add_pointwise

CHUNK = 2048  # elements of a block
PACK_BYTES = 16

Slots = Mapping[str, Any]
Column = list[Buffer]


def foreach_elementwise(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """The body on all tensors that have elements."""
    members, count, shared = parse_body(tuple(attrs["body"])), attrs["count"], ins["Shared"] or []
    given = {f"x{k}": column for k, column in enumerate(_columns(ins["X"], count))}
    written = dict(zip(output_names(members), _columns(outs["Out"], count), strict=True))
    shapes = [np.broadcast_shapes(*(column[i].shape for column in given.values())) for i in range(count)]
    sizes = [math.prod(shape) for shape in shapes]
    types = infer_body(members, [TensorType(b.shape, b.dtype) for b in (*ins["X"][::count], *shared)])
    read = _read(members)
    lists, places = _places({n: column for n, column in given.items() if n in read}, written)
    wide = {n for n, column in (given | written).items() if [b.size for b in column] == sizes}
    full = [i for i, size in enumerate(sizes) if size]
    if not full:
        return
    pack = PACK_BYTES // max(types[n].dtype.itemsize for n in wide if n in places)
    shared_names = [f"x{len(given) + k}" for k in range(len(shared))]
    text, parameters = _function(binder, members, types, places, wide, [n for n in shared_names if n in read])
    aligned = "".join(
        f"places |= at[{places[n]}] % (PACK * sizeof({CUDA_TYPES[types[n].dtype]})); " for n in sorted(wide & {*places})
    )
    tensors = Tensors([[column[i] for i in full] for column in lists], [sizes[i] for i in full])
    guard, fault = binder.guard(b for column in written.values() for b in column)
    passed = [b for n, b in zip(shared_names, shared, strict=True) if n in read]
    defines = {
        "PACK": pack, "PLACES": aligned, "SHARED": "".join(f", {p}" for p in parameters),
        "GIVEN": "".join(f", {p.split('*')[1].strip()}" for p in parameters),
    }  # fmt: skip
    mode = chosen_mode(binder, len(full), len(lists))
    launch_over(
        binder, "fused/foreach.cu", "foreach", tensors, mode, CHUNK, *passed, *fault, defines=defines | guard,
        generated=text,
    )  # fmt: skip


def _columns(buffers: Sequence[Buffer], count: int) -> list[Column]:
    return [list(buffers[at : at + count]) for at in range(0, len(buffers), count)]


def _read(members: Sequence[Member]) -> set[str]:
    """The names whose values a member reads."""
    return {n for m in members for s, ns in m.inputs.items() if s not in m.opdef.unread(m.outputs) for n in ns}


def _places(given: Mapping[str, Column], written: Mapping[str, Column]) -> tuple[list[Column], dict[str, int]]:
    """The columns, and the number of each name's one: what is updated in place has one column."""
    lists = list(given.values())
    places = {name: k for k, name in enumerate(given)}
    for name, column in written.items():
        own = [k for k, other in enumerate(lists) if all(a is b for a, b in zip(column, other, strict=True))]
        places[name] = own[0] if own else len(lists)
        lists += [] if own else [column]
    return lists, places


def _function(
    binder: Binder, members: Sequence[Member], types: Mapping[str, TensorType], places: Mapping[str, int],
    wide: set[str], shared: Sequence[str],
) -> tuple[str, list[str]]:  # fmt: skip
    """C++ of the body on N elements of a tensor, and its parameters for what all tensors share."""
    code, outputs = Code(types, {}), output_names(members)
    for n in [n for n in places if n not in outputs]:
        t, place = CUDA_TYPES[types[n].dtype], f"at[{places[n]}]"
        variable = code.declare(n, n in wide)
        if n in wide:
            code.lines.append(f"const Pack<{t}, N> q_{n} = *(const Pack<{t}, N>*)((const {t}*){place} + first);")
            code.lines.append(f"ALL {variable}[i] = up(q_{n}.v[i]);")
        else:
            code.lines.append(f"{variable} = up(*(const {t}*){place});")
    for n in shared:
        code.lines.append(f"{code.declare(n, False)} = up(*p_{n});")
    code.lines.append("const Answer answer = ASK;")
    for m in members:
        add_pointwise(code, m, binder)
    for n in outputs:
        t = CUDA_TYPES[types[n].dtype]
        code.lines += [
            f"Pack<{t}, N> r_{n};", f"ALL r_{n}.v[i] = down<{t}>({code.at(n)});",
            f"store((Pack<{t}, N>*)(({t}*)at[{places[n]}] + first), r_{n}, answer);",
        ]  # fmt: skip
    parameters = [f"const {CUDA_TYPES[types[n].dtype]}* p_{n}" for n in shared]
    head = "".join(f"{p}, " for p in parameters)
    lines = "\n    ".join([*code.lines, "return answer;"])
    return (
        '#define ALL _Pragma("unroll") for (int i = 0; i < N; ++i)\n'
        "template <int N> static __device__ __forceinline__ Answer on_elements("
        f"const u64* at, i64 first, {head}const Fault* fault)\n{{\n    {lines}\n}}\n"
    ), parameters
