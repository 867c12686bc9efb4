"""A narrow linear layer, what is computed of its rows, and its input's gradient as one launch.

    forward      z = x @ w + bias             matmul/narrow_product.cu: a block has whole rows of z
    fused_rows   y = f(z, ...)                generated; a loss with its gradient: each row by itself
    input_grad   dx = y @ w^T, masked         matmul/narrow_product.cu; w is still in registers where it is short

Alone, each keeps the GPU for a few microseconds in which it mostly waits. A block does all three for its own rows; what
one computes the next one reads from shared memory. Each number comes from the same operations in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from minigraph.kernels.cuda.matmul.narrow_product import Narrow
from minigraph.kernels.cuda.record.binder import Choice, Launch
from minigraph.kernels.cuda.record.buffer import Buffer, Words, owner, root_and_offset
from minigraph.kernels.cuda.record.compile import KEPT, full_source, read_source

Pairs = tuple[tuple[str, Any], ...]
THREADS = 256  # of a block, those of matmul/narrow_product.cu's forward
MACROS = "N", "ALL", "ALL_PACKS", "HAS", "VALID", "PLACE"  # of fused.cuh
KERNEL = """
extern "C" __global__ void __launch_bounds__(%d) head(
    const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* z, i64 count, i64 inner,
    const unsigned char* __restrict__ mask, T* d, T* dx, i64 width,
    %s)
{
    typedef Pack<T, 16 / sizeof(T)> Aligned;
    __shared__ Aligned shared_z[ROWS * N * sizeof(T) / 16 + 1], shared_d[ROWS * N * sizeof(T) / 16 + 1];
    T *const own_z = (T*)shared_z, *const own_d = (T*)shared_d;
    C column[UNROLL][N];
    Bytes bits;
    read_bits(bits, mask, threadIdx.x, count, inner, width);
    forward_rows(x, w, bias, z, count, inner, column, own_z);
    __syncthreads();
    fused_rows(%s);
    __syncthreads();
    input_rows(own_d, d, w, mask, dx, count, inner, width, column, bits);
}
"""


class RowKernel(NamedTuple):
    """The form of a generated kernel on rows without sums over them.

    reads, writes   places among the arguments of what has whole rows; `lanes` threads share a row
    """

    facts: Mapping[str, Any]
    parameters: Sequence[str]
    body: Sequence[str]
    shape: tuple[int, int]
    reads: frozenset[int]
    writes: frozenset[int]
    lanes: int


def single(call: Any) -> Any:
    """The launch that a Choice with one variant of one call is; other calls as they are."""
    while isinstance(call, Choice) and len(call.variants) == 1:
        (calls,) = call.variants.values()
        if len(calls) != 1:
            break
        (call,) = calls
    return call


def is_forward(call: Any) -> bool:
    return isinstance(call, Launch) and isinstance(call.form, Narrow) and call.function == "forward"


def is_input_gradient(call: Any) -> bool:
    return isinstance(call, Launch) and isinstance(call.form, Narrow) and call.function == "input_grad"


def is_on_rows(call: Any) -> bool:
    return isinstance(call, Launch) and isinstance(call.form, RowKernel)


def head(forward: Launch, rows: Launch, gradient: Launch) -> Launch | None:
    """One launch that does what these do; None where they do not fit together."""
    first, second, third = forward.form, rows.form, gradient.form
    count, _, n = first.shape
    scores = [i for i in second.reads if _same(rows.args[i], forward.args[3])]
    slopes = [i for i in second.writes if _same(rows.args[i], gradient.args[0])]
    fits = (
        scores and slopes and second.shape == (count, n) and third.shape == first.shape and second.lanes <= 32
        and _same(gradient.args[1], forward.args[1]) and first.trans_w == third.trans_w
    )  # fmt: skip
    if not fits or not _apart(forward, rows, gradient, {*scores, *second.writes}):
        return None
    d, _, mask, dx, _, _, width, _ = gradient.args
    args = *forward.args, mask, d, dx, width, *rows.args
    generated = tuple(second.parameters), tuple(second.body), tuple(second.facts.items()), second.lanes
    source = _source(tuple(first.defines.items()), generated, tuple(third.defines.items()), (*scores,), (*slopes,), n)
    return Launch(source, "head", forward.grid, (THREADS, 1, 1), args)


@lru_cache(maxsize=KEPT)
def _source(
    first: Pairs, generated: tuple[tuple[str, ...], tuple[str, ...], Pairs, int], third: Pairs,
    scores: tuple[int, ...], slopes: tuple[int, ...], n: int,
) -> str:  # fmt: skip
    """The text: fused_rows as a function, matmul/narrow_product.cu, and the kernel that calls both.

    first, third    the macros of the two kernels for narrow products
    generated       parameters, body, macros and lanes of the kernel on rows, of n elements
    scores, slopes  which of its arguments are what the first one writes and the third one reads
    """
    given, body, macros, lanes = generated
    each, pack = int(dict(first)["ROWS"]), min(dict(first)["G"], dict(third)["G"])
    facts = {
        **dict(macros), "GROUPS": THREADS // lanes, "ROWS_FROM": f"i64(blockIdx.x) * {each}",
        "ROWS_TO": f"min(rows, i64(blockIdx.x + 1) * {each})", "ROWS_STEP": "GROUPS",
    }  # fmt: skip
    defines = {**dict(first), "MASK": dict(third)["MASK"], "G": pack, "JOINED": 1}
    parameters = ",\n    ".join(text.replace("__restrict__ ", "") for text in given)
    names = [parameter.rsplit(None, 1)[-1].lstrip("*") for parameter in given]
    for places, where in ((scores, "z"), (slopes, "d")):
        for i in places:
            names[i] = f"own_{where} - i64(blockIdx.x) * {each * n}"  # as if the rows before lay there, too
    lines = "\n    ".join(body)
    return "".join([
        full_source("record/philox.cuh", [(key, str(value)) for key, value in facts.items()]),
        read_source("fused/fused.cuh"),
        f"\nstatic __device__ __forceinline__ void fused_rows(\n    {parameters})\n{{\n    {lines}\n}}\n",
        *(f"#undef {name}\n" for name in (*facts, *MACROS)),
        *(f"#define {key} {value}\n" for key, value in defines.items()), read_source("matmul/narrow_product.cu"),
        KERNEL % (THREADS, parameters, ", ".join(names)),
    ])  # fmt: skip


def _same(a: Any, b: Any) -> bool:
    """Whether both are one array, whatever its shape."""
    if not (isinstance(a, Buffer) and isinstance(b, Buffer)) or a.steps is not None or b.steps is not None:
        return False
    (root, offset), (other, begin) = root_and_offset(a), root_and_offset(b)
    return root is other and (a.size, a.dtype, offset) == (b.size, b.dtype, begin)


def _apart(forward: Launch, rows: Launch, gradient: Launch, own: set[int]) -> bool:
    """Whether no block writes what another one reads; `own`: arguments of `rows` of which a block takes its rows."""
    z, dx = forward.args[3], gradient.args[3]
    others = [a for i, a in enumerate(rows.args) if i not in own]
    assert not any(isinstance(a, Words) for a in others)
    read = {id(owner(b)) for b in (*forward.args[:3], *gradient.args[1:3], *others) if isinstance(b, Buffer)}
    written = [id(owner(b)) for b in (z, *(rows.args[i] for i in own))]
    return id(owner(dx)) not in {*read, *written} and read.isdisjoint(written)


def heads(calls: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
    """Numbers of a forward, a kernel on rows and an input gradient that may be one launch: those next to each other."""
    forward, rows = -1, -1
    for i, call in enumerate(calls):
        call = single(call)
        if getattr(call, "form", None) is None:
            continue
        if is_forward(call):
            forward, rows = i, -1
        elif is_on_rows(call) and forward >= 0:
            rows = i
        elif is_input_gradient(call) and rows >= 0:
            yield forward, rows, i
            forward = rows = -1
