"""A body of elementwise operators on each tensor of lists: `fuse_foreach` makes it.

    v_i = v_i * 0.9 + g_i;  p_i = p_i - v_i * rate        for every i, in one call

Its body says what happens to one tensor, see minigraph/opdef/body.py. On a CPU blocks of the tensors go through all
members while they lie in the cache. On a GPU the body becomes one kernel, which finds its tensors as parameter updates
do (kernels/cuda/record/tensors.py). Updates of parameters that a user writes come here, and what `mg.foreach` builds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import require
from minigraph.errors.kinds import COUNT, MIXED_TYPES
from minigraph.opdef import Arrays, Texts, op
from minigraph.opdef.body import Member, infer_body, is_pointwise, output_names, parse_body
from minigraph.types import TensorType, broadcast_shapes

from .fused_elementwise import run_members


@op("Out*", traits={"guarded", "in_place"}, inplace={"Out": "X"},
    cpu="minigraph.kernels.cpu.foreach_elementwise:on_lists", gpu="fused.foreach")  # fmt: skip
def foreach_elementwise(X: Arrays, Shared: Arrays = None, *, body: Texts, count: int, rng=(0, 0, 0), lifted=False):  # type: ignore[assignment]
    """The operators of `body` on each of `count` tensors; Out lists y0 of every tensor, then y1 of every one, ...

    X       x0 of every tensor, then x1 of every one, ...: of the tensors' shapes, or each with one element
    Shared  values of one element that all tensors read, by the names that follow those of X
    body    lines such as "y0 = scale(X=x0) {scale=0.5}"; its operators work element by element
    """
    members, columns = parse_body(tuple(body)), []
    for i in range(count):
        env = {f"x{j}": x for j, x in enumerate([*X[i::count], *(Shared or ())])}
        run_members(members, env, rng, lifted)
        columns.append([env[name] for name in output_names(members)])
    return [array for column in zip(*columns, strict=True) for array in column]


@foreach_elementwise.infer
def _(X, Shared, *, body, count):
    members, shared = parse_body(tuple(body)), tuple(Shared or ())
    require(count > 0 and len(X) % count == 0, f"X lists {len(X)} arrays, no multiple of count={count}", COUNT)
    for s in shared:
        require(s.size in (1, -1), f"Shared must hold arrays of one element, holds {s}")
    for m in members:
        plain = is_pointwise(m.opdef) and "random" not in m.opdef.traits
        require(plain, f"{m.opdef.type} does not work element by element")
    known: dict[Any, list[TensorType]] = {}  # tensors of one shape need one look
    rows = []
    for i in range(count):
        types = (*X[i::count], *shared)
        if types not in known:
            known[types] = _infer_tensor(members, types)
        rows.append(known[types])
    for i, row in enumerate(rows):
        same = [(t.dtype, first.dtype) for t, first in zip((*X[i::count], *row), (*X[::count], *rows[0]), strict=True)]
        require(all(a == b for a, b in same), f"tensor {i} has other data types than tensor 0", MIXED_TYPES,
                "one operator for each data type")  # fmt: skip
    for k in range(len(X) // count):  # kernels read a list in one way
        pairs = list(zip(X[k * count : (k + 1) * count], (row[0].shape for row in rows), strict=True))
        alike = all(x.shape == shape or x.size == -1 for x, shape in pairs) or all(x.size in (1, -1) for x, _ in pairs)
        require(alike, f"x{k} has one element for some tensors, and more for others", hint="expand those of one")
    return ([t for column in zip(*rows, strict=True) for t in column],)


def _infer_tensor(members: tuple[Member, ...], x: tuple[TensorType, ...]) -> list[TensorType]:
    """The outputs for one tensor, all of its shape."""
    types = infer_body(members, x)
    shape = broadcast_shapes(*(t.shape for t in types.values()))
    for name, t in types.items():
        whole = t.shape == shape or (name[0] == "x" and t.size in (1, -1))
        require(whole, f"{name} is {t} beside {list(shape)}: a tensor's values have its shape or one element")
    return [types[name] for name in output_names(members)]


@foreach_elementwise.samples
def _(rng):
    def tensors(*shapes: tuple[int, ...]) -> list[np.ndarray]:
        return [rng.normal(size=s) for s in shapes]

    shapes = (4, 3), (1,), (0, 3), (70, 31), (5,)
    momentum = ["t0 = scale(X=x0) {scale=0.9}", "y0 = elementwise_add(X=t0, Y=x2)",
                "t1 = elementwise_mul(X=y0, Y=x3)", "y1 = elementwise_sub(X=x1, Y=t1)"]  # fmt: skip
    lists = [*tensors(*shapes), *tensors(*shapes), *tensors(*shapes)]
    yield (lists, [np.array([0.1])]), {"body": momentum, "count": 5}
    yield ([*tensors(*shapes), *tensors(*[(1,)] * 5)],), {
        "body": ["t0 = square(X=x0)", "y0 = elementwise_mul(X=t0, Y=x1)", "y1 = sum(X=[x0, t0, y0])"], "count": 5,
    }  # fmt: skip
    yield (tensors((2, 3), (4,)),), {"body": ["y0 = fill_any_like(X=x0) {value=0.0}"], "count": 2}
