"""fused_elementwise on a CPU: blocks of the values go through all members while they lie in the cache.

A block is some rows, or some indices of one axis below fixed indices of the axes before it, so it lies in one piece.
What members hand on lies in few arrays of a block's size, which each thread keeps. Results are bit by bit what the
members give one by one; sums over rows are added block by block.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import KernelError
from minigraph.kernels.parallel import for_blocks
from minigraph.opdef import Arrays, Texts, get_op
from minigraph.opdef.body import WHOLE, BodyLayout, FusedBody, Member, fused_body
from minigraph.opdef.reference import computed, reference_keywords
from minigraph.types import TensorType, bfloat16, float16, float32

CACHED_BYTES = 1 << 20  # what the values of a block take that live at once: half of a core's second cache
LOW_PRECISION = (float16, bfloat16)
SMALLEST = 16384  # elements of a block; below, calling NumPy costs more than the cache saves

Env = dict[str, np.ndarray]


class MemberCall(NamedTuple):
    """A member, ready to be called.

    args     names of its operands; a tuple of them where a slot is a list
    outputs  (position among the results, name)
    out      the name whose array each result is written into, None for those that the kernel makes
    rounds   a cast to 16 bits, which are computed with as float32
    """

    reference: Callable[..., Any]
    args: list[Any]
    keywords: dict[str, Any]
    outputs: list[tuple[int, str]]
    out: list[str | None] | None
    number: int | None
    rounds: bool


class BodyBlock(NamedTuple):
    """What a block takes of each of the first axes; `first` is its first element, `shape` that of its whole values."""

    cuts: tuple[slice, ...]
    first: int
    shape: tuple[int, ...]


class Recipe:
    """What is known of a body once the types of its inputs are.

    scratch  {name of a value inside: the number of the array that it lies in}
    blocks   none where cutting is not worth it
    """

    def __init__(self, fused: FusedBody) -> None:
        assert isinstance(fused.layout, BodyLayout)
        self.fused, self.layout = fused, fused.layout
        self.scratch = scratch_of(fused)
        self.calls = [_call(m, {*fused.outputs, *self.scratch}, self.layout) for m in fused.members]
        self.arrays = {number: fused.types[name].dtype for name, number in self.scratch.items()}
        self.blocks = blocks_of(fused, len(self.arrays))
        self.local = threading.local()

    def memory(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """This thread's arrays for the values inside a block of this shape."""
        kept: dict[tuple[int, ...], dict[str, np.ndarray]] = self.local.__dict__.setdefault("kept", {})
        if shape not in kept:  # the last block is smaller: it takes the beginning of the same memory
            whole = next(iter(kept.values()), None)
            size = math.prod(shape)
            if whole is not None and all(a.size >= size for a in whole.values()):
                kept[shape] = {name: a.reshape(-1)[:size].reshape(shape) for name, a in whole.items()}
            else:
                kept.clear()
                arrays = {number: np.empty(shape, dtype) for number, dtype in self.arrays.items()}
                kept[shape] = {name: arrays[number] for name, number in self.scratch.items()}
        return kept[shape]


@lru_cache(maxsize=256)
def recipe(body: tuple[str, ...], x: tuple[TensorType, ...], like: tuple[TensorType, ...]) -> Recipe | None:
    """The Recipe for inputs of these types; None where the values have no layout in common."""
    fused = fused_body(body, x, like, lifted=True)
    return Recipe(fused) if isinstance(fused.layout, BodyLayout) else None


def in_blocks(X: Arrays, Like: Arrays | None = None, *, body: Texts, rng=(0, 0, 0), out=None) -> list[np.ndarray]:
    """The outputs, computed block by block on all cores; as a whole where that is not worth it."""
    known = recipe(tuple(body), tuple(map(_type, X)), tuple(map(_type, Like or ())))
    if known is None or len(known.blocks) < 2:
        return get_op("fused_elementwise").reference(X, Like, body=body, rng=rng)
    fused, layout, blocks = known.fused, known.layout, known.blocks
    planned = out[0] if out and out[0] is not None else [None] * len(fused.outputs)
    results: Env = {}
    sums: dict[str, list[Any]] = {name: [None] * len(blocks) for name in fused.outputs if layout.kinds[name] == "sum"}
    for name, given in zip(fused.outputs, planned, strict=True):
        t = fused.types[name]
        results[name] = given if given is not None else np.empty(t.shape, t.dtype)
    env = {f"x{i}": computed(x) for i, x in enumerate(X)} | {f"s{i}": s for i, s in enumerate(Like or ())}
    read = [(name, _cut(layout, name, array)) for name, array in env.items()]
    written = [(name, _cut(layout, name, array)) for name, array in results.items() if name not in sums]

    def run(start: int, stop: int) -> None:
        for i in range(start, stop):
            block = blocks[i]
            part = {name: view(block) for name, view in read}
            given = known.memory(block.shape) | {name: view(block) for name, view in written}
            for call in known.calls:
                evaluate(call, part, given, (*rng[:3], block.first))
            for name, parts in sums.items():
                parts[i] = part[name]
            for name, _ in written:
                if part[name] is not given[name]:
                    np.copyto(given[name], part[name])

    try:
        for_blocks(len(blocks), 1, run)
    except KernelError:  # it counts rows from the block's first one
        get_op("fused_elementwise").reference(X, Like, body=body, rng=rng)
        raise
    for name, parts in sums.items():
        np.copyto(results[name], np.sum(parts, axis=0))
    return [results[name] for name in fused.outputs]


