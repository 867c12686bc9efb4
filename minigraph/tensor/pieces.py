"""Pieces of Variables, their axes in another order, what a shape says, and Variables beside each other."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, ShapeError, call_site, require
from minigraph.errors.kinds import COUNT, RANK, RUN_TIME, UNKNOWN_SIZE
from minigraph.program import Variable, unique_name
from minigraph.program.builder import builder_of, whole
from minigraph.program.known import known, values_of
from minigraph.types import normalize_axes, normalize_axis

from .arguments import emit, ints, output_prefix, variable, variables
from .creation import assign, from_value
from .functions import remainder
from .manipulation import concat, expand, flatten, gather, reshape, squeeze, stack, transpose
from .math import cast, matmul, prod


def slice(input: Variable, axes: Any, starts: Any, ends: Any, name: str | None = None) -> Variable:
    """input[start:end] along each of `axes`; bounds count from the back where negative, and are clamped."""
    return emit("slice", "slice", variable(input, "slice", "input"), axes=axes, starts=starts, ends=ends, name=name)


def strided_slice(x: Variable, axes: Any, starts: Any, ends: Any, strides: Any, name: str | None = None) -> Variable:
    """x[start:end:stride] along each of `axes`; a negative stride runs backwards."""
    x = variable(x, "strided_slice")
    return emit("strided_slice", "slice", x, axes=axes, starts=starts, ends=ends, steps=strides, name=name)


@whole
def crop(x: Variable, shape: Any = None, offsets: Any = None, name: str | None = None) -> Variable:
    """The piece of x of the given shape that begins at `offsets` (0); -1 takes all from there on."""
    x = variable(x, "crop")
    shape, offsets = known(shape), known(offsets)
    sizes, begin = list(shape or x.shape), list(offsets or [0] * x.ndim)
    require(len(sizes) == len(begin) == x.ndim, f"shape {sizes}, offsets {begin} and {x} differ in rank", RANK)
    for axis, (start, size) in enumerate(zip(begin, sizes, strict=True)):
        fits = size == -1 or x.shape[axis] == -1 or 0 <= start <= start + size <= x.shape[axis]
        require(fits, f"axis {axis}: a piece of {size} from {start} on lies outside of {x.shape[axis]}", ShapeError)
    ends = [2**62 if size == -1 else start + size for start, size in zip(begin, sizes, strict=True)]
    return emit("crop", "slice", x, axes=range(x.ndim), starts=begin, ends=ends, name=name)


@whole
def chunk(x: Variable, chunks: int, axis: int = 0, name: str | None = None) -> list[Variable]:
    """x cut along `axis` into so many equal pieces."""
    return emit("chunk", "split", variable(x, "chunk"), num=chunks, axis=axis, name=name)


@whole
def unbind(input: Variable, axis: int = 0) -> list[Variable]:
    """The slices of input along `axis`, without that axis; its size must be known."""
    x = variable(input, "unbind", "input")
    axis = normalize_axis(axis, x.ndim)
    require(x.shape[axis] >= 0, f"axis {axis} of {x} is known only at run time", UNKNOWN_SIZE)
    return [squeeze(piece, axis) for piece in builder_of(x).split(x, num=x.shape[axis], axis=axis)]


def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """As unbind; `num`, where it is given, must be the size of the axis."""
    parts = unbind(x, axis)
    if num is not None and num != len(parts):
        raise COUNT(f"axis {axis} has size {len(parts)}, num is {num}", call="unstack", site=call_site())
    return parts


@whole
def flip(x: Variable, axis: Any, name: str | None = None) -> Variable:
    """x with its elements along `axis`, an int or list, in reverse order."""
    x = variable(x, "flip")
    axes = normalize_axes(tuple(ints(axis) or ()), x.ndim)
    ends, starts, steps = ([n] * len(axes) for n in (-(2**62), 2**62, -1))
    return emit("flip", "slice", x, axes=axes, starts=starts, ends=ends, steps=steps, name=name)


reverse = flip


@whole
def rot90(x: Variable, k: int = 1, axes: Any = (0, 1), name: str | None = None) -> Variable:
    """x turned k times by 90 degrees in the plane of two axes, from the first towards the second."""
    x = variable(x, "rot90")
    require(len(axes) == 2, f"axes must be two, are {list(axes)}", AttrError)
    first, second = normalize_axes(tuple(axes), x.ndim)
    if k % 4 == 0:
        return assign(x)
    if k % 4 == 2:
        return flip(x, [first, second], name=name)
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return transpose(flip(x, second), order, name=name) if k % 4 == 1 else flip(transpose(x, order), second, name=name)


@whole
def roll(x: Variable, shifts: Any, axis: Any = None, name: str | None = None) -> Variable:
    """x with its elements moved on by `shifts` along `axis`, and round its end; x is laid flat for None.

    shifts  also an int Variable, of one number for each axis
    """
    x, shifts = variable(x, "roll"), _shifts(shifts)
    if axis is None:
        total = ints(shifts) or (0,)
        require(len(total) == 1, "without axis there is one shift", AttrError)
        return builder_of(x).reshape_grad(x, roll(flatten(x), total[0], 0), name=output_prefix("roll", name))
    axes, moves = normalize_axes(tuple(ints(axis) or ()), x.ndim), ints(shifts) or ()
    require(len(axes) == len(moves), f"{len(moves)} shifts for {len(axes)} axes", AttrError)
    out = x
    for a, shift in zip(axes, moves, strict=True):
        if isinstance(shift, Variable) or x.shape[a] == -1:
            out = _rolled(out, shift, a)
            continue
        at = -shift % max(x.shape[a], 1)
        if at:
            out = concat([slice(out, [a], [at], [x.shape[a]]), slice(out, [a], [0], [at])], axis=a)
    return builder_of(out).assign(out, name=output_prefix("roll", name))


def _shifts(shifts: Any) -> Any:
    """Numbers where they are known before a run, else a list of 0-d Variables."""
    if not isinstance(shifts, Variable) or values_of(shifts) is not None:
        return known(shifts)
    return [squeeze(part) for part in unbind(flatten(shifts))]


def _rolled(x: Variable, shift: Any, axis: int) -> Variable:
    """x moved on along `axis`, where the size or the shift is known only at run time."""
    g = builder_of(x)
    places, size = g.arange_like(x, axis=axis), squeeze(g.slice(g.shape(x), axes=[0], starts=[axis], ends=[axis + 1]))
    return gather(x, remainder(cast(places, "int64") - shift, cast(size, "int64")), axis)


def t(input: Variable, name: str | None = None) -> Variable:
    """A matrix transposed; vectors and scalars stay as they are."""
    x = variable(input, "t", "input")
    require(x.ndim <= 2, f"{x} has more than 2 axes, use transpose", RANK)
    return transpose(x, list(reversed(range(x.ndim))), name=name)


@whole
def moveaxis(x: Variable, source: Any, destination: Any, name: str | None = None) -> Variable:
    """x with the axes `source` moved to the places `destination`; the others keep their order."""
    x = variable(x, "moveaxis")
    start, end = (normalize_axes(tuple(ints(a) or ()), x.ndim) for a in (source, destination))
    require(len(start) == len(end), f"{len(start)} axes for {len(end)} places", AttrError)
    order = [axis for axis in range(x.ndim) if axis not in start]
    for place, axis in sorted(zip(end, start, strict=True)):
        order.insert(place, axis)
    return transpose(x, order, name=name)


@whole
def unflatten(x: Variable, axis: int, shape: Any, name: str | None = None) -> Variable:
    """x with `axis` cut into axes of the sizes `shape`, one of which may be -1."""
    x = variable(x, "unflatten")
    axis = normalize_axis(axis, x.ndim)
    sizes = [*[0] * axis, *shape, *x.shape[axis + 1 :]]
    return reshape(x, sizes, name=name)


@whole
def broadcast_to(x: Variable, shape: Any, name: str | None = None) -> Variable:
    """x repeated along its axes of size 1 up to `shape`; -1 keeps a size."""
    return expand(variable(x, "broadcast_to"), shape, name=name or unique_name.generate("broadcast_to"))


@whole
def expand_as(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """x repeated along its axes of size 1 up to the shape of y, which may be known only at run time."""
    x, y = variable(x, "expand_as"), variable(y, "expand_as", "y")
    if -1 not in y.shape:
        return emit("expand_as", "expand", x, shape=y.shape, name=name)
    g = builder_of(x)
    return g.where(g.fill_any_like(y, value=1, dtype="bool"), x, x, name=output_prefix("expand_as", name))


@whole
def broadcast_tensors(input: Any, name: str | None = None) -> list[Variable]:
    """The Variables of a list, each repeated up to the shape that they all broadcast to."""
    parts = variables(input, "broadcast_tensors", "input")
    g = builder_of(parts)
    ones = [g.fill_any_like(part, value=1, dtype="bool") for part in parts]
    full = ones[0]
    for one in ones[1:]:
        full = g.logical_and(full, one)
    return [g.where(full, part, part, name=output_prefix("broadcast_tensors", name)) for part in parts]


@whole
def meshgrid(*args: Any, name: str | None = None) -> list[Variable]:
    """Vectors as the coordinates of a grid: entry i varies along axis i alone."""
    parts = variables(args[0] if len(args) == 1 else args, "meshgrid", "args")
    g, n = builder_of(parts), len(parts)
    columns = [g.unsqueeze(reshape(v, [-1]), axes=[a for a in range(n) if a != i]) for i, v in enumerate(parts)]
    return broadcast_tensors(columns, name=name)


def shape(input: Variable, name: str | None = None) -> Variable:
    """The sizes of input in a run, int32 of rank 1; `input.shape` is what is known before."""
    return emit("shape", "shape", variable(input, "shape", "input"), name=name)


@whole
def numel(x: Variable, name: str | None = None) -> Variable:
    """The number of elements of x, a 0-d int64."""
    return prod(cast(shape(variable(x, "numel")), "int64"), name=name)


def rank(input: Variable) -> Variable:
    """The number of axes, a 0-d int32."""
    x = variable(input, "rank", "input")
    return builder_of(x).fill_constant(shape=(), value=x.ndim, dtype="int32")


@whole
def is_empty(x: Variable, name: str | None = None) -> Variable:
    """Whether x has no elements, a 0-d bool."""
    g, count = builder_of(x), numel(x)
    return g.equal(count, g.fill_any_like(count, value=0), name=output_prefix("is_empty", name))


def clone(x: Variable, name: str | None = None) -> Variable:
    """A copy of x through which gradients flow."""
    return emit("clone", "assign", variable(x, "clone"), name=name)


def add_n(inputs: Any, name: str | None = None) -> Variable:
    """The sum of the Variables of a list, of one shape."""
    parts = [inputs] if isinstance(inputs, Variable) else inputs
    return emit("add_n", "sum", variables(parts, "add_n", "inputs"), name=name)


def increment(x: Variable, value: float = 1.0, name: str | None = None) -> Variable:
    """x + value, written into x, which has one element."""
    x = variable(x, "increment")
    require(x.type.size in (1, -1), f"x must have one element, is {x}", COUNT)
    return emit("increment", "increment", x, step=float(value), name=name, out={"Out": x})


def to_tensor(data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True) -> Variable:
    """A Variable that holds `data`: numbers, lists, a small NumPy array or a Variable, cast to `dtype`.

    Lists may hold Variables of one shape beside numbers, which get the type of the first Variable.
    """
    first = next((v for v in data if isinstance(v, Variable)), None) if isinstance(data, (list, tuple)) else None
    if first is not None:
        out = stack([v if isinstance(v, Variable) else to_tensor(v, first.dtype) for v in data])
    else:
        out = assign(data) if isinstance(data, Variable) else from_value(data)
    out = out if dtype is None else cast(out, dtype)
    out.stop_gradient = stop_gradient
    return out


# Products


def mm(input: Variable, mat2: Variable, name: str | None = None) -> Variable:
    """matmul(input, mat2)"""
    return matmul(input, mat2, name=name)


def _of_ranks(call: str, x: Any, y: Any, *ranks: int) -> tuple[Variable, Variable]:
    x, y = variable(x, call), variable(y, call, "y")
    require((x.ndim, y.ndim) == ranks, f"x and y must have ranks {ranks}, are {x} and {y}", RANK)
    return x, y


def bmm(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Products of batches of matrices: [B, M, K] with [B, K, N]."""
    x, y = _of_ranks("bmm", x, y, 3, 3)
    same = x.shape[0] == y.shape[0] or -1 in (x.shape[0], y.shape[0])
    require(same, f"batches differ: x is {x}, y is {y}", ShapeError)
    return matmul(x, y, name=name)


