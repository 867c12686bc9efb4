"""What Hopper's kernels need from the host: tensor maps for the copy engine, and the text of wgmma instructions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from minigraph.kernels.cuda.record.bindings import driver
from minigraph.kernels.cuda.record.buffer import Buffer, Words
from minigraph.kernels.cuda.record.compile import KEPT, read_source
from minigraph.types import bfloat16, float16, float32

MAP_WORDS = 16
WIDTH = 128  # bytes of a box's rows


class TensorMap(Words):
    """A tensor of floats from which the copy engine takes boxes with rows of 128 bytes (CUtensorMap).

    sizes    of its four axes, the contiguous one first
    strides  elements from one index to the next of the other three; multiples of 16 bytes
    box      its extents along these three, or along the first of them
    exact    whether float32 stays as it is; else the engine rounds it to TF32
    Rows of a box are swizzled; what lies outside the tensor is filled with zeros.
    """

    def __init__(
        self, buffer: Buffer, sizes: Sequence[int], strides: Sequence[int], box: int | Sequence[int],
        exact: bool = True,
    ) -> None:  # fmt: skip
        super().__init__([buffer, *[0] * (MAP_WORDS - 1)])
        size = buffer.dtype.itemsize
        self.sizes, self.strides, self.exact = tuple(sizes), tuple(strides), exact
        self.box = (WIDTH // size, *((box, 1, 1) if isinstance(box, int) else box))
        assert len(self.sizes) == len(self.box) == 4 and len(self.strides) == 3 and max(self.box) <= 256
        assert all(s * size % 16 == 0 for s in self.strides)

    @property
    def buffer(self) -> Buffer:
        return self.buffers[0]

    @property
    def facts(self) -> list[Any]:
        return [self.buffer, self.sizes, self.strides, self.box, self.exact]

    def packed(self) -> np.ndarray:
        """The 128 bytes that the driver makes of it, as 16 words."""
        d = driver()
        kinds, size = d.CUtensorMapDataType, self.buffer.dtype.itemsize
        kind = {
            bfloat16: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, float16: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            float32: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32 if self.exact else kinds.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
        }[self.buffer.dtype]  # fmt: skip
        status, made = d.cuTensorMapEncodeTiled(
            kind, 4, self.buffer.address,
            [d.cuuint64_t(n) for n in self.sizes],
            [d.cuuint64_t(size * n) for n in self.strides],
            [d.cuuint32_t(n) for n in self.box],
            [d.cuuint32_t(1)] * 4,
            d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            d.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )  # fmt: skip
        if int(status):
            raise RuntimeError(f"cuTensorMapEncodeTiled: {status} for {self.buffer} as {self.sizes}, {self.strides}")
        return np.array([int(w) for w in made.opaque], np.uint64)


@lru_cache(maxsize=KEPT)
def hopper_source(instructions: tuple[str, ...], defines: tuple[tuple[str, str], ...], files: tuple[str, ...]) -> str:
    """prelude, hopper.cuh, wgmma instructions (each once), `#define`s, files."""
    head = "".join(f"#define {key} {value}\n" for key, value in defines)
    prelude, hopper = read_source("record/prelude.cuh"), read_source("tensor_cores/hopper.cuh")
    texts = [prelude, hopper, *dict.fromkeys(instructions), head]
    return "".join([*texts, *map(read_source, files)])


@lru_cache(maxsize=KEPT)
def wgmma(
    n: int, dtype: str, a_in_registers: bool = False, b_by_rows: bool = False, a_by_columns: bool = False,
    steps: int = 1,
) -> str:  # fmt: skip
    """d[64, n] = A[64, steps * k] B[steps * k, n] (+ d where `add`) of a warpgroup, as a function.

    It is called wgmma_ss, wgmma_rs or wgmma_rs_bt, and has as template arguments by how much a descriptor of A and
    one of B grow from step to step.

    dtype           bf16 or f16, k is 16, or tf32, k is 8; summed in float32
    a_in_registers  A is a fragment of 4 registers a thread and step, else a descriptor
    b_by_rows       B's rows run along n in shared memory (values), else along the summed axis (keys); 16 bits only
    a_by_columns    A's columns do, in shared memory; 16 bits only: wgmma_ss_at, wgmma_ss_at_bt
    steps           instructions in one statement: for each the compiler looks at all of d
    """
    count, k = n // 2, 8 if dtype == "tf32" else 16
    listed = ", ".join(f"%{i}" for i in range(count))
    outs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    if a_in_registers:
        name, parameter, used = "wgmma_rs", f"const u32 (&a)[{4 * steps}]", 4 * steps
        fragments = [range(count + 4 * step, count + 4 * step + 4) for step in range(steps)]
        lefts = ["{" + ", ".join(f"%{i}" for i in four) + "}" for four in fragments]
        ins, major = ", ".join(f'"r"(a[{i}])' for i in range(used)), f"{int(b_by_rows)}"
    else:
        name, parameter, used = "wgmma_ss" + "_at" * a_by_columns, "u64 a", 1
        lefts, ins, major = ["a"] * steps, '"l"(a)', f"{int(a_by_columns)}, {int(b_by_rows)}"
    major = "" if dtype == "tf32" else f", {major}"
    b, add, a_step, b_step = (f"%{count + used + i}" for i in range(4))
    name += "_bt" * b_by_rows
    lines = [".reg .pred p;", ".reg .b64 a, b;", ".reg .b32 x, y;", f"setp.ne.b32 p, {add}, 0;", f"mov.b64 b, {b};"]
    lines += [f"mov.b64 a, %{count};"] * (not a_in_registers)
    for step, left in enumerate(lefts):
        if step > 0:
            for r, by in [("a", a_step), ("b", b_step)][a_in_registers:]:
                lines += [f"mov.b64 {{x, y}}, {r};", f"add.u32 x, x, {by};", f"mov.b64 {r}, {{x, y}};"]
        lines += [f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{dtype}.{dtype} {{{listed}}}, {left}, b, "
                  f"{'1' if step else 'p'}, 1, 1{major};"]  # fmt: skip
    text = "".join(f'        "{line}\\n"\n' for line in ["{", *lines, "}"])
    return f"""template <int A_STEP = 0, int B_STEP = 0>
__device__ __forceinline__ void {name}(float (&d)[{count}], {parameter}, u64 b, int add = 1) {{
    asm volatile(
{text}        : {outs} : {ins}, "l"(b), "r"(add), "n"(A_STEP), "n"(B_STEP));
}}
"""
