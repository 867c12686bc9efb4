"""How a kernel on rows gets its inputs: what all rows share once, each row when its turn comes or one turn ahead.

Where a block takes many rows one after the other, each thread has its part of the next row on its way to shared memory
while it works on this one. It reads only what it brought itself, so that no thread waits for another one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from minigraph.kernels.cuda.elementwise.pointwise import compute_type, merged_axes
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer

from .code import Code, TooMuch

COPIES = (4, 8, 16)  # bytes that a thread copies to shared memory at a time
BESIDE = 16 << 10  # bytes of a block's shared memory beside rows that are on their way
OF_ROW = [  # `packs` and `lane` are known
    "const bool inside = row < ROWS_TO;",
    "const i64 mine = inside ? packs - lane : 0;  // pack k of this thread exists where k * LANES < mine",
]


class Leading:
    """The axes before a row: their extents, and the operands' steps along them."""

    def __init__(self, extents: list[int], strides: dict[str, list[int]]) -> None:
        self.extents, self.strides = extents, strides

    def offsets(self) -> list[str]:
        """Where each operand's row begins."""
        lines = ["i64 rest = inside ? row : ROWS_FROM;"]
        for a in range(len(self.extents) - 1, 0, -1):
            lines += [f"const i64 i{a} = rest % extent{a};", f"rest /= extent{a};"]
        lines.append("const i64 i0 = rest;")
        for name in self.strides:
            terms = [f"i{a} * step_{name}_{a}" for a in range(len(self.extents))]
            lines.append(f"const i64 o_{name} = {' + '.join(terms)};")
        return lines


def row_strides(layout: Any, inputs: Sequence[str], buffers: Mapping[str, Buffer]) -> Leading:
    """Steps of whole operands along the axes before a row; they hold whole rows, or one element for each."""
    row, shape = layout.row, layout.shape
    n, names, seen = math.prod(shape[row:]), [], []
    sizes = {}
    for name in inputs:
        if layout.kinds[name] != "whole":
            continue
        own = buffers[name].shape
        own = (1,) * (len(shape) - len(own)) + own
        if own[row:] == shape[row:]:
            sizes[name] = n
        elif math.prod(own[row:]) == 1:
            sizes[name] = 1
        else:
            raise TooMuch(f"an operand {list(buffers[name].shape)} broadcasts inside a row of {list(shape)}")
        names.append(name)
        seen.append(own[:row])
    extents, strides = merged_axes(shape[:row], seen)
    return Leading(extents, {name: [s * sizes[name] for s in own] for name, own in zip(names, strides, strict=True)})


class RowPacks(NamedTuple):
    """An input of which a thread has packs of `nbytes`: its C++ type, and where a row of it begins."""

    name: str
    type: str
    nbytes: int
    start: str

    @property
    def pack(self) -> str:
        """Where pack `k` lies in memory."""
        return f"(const {self.type}*)({self.start}) + PLACE(k)"

    @property
    def loaded(self) -> list[str]:
        """Statements that load all packs."""
        return [f"{self.type} q_{self.name}[PACKS];", f"ALL_PACKS q_{self.name}[k] = *({self.pack});"]


class RowInputs:
    """A kernel's inputs as they lie in memory; those of `code`, which begins with them, are computed from them.

    columns  statements before the loop over rows, for what all rows share
    packed   what has whole rows;  single: (name, C++ type, place) of what has one element for a row
    What lies outside a row is some number of it or of another one: sums ask whether an element exists.
    """

    def __init__(
        self, code: Code, layout: Any, inputs: Sequence[str], buffers: Mapping[str, Buffer], width: int
    ) -> None:  # fmt: skip
        self.columns: list[str] = []
        self.packed: list[RowPacks] = []
        self.single: list[tuple[str, str, str]] = []
        for name in inputs:
            buffer, kind = buffers[name], layout.kinds[name]
            if kind == "row" or (kind == "whole" and _is_row_constant(layout, buffer)):
                place = f"p_{name}[{'row' if kind == 'row' else f'o_{name}'}]"
                self.single.append((name, compute_type(buffer.dtype), place))
                code.lines.append(f"{code.declare(name, False)} = q_{name};")
                continue
            column = kind == "column"
            start = f"p_{name}" if column else f"p_{name} + o_{name}"
            own = RowPacks(name, f"Pack<{CUDA_TYPES[buffer.dtype]}, {width}>", width * buffer.dtype.itemsize, start)
            if column:
                self.columns += own.loaded
            else:
                self.packed.append(own)
            code.lines.append(f"unpack({code.declare(name, True)}, q_{name});")

    def bytes_ahead(self, per_thread: int, threads: int, room: int) -> int:
        """Shared memory that a block's next rows take; 0 where they cannot be fetched, or have no room."""
        nbytes = sum(p.nbytes for p in self.packed) * per_thread * threads
        fits = nbytes + BESIDE <= room and all(p.nbytes in COPIES for p in self.packed)
        return nbytes if fits else 0

    def now(self, leading: Leading) -> list[str]:
        """Statements that load row `row`."""
        lines = [*OF_ROW, *leading.offsets()]
        for p in self.packed:
            lines += p.loaded
        return lines + [f"const {c} q_{name} = inside ? up({place}) : {c}(0);" for name, c, place in self.single]

    def ahead(self, leading: Leading, per_thread: int, threads: int) -> tuple[list[str], list[str]]:
        """Statements before the loop, and those that take row `row`, which was fetched, and fetch the next one."""
        before, take, start = ["extern __shared__ uint4 memory[];"], [*OF_ROW, "wait_for_copies();"], 0
        fetch = ["const auto fetch = [&](i64 row) {", OF_ROW[0], *leading.offsets()]
        for p in self.packed:
            before.append(f"{p.type}* const s_{p.name} = ({p.type}*)(memory + {start // 16}) + threadIdx.x;")
            start += p.nbytes * per_thread * threads
            fetch.append(f"if (inside) ALL_PACKS fetch_pack(s_{p.name} + k * {threads}, {p.pack});")
            take += [f"{p.type} q_{p.name}[PACKS];", f"ALL_PACKS q_{p.name}[k] = s_{p.name}[k * {threads}];"]
        for name, c, place in self.single:
            before.append(f"{c} n_{name};")
            fetch.append(f"n_{name} = inside ? up({place}) : {c}(0);")
            take.append(f"const {c} q_{name} = n_{name};")
        first = "fetch(ROWS_FROM + threadIdx.x / LANES);"
        return [*before, *fetch, "};", first], [*take, "fetch(row + ROWS_STEP);"]


def _is_row_constant(layout: Any, buffer: Buffer) -> bool:
    """Whether an operand has one element for all of a row of several."""
    last = buffer.shape[max(0, buffer.ndim - (len(layout.shape) - layout.row)) :]
    return math.prod(last) == 1 != math.prod(layout.shape[layout.row :])


def column_anew(code: Code, name: str, buffer: Buffer, width: int) -> list[str]:
    """A column from the cache, declared; the compiler must not take the load out of the loop over rows."""
    t, at = CUDA_TYPES[buffer.dtype], len(code.lines)
    variable = code.declare(name, True)
    pack, declared = f"Pack<{t}, {width}>", code.lines.pop(at)
    return [
        declared, f"{{ const {t}* from = p_{name};", '    asm volatile("" : "+l"(from));',
        f"    ALL_PACKS {{ const {pack} q = ((const {pack}*)from)[PLACE(k)];",
        f'        _Pragma("unroll") for (int v = 0; v < WIDTH; ++v) {variable}[k * WIDTH + v] = up(q.v[v]); }} }}',
    ]  # fmt: skip