def mv(x: Variable, vec: Variable, name: str | None = None) -> Variable:
    """The matrix x times a vector."""
    return matmul(*_of_ranks("mv", x, vec, 2, 1), name=name)


@whole
def dot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The sum of x * y over the last axis of vectors, or of matrices row by row; x's type stays."""
    x, y = variable(x, "dot"), variable(y, "dot", "y")
    same = x.ndim == y.ndim in (1, 2)
    require(same, f"x and y must be vectors or matrices of one shape, are {x} and {y}", ShapeError)
    out = builder_of(x).reduce_sum(x * y, axis=(-1,))
    return cast(out, x.dtype, name=name)


@whole
def outer(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """x[i] * y[j] of both laid flat."""
    x, y = variable(x, "outer"), variable(y, "outer", "y")
    return builder_of(x).elementwise_mul(reshape(x, [-1, 1]), reshape(y, [1, -1]), name=output_prefix("outer", name))


@whole
def inner(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Sums of products over the last axes of both."""
    x, y = variable(x, "inner"), variable(y, "inner", "y")
    if 0 in (x.ndim, y.ndim):
        return builder_of(x).elementwise_mul(x, y, name=output_prefix("inner", name))
    rows, columns = reshape(x, [-1, x.shape[-1]]), reshape(y, [-1, y.shape[-1]])
    sizes = (*x.shape[:-1], *y.shape[:-1])
    require(sizes.count(-1) <= 1, f"two sizes of {x} and {y} are known only at run time", UNKNOWN_SIZE)
    return reshape(matmul(rows, columns, transpose_y=True), sizes, name=name)


@whole
def addmm(
    input: Variable, x: Variable, y: Variable, beta: float = 1.0, alpha: float = 1.0, name: str | None = None
) -> Variable:  # fmt: skip
    """beta * input + alpha * matmul(x, y)"""
    x, y = _of_ranks("addmm", x, y, 2, 2)
    scaled = variable(input, "addmm", "input") * beta
    return builder_of(x).elementwise_add(matmul(x, y) * alpha, scaled, name=output_prefix("addmm", name))


@whole
def kron(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Every element of x times the whole of y, side by side; sizes must be known."""
    x, y = variable(x, "kron"), variable(y, "kron", "y")
    ndim = max(x.ndim, y.ndim)
    left, right = ((1,) * (ndim - v.ndim) + v.shape for v in (x, y))
    if -1 in left or -1 in right:
        raise RUN_TIME(f"sizes of {x} and {y} must be known", call="kron", site=call_site())
    x = reshape(x, [n for size in left for n in (size, 1)])
    y = reshape(y, [n for size in right for n in (1, size)])
    return reshape(x * y, [a * b for a, b in zip(left, right, strict=True)], name=name)


__all__ = [
    "add_n", "addmm", "bmm", "broadcast_tensors", "broadcast_to", "chunk", "clone", "crop", "dot", "expand_as", "flip",
    "increment", "inner", "is_empty", "kron", "meshgrid", "mm", "moveaxis", "mv", "numel", "outer", "rank", "reverse",
    "roll", "rot90", "shape", "slice", "strided_slice", "t", "to_tensor", "unbind", "unflatten", "unstack",
]  # fmt: skip
