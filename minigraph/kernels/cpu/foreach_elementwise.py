"""foreach_elementwise on a CPU: blocks of the tensors go through all members while they lie in the cache.

Tensors are seen as flat arrays, so one Recipe serves all of their shapes. A block is a part of a large tensor, or holds
copies of many small ones: to call NumPy for each costs more. Results are bit by bit what the members give one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from minigraph.kernels.parallel import for_each
from minigraph.opdef import Arrays, Texts
from minigraph.opdef.body import fused_body
from minigraph.opdef.reference import computed
from minigraph.types import TensorType

from .fused_blocks import CACHED_BYTES, SMALLEST, Recipe, evaluate

BLOCK = 131072  # elements of a block, at the most
SMALL = 16384  # elements of a tensor from which on it is not copied


class Stretch(NamedTuple):
    """Elements of one tensor."""

    tensor: int
    start: int
    stop: int


class ListRecipe(NamedTuple):
    """What is known of a body once the data types of its inputs are.

    block    elements of a block
    behind   outputs that may lie where an input does that is read after they are computed: they are copied at the end
    """

    recipe: Recipe
    block: int
    behind: frozenset[str]


@lru_cache(maxsize=256)
def list_recipe(body: tuple[str, ...], dtypes: tuple[np.dtype, ...], ones: tuple[bool, ...]) -> ListRecipe:
    """The ListRecipe for inputs of these types; `ones` tells which have one element for a whole tensor."""
    x = tuple(TensorType((1,) if one else (BLOCK,), dtype) for dtype, one in zip(dtypes, ones, strict=True))
    recipe = Recipe(fused_body(body, x, (), lifted=True))
    streams = len(recipe.arrays) + len(recipe.fused.outputs) + ones.count(False)
    widest = max(t.dtype.itemsize for t in recipe.fused.types.values())
    block = min(BLOCK, max(CACHED_BYTES // (widest * streams), SMALLEST))
    return ListRecipe(recipe, block, frozenset(_read_behind(recipe)))


def _read_behind(recipe: Recipe) -> list[str]:
    """Outputs y_j whose memory may be that of x_j, and which are written while x_j is still needed."""
    found = []
    for name in recipe.fused.outputs:
        partner = f"x{name[1:]}"
        at = next(i for i, m in enumerate(recipe.fused.members) if name in m.written)
        writer = recipe.fused.members[at]
        slot = next(slot for slot, names in writer.outputs.items() if name in names)
        over = writer.inputs.get(writer.opdef.inplace.get(slot, ""), [])
        fine = partner not in writer.read or (over == [partner] and writer.read.count(partner) == 1)
        if not fine or any(partner in m.read for m in recipe.fused.members[at + 1 :]):
            found.append(name)
    return found


def on_lists(
    X: Arrays, Shared: Arrays | None = None, *, body: Texts, count: int, out: Sequence[Any] | None = None
) -> list[np.ndarray]:
    """The outputs of all tensors, computed block by block on all cores."""
    shared = [computed(s).reshape(1) for s in Shared or ()]
    shapes = [np.broadcast_shapes(*(x.shape for x in X[i::count])) for i in range(count)]
    sizes = [math.prod(shape) for shape in shapes]
    columns = [[computed(x).reshape(-1) for x in X[at : at + count]] for at in range(0, len(X), count)]
    ones = [any(x.size != n for x, n in zip(column, sizes, strict=True)) for column in columns]
    dtypes = tuple(a.dtype for a in (*(column[0] for column in columns), *shared))
    known = list_recipe(tuple(body), dtypes, (*ones, *(True for _ in shared)))
    names = known.recipe.fused.outputs
    planned = out[0] if out and isinstance(out[0], list) else [None] * (len(names) * count)
    results = [
        given if given is not None and given.flags.c_contiguous
        else np.empty(shapes[k % count], known.recipe.fused.types[names[k // count]].dtype)
        for k, given in enumerate(planned)
    ]  # fmt: skip
    targets = [result.reshape(-1) for result in results]
    units = parts_of(tuple(sizes), known.block)
    inputs = [(f"x{j}", column, one) for j, (column, one) in enumerate(zip(columns, ones, strict=True))]
    fixed = {f"x{len(columns) + j}": s for j, s in enumerate(shared)}

    def run(unit: list[Stretch]) -> None:
        cuts = [(part.tensor, slice(part.start, part.stop)) for part in unit]
        env = {name: _joined([c[i] if one else c[i][cut] for i, cut in cuts], unit, one) for name, c, one in inputs}
        _block(known, env | fixed, [
            (name, [targets[k * count + i][cut] for i, cut in cuts]) for k, name in enumerate(names)
        ])  # fmt: skip

    for_each(units, run)
    for given, result in zip(planned, results, strict=True):
        if given is not None and given is not result:
            np.copyto(given, result)
    return [result if given is None else given for given, result in zip(planned, results, strict=True)]


def _joined(arrays: list[np.ndarray], unit: list[Stretch], one: bool) -> np.ndarray:
    """The values of a unit in one array."""
    if len(unit) == 1:
        return arrays[0]
    joined = np.concatenate(arrays)
    return np.repeat(joined, [part.stop - part.start for part in unit]) if one else joined


def _block(known: ListRecipe, env: dict[str, np.ndarray], targets: list[tuple[str, list[np.ndarray]]]) -> None:
    """Run all members on the values of a unit, and bring the results to the tensors."""
    size = sum(map(len, targets[0][1]))
    given = {name: a[:size] for name, a in known.recipe.memory((known.block,)).items()}
    for name, parts in targets:
        direct = len(parts) == 1 and name not in known.behind
        given[name] = parts[0] if direct else np.empty(size, parts[0].dtype)
    for call in known.recipe.calls:
        evaluate(call, env, given, (0, 0, 0, 0))
    for name, parts in targets:
        result, at = env[name], 0
        for to in parts:
            if result is not to:
                np.copyto(to, result[at : at + len(to)])
            at += len(to)


@lru_cache(maxsize=64)
def parts_of(sizes: tuple[int, ...], block: int) -> list[list[Stretch]]:
    """Units of work: a block of a large tensor, or small tensors that together are one."""
    units: list[list[Stretch]] = []
    small: list[Stretch] = []
    filled = 0
    for i, size in enumerate(sizes):
        if 0 < size < min(SMALL, block):
            if filled + size > block:
                units.append(small)
                small, filled = [], 0
            small.append(Stretch(i, 0, size))
            filled += size
        else:
            units += [[Stretch(i, start, min(start + block, size))] for start in range(0, size, block)]
    return [*units, small] if small else units
