"""Fused bodies with members that work on rows: LANES threads keep the values of a row in registers.

Reads every input once (row_inputs.py) and writes every output once, statistics in between. Sums over rows (gradients of
a scale or a bias) are kept in registers while a block takes every gridDim-th row; a second launch adds up the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from minigraph.kernels.cuda.elementwise.pointwise import PACK_BYTES, compute_type
from minigraph.kernels.cuda.elementwise.reduce import accumulator, power_of_two
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.types import float64

from .code import (
    Code,
    TooMuch,
    add_pointwise,
    kernel_source,
    last_uses,
    operand_parameters,
    read_names,
    values_read,
)
from .joined_head import RowKernel
from .row_inputs import RowInputs, column_anew, row_strides
from .row_members import add_rows

FEW_LANES, MOST_LANES = 64, 512  # threads that share a row where a warp cannot take it
MOST_ALONE = 8  # packs of a thread where a warp takes a row
REGISTERS = 128  # of a thread, 4 bytes each, in blocks of 512 threads
RESERVED = 38  # of these, for addresses and statistics
THREADS, SUM_THREADS = 128, 256  # of a block at least; of one that sums over rows
RESIDENT = ((1024, 64), (768, 84), (512, 128))  # threads of a multiprocessor, and registers that each then has
BESIDE, BESIDE_DRAWS, BESIDE_DOUBLES = 20, 28, 64  # registers beside those of values


def bind_rows(binder: Binder, fused: Any, buffers: Mapping[str, Buffer]) -> None:
    """A body with rows as one kernel, and one more for all sums over rows."""
    layout, types = fused.layout, fused.types
    rows, n = math.prod(layout.shape[: layout.row]), math.prod(layout.shape[layout.row :])
    inputs = read_names(fused, buffers)
    sums = [name for name in fused.outputs if layout.kinds[name] == "sum"]
    written = [name for name in fused.outputs if name not in sums]
    leading = row_strides(layout, inputs, buffers)
    width = _width(n, layout, [*inputs, *written], buffers)
    packs = n // width
    anew, words, lanes, per_lane = _shares(fused, inputs, buffers, packs, width)
    threads = max(lanes, SUM_THREADS if sums else THREADS)
    code = Code(types, layout.kinds)
    for name in sums:
        code.declare(name, True)
    totals = [line.replace(";", " = {};") for line in code.lines]
    code.lines.clear()
    loads = RowInputs(code, layout, [name for name in inputs if name not in anew], buffers, width)
    shelves = _add_members(code, fused, binder, n, lambda name: column_anew(code, name, buffers[name], width), anew,
                           lambda name: _store(code, layout, name, buffers[name], width))
    groups, resident = threads // lanes, max(1, _threads_at_once(fused, words * per_lane * width) // threads)
    blocks, at_once = blocks_for(rows, groups), binder.device.multiprocessors * resident
    shared = loads.bytes_ahead(per_lane, threads, binder.device.shared // resident) if blocks > at_once else 0
    before, take = loads.ahead(leading, per_lane, threads) if shared else ([], loads.now(leading))
    if sums or shared:
        blocks = min(blocks, at_once)
    partial = [binder.scratch((blocks, n), accumulator("SUM", types[name].dtype)) for name in sums]
    parameters = [*operand_parameters(inputs, written, buffers), *code.parameters]
    parameters += [f"{CUDA_TYPES[b.dtype]}* p_{name}" for name, b in zip(sums, partial, strict=True)]
    parameters += ["i64 rows"] + [f"i64 extent{a}" for a in range(1, len(leading.extents))]
    parameters += [f"i64 step_{name}_{a}" for name in leading.strides for a in range(len(leading.extents))]
    body = [
        f"constexpr i64 n = {n}, packs = {packs};", f"__shared__ double shelf[{max(1, shelves) * 2}][32];",
        "const int lane = threadIdx.x % LANES;", "int turn = 0;", *totals, *loads.columns, *before,
        "for (i64 first = ROWS_FROM; first < ROWS_TO; first += ROWS_STEP, turn ^= 1) {",
        "const i64 row = first + threadIdx.x / LANES;", *take,
        "const auto element = [&](int k) { return u64(row) * n + (lane + k * LANES) * WIDTH; };", *code.lines, "}",
        *_sum_lines(code, sums, groups, types),
    ]  # fmt: skip
    facts = {"WIDTH": width, "PACKS": per_lane, "LANES": lanes, "FULL": int(packs % lanes == 0), "GROUPS": groups,
             "ROWS_FROM": "i64(blockIdx.x) * GROUPS", "ROWS_TO": "rows", "ROWS_STEP": "i64(gridDim.x) * GROUPS"}
    source = kernel_source("fused_rows", facts, parameters, body, threads, resident)
    args = [*(buffers[name] for name in (*inputs, *written)), *code.arguments, *partial, i64(rows)]
    args += [i64(e) for e in leading.extents[1:]] + [i64(s) for steps in leading.strides.values() for s in steps]
    reads, writes = _whole_arguments(layout, inputs, written)
    form = None if sums or shared else RowKernel(facts, parameters, body, (rows, n), reads, writes, lanes)
    binder.launch_source(source, "fused_rows", blocks, threads, *args, shared=shared, form=form)
    if sums:
        _bind_totals(binder, partial, [buffers[name] for name in sums])


def _whole_arguments(
    layout: Any, inputs: Sequence[str], written: Sequence[str]
) -> tuple[frozenset[int], frozenset[int]]:
    """Places among a kernel's arguments of what it reads, and writes, in whole rows."""
    whole = [i for i, name in enumerate([*inputs, *written]) if layout.kinds[name] == "whole"]
    return frozenset(i for i in whole if i < len(inputs)), frozenset(i for i in whole if i >= len(inputs))