def may_overwrite(
    X: Sequence[TensorType], Like: Sequence[TensorType] | None = None, *, body: Texts
) -> list[list[int]]:
    """For each output the inputs, by their number in X, in whose memory `in_blocks` may write it."""
    return _may_overwrite(tuple(body), tuple(X), tuple(Like or ()))


in_blocks.may_overwrite = may_overwrite  # type: ignore[attr-defined]


@lru_cache(maxsize=256)
def _may_overwrite(
    body: tuple[str, ...], x: tuple[TensorType, ...], like: tuple[TensorType, ...]
) -> list[list[int]]:
    known = recipe(body, x, like)
    if known is None:
        return []
    types, shape, calls = known.fused.types, known.layout.shape, zip(known.fused.members, known.calls, strict=True)
    fits = [
        n for n in (f"x{i}" for i in range(len(x)))
        if types[n].is_float and types[n].shape == shape and known.layout.kinds.get(n) == WHOLE
        and not _reported(known.fused, n)
    ]  # fmt: skip
    found: dict[str, list[int]] = {}
    for at, (m, call) in enumerate(calls):
        later = {n for other in known.fused.members[at + 1 :] for n in other.read}
        for name in m.written:
            direct = call.out is not None and name in call.out
            over = [n for n in fits if n not in later and (not direct or _reads_first(m, name, n))]
            found[name] = [int(n[1:]) for n in over if types[n] == types[name] and known.layout.kinds[name] == WHOLE]
    return [found[name] for name in known.fused.outputs]


def _reads_first(m: Member, name: str, x: str) -> bool:
    """Whether a member that writes this output is done with x by then, element by element."""
    return x not in m.read or (_overwritten(m, name) == x and m.read.count(x) == 1)


def _reported(fused: FusedBody, x: str) -> bool:
    """Whether integers that a member reports depend on x: after an error they are looked at once more."""
    reached = {x}
    for m in fused.members:
        if not reached.isdisjoint(m.read):
            reached.update(m.written)
            if "reports" in m.opdef.traits and any(n in reached and not fused.types[n].is_float for n in m.read):
                return True
    return False


def evaluate(call: MemberCall, part: Env, given: Mapping[str, np.ndarray], rng: tuple[int, ...]) -> None:
    """Call a member on its operands in `part`, and put its results there."""
    args = [[part[n] for n in a] if type(a) is tuple else part[a] if a else None for a in call.args]
    keywords = call.keywords
    if call.out is not None:
        keywords = {**keywords, "out": tuple(given[name] if name else None for name in call.out)}
    if call.number is not None:
        keywords = {**keywords, "rng": (rng[0], call.number, *rng[2:])}
    results = call.reference(*args, **keywords)
    if type(results) is not tuple:
        results = (results,)
    for position, name in call.outputs:
        result = results[position]
        part[name] = result.astype(float32) if call.rounds else np.asarray(result)


def _call(m: Member, given: set[str], layout: BodyLayout) -> MemberCall:
    """A member as a call; it writes into the arrays of `given` names where it can."""
    opdef, injected = m.opdef, m.opdef.injected_by_reference
    args: list[Any] = [
        tuple(m.inputs.get(s.name, ())) if s.variadic else next(iter(m.inputs.get(s.name, ())), None)
        for s in opdef.inputs
    ]
    names = [next(iter(m.outputs.get(slot, ())), None) for slot in opdef.output_names]
    out = [n if n in given and n is not None and layout.kinds[n] != "sum" else None for n in names]
    rounds = _rounds(m)  # its value is float32 here: written there directly it would not be rounded
    return MemberCall(
        opdef.reference, args, reference_keywords(opdef, m.attrs, m.outputs),
        [(i, n) for i, n in enumerate(names) if n],
        out if "out" in injected and any(out) and not rounds else None, m.number if "rng" in injected else None,
        rounds,
    )  # fmt: skip


