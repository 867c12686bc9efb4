"""Feeds: what `run` is given, as arrays that fit the variables of the program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.errors import FeedError, require, shortened
from minigraph.errors.kinds import COMPUTED_FEED, FEED_SHAPE, FEED_TYPE
from minigraph.program import Program, Variable
from minigraph.types import FLOATS, NO_ARRAY, TensorType, as_numpy, in_type, why_no_array

from .backend import Backend


def check_none_is_computed(program: Program, feed: Mapping[Any, Any]) -> None:
    """Passes may let readers look past a value that the program computes: they would not see what is fed for it."""
    fed = {name.name if isinstance(name, Variable) else name for name in feed}
    for op in program.ops:
        for v in op.output_vars:
            if v.name in fed and not v.is_data:
                raise COMPUTED_FEED(
                    f"feed {v.name!r} is computed by {op.type}, and passes may read past it", site=op.site,
                    hint="run the Program itself, or make it a data variable",
                )  # fmt: skip


def only_feed(feeds: Sequence[Any]) -> Any:
    """The feed in Paddle's list of one for each device, of which there is one here."""
    require(len(feeds) == 1, f"feed is a list of {len(feeds)} dicts, one for each device; a program runs on one",
            FeedError, "join the batches along their first axis, feed={...}")  # fmt: skip
    return feeds[0]


def loaded(program: Program, feed: Mapping[str, Any]) -> Mapping[str, Any]:
    """The feed of a run with the next batch of each loader inside the program whose variables it does not give."""
    if not isinstance(feed, Mapping):
        return feed
    fed = {name.name if isinstance(name, Variable) else name for name in feed}
    waiting = [loader for loader in program.loaders if not fed.issuperset(v.name for v in loader.feeds)]
    return {name: array for loader in waiting for name, array in loader.next_feed().items()} | dict(feed)


def checked_feeds(program: Program, feed: Mapping[str, Any], backend: Backend) -> dict[str, Any]:
    """Arrays for all fed variables, of the host or of the device; what does not fit is refused."""
    require(isinstance(feed, Mapping), f"feed is a dict {{name: array}}, not a {type(feed).__name__}", FeedError)
    arrays = {}
    for name, value in feed.items():
        v = program.fed_variable(name)
        array = _as_array(v, value, backend)
        _check_fit(v, array)
        arrays[v.name] = array
    return arrays


def feed_types(program: Program, feed: Mapping[Any, Any]) -> dict[str, TensorType]:
    """Types of the feeds {name or Variable: array or shape}; where all sizes are known they need not be given."""
    kind = type(feed).__name__
    require(isinstance(feed, Mapping), f"feed is a dict {{name: array or shape}}, not a {kind}", FeedError)
    given = {program.fed_variable(name).name: value for name, value in feed.items()}
    types = {}
    for v in program.vars.values():
        if v.name in given:
            shape = _sizes(v, given[v.name])
        elif v.is_data and -1 not in v.shape:
            shape = v.shape
        else:
            read = v.is_data and any(v.name in op.input_arg_names for op in program.ops)
            require(
                not read, f"what a run needs depends on the shape of {v}", FeedError,
                f"give it: {{{v.name!r}: [...]}}",
            )  # fmt: skip
            continue
        fits = len(shape) == v.ndim and all(s in (-1, n) for s, n in zip(v.shape, shape, strict=True))
        require(fits, f"feed {v.name} must be {v.type}, has shape {shortened(str(list(shape)))}", FEED_SHAPE)
        types[v.name] = TensorType(shape, v.dtype)
    return types


def _sizes(v: Variable, value: Any) -> tuple[int, ...]:
    """The shape of an array, or the one that was given in its place."""
    shape = getattr(value, "shape", value)
    known = isinstance(shape, (list, tuple)) and all(
        isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in shape
    )
    require(
        known, f"feed {v.name}: {shortened(repr(shape))} is not a shape, which is a list of sizes >= 0", FeedError,
        f"give an array or its shape: {{{v.name!r}: [...]}}",
    )  # fmt: skip
    sizes = tuple(int(n) for n in shape)
    require(
        math.prod(sizes) < 2**63, f"feed {v.name}: {shortened(repr(shape))} has more than 2^63 elements", FeedError
    )
    return sizes


def _as_array(v: Variable, value: Any, backend: Backend) -> Any:
    """A plain NumPy array in native byte order; Python numbers take the variable's type where they fit it.

    An array of the device stays as it is.
    """
    if isinstance(value, Variable):
        raise FeedError(f"feed {v.name} is the variable {value}, which has no value yet; feed an array", site=v.site)
    if isinstance(value, np.ma.MaskedArray):
        raise FeedError(f"feed {v.name} is a masked array", site=v.site, hint="feed its filled(...) values")
    try:
        device = backend.accept_feed(value)
        if device is not None:
            return device
        array = as_numpy(value)
    except NO_ARRAY as problem:
        lists = isinstance(value, (list, tuple))
        hint = None if lists else "feed what numpy.asarray takes: an array of the host, of a type that NumPy knows"
        if hint and backend.takes:
            hint += f"; or {backend.takes}"
        raise FeedError(f"feed {v.name} is {why_no_array(value, problem)}", site=v.site, hint=hint) from None
    numbers = not hasattr(value, "__array__") and array.dtype.kind in "bif"
    if numbers and array.dtype != v.dtype and (array.dtype.kind != "f" or v.dtype in FLOATS):
        typed = in_type(array, v.dtype)
        if typed is None:
            raise FEED_TYPE(f"feed {v.name} has values that {v.dtype} cannot hold", site=v.site)
        array = typed
    if array.dtype.newbyteorder("=") == v.dtype and not array.dtype.isnative:
        array = array.astype(v.dtype)
    return array


def _check_fit(v: Variable, array: Any) -> None:
    if array.dtype != v.dtype:
        number = array.dtype.kind in "biuf" or array.dtype in FLOATS
        raise FEED_TYPE(
            f"feed {v.name} must be {v.dtype}, is {array.dtype if number else _kind(array)}", site=v.site,
            hint=f"feed {v.name}.astype({v.dtype.name!r})" if number else None,
        )  # fmt: skip
    fits = array.ndim == v.ndim and all(s in (-1, a) for s, a in zip(v.shape, array.shape, strict=True))
    if not fits:
        raise FEED_SHAPE(f"feed {v.name} must be {v.type}, has shape {list(array.shape)}", site=v.site)


def _kind(array: Any) -> str:
    """What an array of other things than numbers holds."""
    if array.ndim == 0 and array.dtype.kind in "OU":
        return shortened(repr(array.item()))
    return f"an array of {array.dtype.name if array.dtype.names is None else 'records'}"