def _add_members(
    code: Code, fused: Any, binder: Binder, n: int, load: Callable[[str], list[str]], anew: Collection[str],
    store: Callable[[str], list[str]],
) -> int:  # fmt: skip
    """The statements of all members; returns how many shelves of shared memory they take.

    A column of `anew` is loaded before the member that reads it. An output is stored behind the last member that reads
    it, so that its registers serve others.
    """
    shelves, last = 0, last_uses(fused.members)
    for i, m in enumerate(fused.members):
        for name in anew:
            if name in values_read(m):
                code.lines += load(name)
        binder.member = m.opdef.type
        if m.opdef.rows is None:
            add_pointwise(code, m, binder)
        else:
            shelves += add_rows(code, m, binder, n, shelves)
        for name in fused.outputs:
            if last[name] == i and code.kinds[name] != "sum":
                code.lines += store(name)
    return shelves


def _threads_at_once(fused: Any, words: float) -> int:
    """Threads of a multiprocessor that have registers for values of so many words, and for what stands beside them."""
    beside = BESIDE_DRAWS if any("random" in m.opdef.traits for m in fused.members) else BESIDE
    beside = BESIDE_DOUBLES if any(t.dtype == float64 for t in fused.types.values()) else beside
    return next((threads for threads, registers in RESIDENT if words + beside <= registers), RESIDENT[-1][0])