def _rounds(m: Member) -> bool:
    """Whether a member gives 16-bit floats."""
    return m.attrs.get("dtype") in LOW_PRECISION


def scratch_of(fused: FusedBody) -> dict[str, int]:
    """Arrays for whole values inside that their kernel can write into, shared where lives do not overlap."""
    assert isinstance(fused.layout, BodyLayout)
    shape, members = fused.layout.shape, fused.members
    last = {name: i for i, m in enumerate(members) for name in m.read}
    chosen: dict[str, int] = {}
    taken: dict[str, int] = {}  # names whose arrays went on to another
    free: list[tuple[int, np.dtype]] = []
    count = 0
    for i, m in enumerate(members):
        if "out" in m.opdef.injected_by_reference and not _rounds(m):
            for name in m.written:
                dtype = fused.types[name].dtype
                if name in fused.outputs or fused.types[name].shape != shape or dtype in LOW_PRECISION:
                    continue
                over = _overwritten(m, name)
                if over in chosen and last[over] == i and fused.types[over].dtype == dtype and m.read.count(over) == 1:
                    chosen[name] = chosen.pop(over)
                    taken[over] = chosen[name]
                    continue
                fitting = next((f for f in free if f[1] == dtype), None)
                if fitting is not None:
                    free.remove(fitting)
                else:
                    count += 1
                chosen[name] = fitting[0] if fitting is not None else count - 1
        dead = {n for n in (*m.read, *m.written) if n in chosen and last.get(n, i) == i}
        free += [(chosen[n], fused.types[n].dtype) for n in sorted(dead)]
    return chosen | taken


def _overwritten(m: Member, name: str) -> str | None:
    """The input whose array this output of a member may take over."""
    slot = next(slot for slot, names in m.outputs.items() if name in names)
    return next(iter(m.inputs.get(m.opdef.inplace.get(slot, ""), ())), None)


def blocks_of(fused: FusedBody, scratch: int) -> list[BodyBlock]:
    """The blocks into which a body's shape is cut; none where that is not worth it."""
    layout = fused.layout
    assert isinstance(layout, BodyLayout)
    shape, size = layout.shape, math.prod(layout.shape)
    widest = max(t.dtype.itemsize for t in fused.types.values())
    streams = sum(t.shape == shape for name, t in fused.types.items() if name[0] == "x" or name in fused.outputs)
    wanted = max(CACHED_BYTES // (widest * max(1, scratch + streams)), SMALLEST)
    if size < 2 * wanted:
        return []
    last = len(shape) if layout.row is None else layout.row
    inner = size
    for axis in range(last):
        inner //= shape[axis]  # elements below one index of this axis
        if inner <= wanted or axis == last - 1:
            step = max(1, wanted // inner)
            spans = range(0, shape[axis], step)
            outer = itertools.product(*(range(n) for n in shape[:axis]))
            return [
                _block(shape, index, start, min(start + step, shape[axis]), (i * shape[axis] + start) * inner)
                for i, index in enumerate(outer) for start in spans
            ]  # fmt: skip
    return []


def _block(shape: tuple[int, ...], index: tuple[int, ...], start: int, stop: int, first: int) -> BodyBlock:
    """[start, stop) of the axis after those that have an index."""
    cuts = (*(slice(i, i + 1) for i in index), slice(start, stop))
    return BodyBlock(cuts, first, (1,) * len(index) + (stop - start, *shape[len(cuts) :]))


def _cut(layout: BodyLayout, name: str, array: np.ndarray) -> Callable[[BodyBlock], np.ndarray]:
    """What gives a block's part of a value, as a view with as many axes."""
    kind = layout.kinds.get(name, "column")  # one that no member reads
    if kind in ("column", "sum"):
        return lambda block: array
    if kind == "whole" and array.shape == layout.shape:
        return lambda block: array[block.cuts]
    if kind == "whole":
        return partial(_whole_part, array, len(layout.shape) - array.ndim)
    assert layout.row is not None
    by_row, ndim = array.reshape(layout.shape[: layout.row]), array.ndim
    flat, ones = ndim == 1, (1,) * max(0, ndim - layout.row)

    def part(block: BodyBlock) -> np.ndarray:
        whole = _whole_part(by_row, 0, block)
        return whole.reshape(-1) if flat else whole.reshape(whole.shape + ones)

    return part


def _whole_part(array: np.ndarray, missing: int, block: BodyBlock) -> np.ndarray:
    """The part of an array that broadcasts; `missing` axes stand before its own."""
    own = [c if array.shape[a] != 1 else slice(None) for a, c in enumerate(block.cuts[missing:])]
    return array[(*own, ...)]


def _type(x: np.ndarray) -> TensorType:
    return TensorType(x.shape, x.dtype)
