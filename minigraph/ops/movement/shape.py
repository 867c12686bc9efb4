"""Operators that give an array another shape or another order of axes, or repeat it."""

from __future__ import annotations

import math

import numpy as np

from minigraph.errors import require
from minigraph.errors.kinds import AXIS, COUNT, NO_SHAPE, RANK, UNKNOWN_SIZE
from minigraph.kernels.cuda.record.views import transposed, turned_back, whole
from minigraph.opdef import Ints, op
from minigraph.ops.elementwise.elementwise import destination, handed_on
from minigraph.types import normalize_axes, normalize_axis, normalize_shape


def reshaped(sizes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that `shape` asks for: 0 copies the size at its place, one -1 takes what is left.

    A result of -1 is known only at run time. Copied sizes cancel on both sides, so (0, -1) is
    decided for empty arrays and for unknown sizes too.
    """
    require(shape.count(-1) <= 1, f"shape {list(shape)} has more than one -1", NO_SHAPE)
    require(min(shape, default=0) >= -1, f"shape {list(shape)} has a negative size", NO_SHAPE)
    copied = [axis for axis, size in enumerate(shape) if size == 0]
    last = max(copied, default=-1)
    require(last < len(sizes), f"shape {list(shape)} copies the size of axis {last}, X has rank {len(sizes)}")
    rest = [size for axis, size in enumerate(sizes) if axis not in copied]
    known, asked = math.prod(s for s in rest if s >= 0), math.prod(s for s in shape if s > 0)
    unknown = -1 in rest and known != 0  # then the sizes not copied make a multiple of `known`
    if -1 in shape:
        fits, left = unknown or known % asked == 0, -1 if unknown else known // asked
    else:
        fits, left = asked % known == 0 if unknown else asked == known, 0
    require(
        fits,
        f"X {list(sizes)} has {'a multiple of ' * unknown}{known} elements{' besides the copied sizes' * bool(copied)},"
        f" shape {list(shape)} asks for {'a multiple of ' * (-1 in shape)}{asked}", COUNT,
    )
    return tuple(sizes[axis] if s == 0 else left if s == -1 else s for axis, s in enumerate(shape))


@op(shows=whole)
def reshape(X, *, shape: Ints):
    """X with its elements, in row-major order, in another shape.

    0 in `shape` copies X's size at that place, one -1 takes what is left. As in Paddle and ONNX, and
    unlike NumPy, a 0 is never a size of its own: an empty array is reshaped by copying or by -1.
    """
    return X.reshape(reshaped(X.shape, shape))


@reshape.infer
def _(X, *, shape):
    return X.with_shape(reshaped(X.shape, shape))


@reshape.samples
def _(rng):
    yield (rng.normal(size=(4, 6)),), {"shape": (3, 8)}
    yield (rng.normal(size=(2, 3, 4)),), {"shape": (0, -1)}
    yield (rng.normal(size=(2, 3, 4)),), {"shape": (-1,)}
    yield (rng.normal(size=(1, 1)),), {"shape": ()}
    yield (rng.normal(size=()),), {"shape": (1, -1)}
    yield (rng.normal(size=(0, 3)),), {"shape": (0, -1)}
    yield (rng.normal(size=(3, 0)),), {"shape": (-1, 3)}


@op("X_grad", of=reshape, no_need_buffer={"X"}, shows=whole)
def reshape_grad(X, Out_grad):
    """Out_grad in the shape of X: the gradient of reshape, squeeze, unsqueeze and flatten."""
    return Out_grad.reshape(X.shape)


@reshape_grad.infer
def _(X, Out_grad):
    sizes = X.is_static and Out_grad.is_static
    require(not sizes or X.size == Out_grad.size, f"X is {X}, Out_grad is {Out_grad}")
    return X


@reshape_grad.grad
def _(g, Out_grad, X_grad_grad):
    return None, g.reshape_grad(Out_grad, X_grad_grad)


@op(shows=transposed, joins=turned_back)
def transpose(X, *, perm: Ints):
    """X with its axes in the order `perm`: axis i of Out is axis perm[i] of X; a view."""
    return np.transpose(X, perm)


@transpose.infer
def _(X, *, perm):
    require(len(perm) == X.ndim, f"perm {list(perm)} has {len(perm)} axes, X has rank {X.ndim}", COUNT)
    return X.with_shape(X.shape[axis] for axis in normalize_axes(perm, X.ndim))


@transpose.grad
def _(g, Out_grad, *, perm):
    order = normalize_axes(perm, len(perm))
    return g.transpose(Out_grad, perm=[order.index(axis) for axis in range(len(order))])


@transpose.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {"perm": (1, 0)}
    yield (rng.normal(size=(2, 3, 4)),), {"perm": (1, 2, 0)}
    yield (rng.normal(size=(2, 1, 3, 4)),), {"perm": (0, -2, 1, -1)}
    yield (rng.normal(size=()),), {"perm": ()}
    yield (rng.normal(size=(0, 3)),), {"perm": (1, 0)}


@op(shows=whole)
def squeeze(X, *, axes: Ints | None = None):
    """X without the axes `axes`, all of size 1; None drops every axis of size 1.

    An axis of another size is an error, as in NumPy and ONNX; Paddle would keep it silently. None
    needs all sizes known, since the rank depends on them.
    """
    return np.squeeze(X, axes)


@squeeze.infer
def _(X, *, axes):
    if axes is None:
        require(
            X.is_static, f"which axes of X have size 1 is known only at run time, X is {X}", UNKNOWN_SIZE,
            hint="name the axes to drop: squeeze(x, axis=...)",
        )  # fmt: skip
        return X.with_shape(s for s in X.shape if s != 1)
    dropped = normalize_axes(axes, X.ndim)
    for axis in dropped:
        require(X.shape[axis] in (1, -1), f"X axis {axis} has size {X.shape[axis]}, only 1 can be dropped")
    return X.with_shape(s for axis, s in enumerate(X.shape) if axis not in dropped)


@squeeze.samples
def _(rng):
    yield (rng.normal(size=(1, 4, 1)),), {}
    yield (rng.normal(size=(1, 4, 1)),), {"axes": (-1,)}
    yield (rng.normal(size=(1, 4, 1)),), {"axes": (0, 2)}
    yield (rng.normal(size=(1, 0)),), {"axes": (0,)}
    yield (rng.normal(size=()),), {}


def unsqueezed(sizes: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """`sizes` with a 1 at each of `axes`, which count in the result."""
    ndim = len(sizes) + len(axes)
    new = normalize_axes(axes, ndim)
    rest = iter(sizes)
    return tuple(1 if axis in new else next(rest) for axis in range(ndim))


@op(shows=whole)
def unsqueeze(X, *, axes: Ints):
    """X with axes of size 1 inserted; `axes` are their places in the result, as in NumPy and ONNX."""
    return X.reshape(unsqueezed(X.shape, axes))


@unsqueeze.infer
def _(X, *, axes):
    return X.with_shape(unsqueezed(X.shape, axes))


@unsqueeze.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {"axes": (1,)}
    yield (rng.normal(size=(4, 3)),), {"axes": (0, -1)}
    yield (rng.normal(size=()),), {"axes": (0,)}
    yield (rng.normal(size=(0,)),), {"axes": (-1,)}


def flattened(sizes: tuple[int, ...], start_axis: int, stop_axis: int) -> tuple[int, ...]:
    """`sizes` with those from start_axis to stop_axis multiplied into one."""
    if not sizes:
        return (1,)
    start = normalize_axis(start_axis, len(sizes), "start_axis")
    stop = normalize_axis(stop_axis, len(sizes), "stop_axis")
    require(start <= stop, f"start_axis {start_axis} lies behind stop_axis {stop_axis}", AXIS)
    inner = sizes[start : stop + 1]
    whole = -1 if -1 in inner and 0 not in inner else math.prod(inner)
    return (*sizes[:start], whole, *sizes[stop + 1 :])


@op(shows=whole)
def flatten(X, *, start_axis: int = 0, stop_axis: int = -1):
    """X with the axes from start_axis to stop_axis made one; a scalar becomes [1].

    Paddle's flatten, which keeps the axes outside; ONNX's Flatten always gives two axes.
    """
    return X.reshape(flattened(X.shape, start_axis, stop_axis))


@flatten.infer
def _(X, *, start_axis, stop_axis):
    return X.with_shape(flattened(X.shape, start_axis, stop_axis))


@flatten.samples
def _(rng):
    yield (rng.normal(size=(2, 3, 4)),), {}
    yield (rng.normal(size=(2, 3, 4)),), {"start_axis": 1}
    yield (rng.normal(size=(2, 3, 4, 2)),), {"start_axis": -3, "stop_axis": 2}
    yield (rng.normal(size=()),), {}
    yield (rng.normal(size=(2, 0, 4)),), {"start_axis": 1}


def _in_the_shape_of_x(g, X, Out_grad, **attrs):
    return g.reshape_grad(X, Out_grad)


for _op in (squeeze, unsqueeze, flatten):
    _op.grad(_in_the_shape_of_x)


def expanded_shape(sizes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of `expand`; -1 where known only at run time."""
    new = len(shape) - len(sizes)
    require(new >= 0, f"shape {list(shape)} has fewer axes than X {list(sizes)}", RANK)
    normalize_shape(shape)
    result = list(shape)
    for axis, size in enumerate(sizes, new):
        if shape[axis] == -1:
            result[axis] = size
        else:
            require(
                size in (1, -1, shape[axis]), f"X axis {axis - new} has size {size}, it cannot become {shape[axis]}"
            )
    require(-1 not in shape[:new], f"shape {list(shape)}: a new leading axis cannot be -1", NO_SHAPE)
    return tuple(result)


@op(gpu="movement.movement")
def expand(X, *, shape: Ints, out=None):
    """X repeated along its axes of size 1 up to `shape`; -1 keeps a size, new axes come first.

    A size other than 1 stays: ONNX's Expand also takes a 1 in `shape` for "keep", here -1 says that.
    """
    whole = np.broadcast_to(X, expanded_shape(X.shape, shape))
    Out = destination(out, whole)
    np.copyto(Out, whole)
    return Out


@expand.infer
def _(X, *, shape):
    return X.with_shape(expanded_shape(X.shape, shape))


@expand.samples
def _(rng):
    yield (rng.normal(size=(4, 1)),), {"shape": (4, 3)}
    yield (rng.normal(size=(4, 1)),), {"shape": (2, -1, 3)}
    yield (rng.normal(size=()),), {"shape": (2, 3)}
    yield (rng.normal(size=(3,)),), {"shape": (-1,)}
    yield (rng.normal(size=(1, 3)),), {"shape": (0, 3)}


@op("X_grad", of=expand, no_need_buffer={"X"}, gpu="movement.movement")
def expand_grad(X, Out_grad, *, out=None):
    """Out_grad summed over the axes along which X was repeated."""
    return handed_on(Out_grad, X.shape, -1, out[0] if out else None)


@expand_grad.grad
def _(g, X_grad_grad, Out_grad):
    return None, g.elementwise_add(g.fill_any_like(Out_grad, value=0.0), X_grad_grad)


def tiled(sizes: tuple[int, ...], times: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and repeats, the shorter one filled up with leading ones."""
    require(all(t >= 0 for t in times), f"repeat_times {list(times)} has a negative number")
    ndim = max(len(sizes), len(times))
    return (1,) * (ndim - len(sizes)) + tuple(sizes), (1,) * (ndim - len(times)) + tuple(times)


@op(gpu="movement.movement")
def tile(X, *, repeat_times: Ints):
    """X laid side by side repeat_times[i] times along axis i; the shorter of both gets leading ones."""
    return np.tile(X, repeat_times) if repeat_times else X.copy()


@tile.infer
def _(X, *, repeat_times):
    sizes, times = tiled(X.shape, repeat_times)
    return X.with_shape(0 if t == 0 else -1 if s == -1 else s * t for s, t in zip(sizes, times, strict=True))


@tile.samples
def _(rng):
    yield (rng.normal(size=(2, 3)),), {"repeat_times": (2, 1)}
    yield (rng.normal(size=(2, 3)),), {"repeat_times": (3,)}
    yield (rng.normal(size=(3,)),), {"repeat_times": (2, 2)}
    yield (rng.normal(size=()),), {"repeat_times": ()}
    yield (rng.normal(size=(2,)),), {"repeat_times": (0,)}


@op("X_grad", of=tile, no_need_buffer={"X"}, gpu="movement.movement")
def tile_grad(X, Out_grad, *, repeat_times: Ints):
    """Out_grad summed over the copies of X."""
    sizes, times = tiled(X.shape, repeat_times)
    pairs = [n for pair in zip(times, sizes, strict=True) for n in pair]
    return Out_grad.reshape(pairs).sum(axis=tuple(range(0, len(pairs), 2))).reshape(X.shape)


@tile_grad.grad
def _(g, X_grad_grad, *, repeat_times):
    return None, g.tile(X_grad_grad, repeat_times=repeat_times)