def _bind_totals(binder: Binder, partial: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
    """Each of `outs` [n] becomes the sum of the rows of its partial sums [parts, n], in a fixed order."""
    pairs = list(zip(partial, outs, strict=True))
    parameters = [f"const {CUDA_TYPES[a.dtype]}* a{i}, {CUDA_TYPES[b.dtype]}* b{i}" for i, (a, b) in enumerate(pairs)]
    cases = [f"if (blockIdx.y == {i}) add_rows(a{i}, b{i}, parts, n);" for i in range(len(pairs))]
    source = kernel_source("totals", {"TOTALS": 1}, [*parameters, "i64 parts", "i64 n"], cases, 1024)
    parts, n = partial[0].shape
    args = [buffer for pair in pairs for buffer in pair]
    binder.launch_source(source, "totals", (blocks_for(n, 32), len(pairs)), 1024, *args, i64(parts), i64(n))


def _width(n: int, layout: Any, names: Sequence[str], buffers: Mapping[str, Buffer]) -> int:
    """Elements of a pack: 16 bytes of the widest whole operand, where rows and addresses allow it; 1 without any."""
    packed = [buffers[name] for name in names if layout.kinds[name] != "row"]
    width = PACK_BYTES // max((b.dtype.itemsize for b in packed if b.size >= n), default=PACK_BYTES)
    while n % width or any(b.alignment % (width * b.dtype.itemsize) for b in packed):
        width //= 2
    return width


def _shares(
    fused: Any, inputs: Sequence[str], buffers: Mapping[str, Buffer], packs: int, width: int
) -> tuple[list[str], float, int, int]:
    """(columns that each row reads anew, words of an element, threads of a row, packs of each).

    Columns stay in registers. Where these do not suffice for few threads, those that one member reads come from the
    cache each time.
    """
    once = [name for name in inputs if fused.layout.kinds[name] == "column"
            and sum(name in values_read(m) for m in fused.members) == 1]  # fmt: skip
    ways = []
    for anew in ([], once):
        words = _live_words(fused, inputs, buffers, anew)
        if shared := _lanes(packs, width, words):
            ways.append((anew, words, *shared))
    if not ways:
        raise TooMuch(f"a row of {packs * width} elements with {words} values each does not fit the registers")
    return min(ways, key=lambda way: max(way[2], FEW_LANES))


def _live_words(fused: Any, inputs: Sequence[str], buffers: Mapping[str, Buffer], anew: Collection[str]) -> float:
    """Registers for one element of all values that live at once, at most.

    Inputs wait as they came from memory. What comes from the cache, or is stored at once, has them for no time.
    """
    layout, last = fused.layout, last_uses(fused.members)
    computed = {name: 2 if t.dtype == float64 else 1 for name, t in fused.types.items()}

    def words(names: Iterable[str]) -> float:
        held = [name for name in names if layout.kinds[name] != "row"]
        return sum(buffers[name].dtype.itemsize / 4 if name in inputs else computed[name] for name in held)

    lasting = {*(name for name in inputs if layout.kinds[name] == "column"),
               *(name for name in fused.outputs if layout.kinds[name] == "sum")} - {*anew}  # fmt: skip
    live = {*inputs} - {*anew} | lasting
    most = words(live)
    for i, m in enumerate(fused.members):
        live.update(name for name in m.written if last[name] > i)
        most = max(most, words(live))
        live = {name for name in live if last.get(name, i) > i or name in lasting}
    return most + 1


def _lanes(packs: int, width: int, words: float) -> tuple[int, int] | None:
    """Threads that share a row of `packs` packs, and packs of each; None where no registers hold the row.

    Few threads with many packs, as registers allow: more of a row is on its way from memory at once, and more rows are.
    """
    room = REGISTERS - RESERVED
    alone = blocks_for(packs, 32)  # packs of each thread where a warp takes a row: no barrier between warps
    if alone <= MOST_ALONE and alone * width * words <= room:
        return min(32, power_of_two(packs)), alone
    lanes = min(FEW_LANES, power_of_two(packs))
    while lanes < MOST_LANES and blocks_for(packs, lanes) > 1 and blocks_for(packs, lanes) * width * words > room:
        lanes *= 2
    per_lane = blocks_for(packs, lanes)
    return (lanes, per_lane) if per_lane == 1 or per_lane * width * words <= room else None


def _store(code: Code, layout: Any, name: str, buffer: Buffer, width: int) -> list[str]:
    """What writes an output that is no sum over rows."""
    t = CUDA_TYPES[buffer.dtype]
    if layout.kinds[name] == "row":
        return [f"if (inside && lane == 0) p_{name}[row] = down<{t}>({code.variables[name]});"]
    pack = f"Pack<{t}, {width}>"
    return [
        "ALL_PACKS if (HAS(k)) {", f"    {pack} r;",
        '    _Pragma("unroll") for (int v = 0; v < WIDTH; ++v) {',
        f"        const int i = k * WIDTH + v; r.v[v] = down<{t}>({code.at(name)}); }}",
        f"    (({pack}*)(p_{name} + u64(row) * n))[lane + k * LANES] = r;", "}",
    ]  # fmt: skip


def _sum_lines(code: Code, sums: Sequence[str], groups: int, types: Mapping[str, Any]) -> list[str]:
    """The block's sums over rows: its groups one after the other, in a fixed order, then a row of the partial sums."""
    lines = []
    for name in sums:
        variable, c = code.variables[name], compute_type(types[name].dtype)
        if groups > 1:
            lines += [
                f"{{ __shared__ {c} others[N][LANES];", "for (int group = 0; group < GROUPS; ++group) {",
                "    if (threadIdx.x / LANES == group)",
                f"        ALL others[i][lane] = {variable}[i] += group == 0 ? {c}(0) : others[i][lane];",
                "    __syncthreads();", "}}",
            ]  # fmt: skip
        lines += [
            "if (threadIdx.x / LANES == GROUPS - 1)",
            f"    ALL if ((lane + i / WIDTH * LANES) < packs)"
            f" p_{name}[blockIdx.x * n + (lane + i / WIDTH * LANES) * WIDTH + i % WIDTH] = {variable}[i];",
        ]  # fmt: skip
    return lines
