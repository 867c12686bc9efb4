"""Other shapes, orders, pieces and repetitions of Variables."""

from __future__ import annotations

from typing import Any

from minigraph.errors import require
from minigraph.errors.kinds import RUN_TIME
from minigraph.program import Variable
from minigraph.program.builder import whole
from minigraph.program.known import Size, known, known_number

from .arguments import emit, ints, variable, variables
from .sized import expanded, reshaped, run_sizes


@whole
def reshape(x: Variable, shape: Any, name: str | None = None) -> Variable:
    """The elements of x in another shape; 0 copies a size of x, one -1 takes what is left.

    Entries may be sizes of Variables that only a run knows, and what is left of x as a product of such.
    """
    x, sizes = variable(x, "reshape"), run_sizes(shape)
    return reshaped(x, shape, sizes) if sizes else emit("reshape", "reshape", x, shape=shape, name=name)


def transpose(x: Variable, perm: Any, name: str | None = None) -> Variable:
    """Axis i of the result is axis perm[i] of x."""
    return emit("transpose", "transpose", variable(x, "transpose"), perm=perm, name=name)


def squeeze(x: Variable, axis: Any = None, name: str | None = None) -> Variable:
    """x without the axes `axis` (an int or list), which have size 1.

    None drops all that have size 1 in x.shape. An axis whose size is known only at run time stays, also
    in a run in which it is 1: the rank does not depend on the batch.
    """
    x, axes = variable(x, "squeeze"), ints(axis)
    if axes is None and 1 in x.shape:
        axes = [i for i, size in enumerate(x.shape) if size == 1]
    return emit("squeeze", "squeeze", x, axes=axes, name=name)


def unsqueeze(x: Variable, axis: Any, name: str | None = None) -> Variable:
    """x with axes of size 1 at the places `axis` (an int or list) of the result."""
    return emit("unsqueeze", "unsqueeze", variable(x, "unsqueeze"), axes=axis, name=name)


def flatten(x: Variable, start_axis: int = 0, stop_axis: int = -1, name: str | None = None) -> Variable:
    """x with the axes from start_axis to stop_axis made one."""
    x = variable(x, "flatten")
    return emit("flatten", "flatten", x, start_axis=start_axis, stop_axis=stop_axis, name=name)


def only(value: Any) -> Any:
    """The element of a list of one, anything else as it is."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def concat(x: Any, axis: Any = 0, name: str | None = None) -> Variable:
    """The Variables of the list x joined along `axis`, which may be a constant Variable of one int."""
    axis = only(known(axis))
    return emit("concat", "concat", variables(x, "concat"), axis=axis, name=name)


def stack(x: Any, axis: int = 0, name: str | None = None) -> Variable:
    """The Variables of the list x, of one shape, joined along a new axis."""
    return emit("stack", "stack", variables(x, "stack"), axis=axis, name=name)


def split(x: Variable, num_or_sections: Any, axis: int = 0, name: str | None = None) -> list[Variable]:
    """x cut along `axis` into so many equal pieces, or into a list of sizes, one of which may be -1."""
    x, num_or_sections = variable(x, "split"), known_number(num_or_sections)
    if isinstance(num_or_sections, (list, tuple)):
        return emit("split", "split", x, sections=num_or_sections, axis=axis, name=name)
    return emit("split", "split", x, num=num_or_sections, axis=axis, name=name)


@whole
def expand(x: Variable, shape: Any, name: str | None = None) -> Variable:
    """x repeated along its axes of size 1 up to `shape`; -1 keeps a size, new axes come first.

    Entries may be sizes of Variables that only a run knows.
    """
    x, sizes = variable(x, "expand"), run_sizes(shape)
    return expanded(x, sizes) if sizes else emit("expand", "expand", x, shape=shape, name=name)


def tile(x: Variable, repeat_times: Any, name: str | None = None) -> Variable:
    """x laid side by side repeat_times[i] times along axis i; along an axis of size 1 as often as a run's size says."""
    x, sizes = variable(x, "tile"), run_sizes(repeat_times)
    if sizes is None:
        return emit("tile", "tile", x, repeat_times=repeat_times, name=name)
    own = emit("tile", "tile", x, repeat_times=[1 if isinstance(s, Size) else s for s in sizes], name=name)
    sizes = [1] * (own.ndim - len(sizes)) + sizes
    for axis, size in enumerate(sizes):
        fits = not isinstance(size, Size) or own.shape[axis] == 1
        require(fits, f"axis {axis} of {own} would be repeated as often as only a run knows", RUN_TIME,
                "an axis of size 1 can be: mg.unsqueeze, mg.tile and mg.reshape")  # fmt: skip
    return expanded(own, [size if isinstance(size, Size) else -1 for size in sizes])


def gather(x: Variable, index: Variable, axis: int | None = None, name: str | None = None) -> Variable:
    """The slices of x at the positions `index`, an int Variable, along `axis` (0 for None)."""
    x, index = variable(x, "gather"), variable(index, "gather", "index")
    return emit("gather", "gather", x, index, axis=0 if axis is None else axis, name=name)
