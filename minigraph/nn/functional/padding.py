"""Borders around tensors, and masks of the beginnings of rows."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, ShapeError, require
from minigraph.errors.kinds import COUNT, UNKNOWN_SIZE
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.tensor.arguments import emit, ints, output_prefix, variable
from minigraph.tensor.manipulation import gather

MODES = "constant", "reflect", "replicate", "circular"
LAYOUTS = "NCL", "NCHW", "NCDHW", "NLC", "NHWC", "NDHWC"


@whole
def pad(
    x: Variable, pad: Any, mode: str = "constant", value: float = 0.0, data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:  # fmt: skip
    """x with a border.

    pad   ints >= 0, before and behind an axis: two for each axis of x, from the first one on (mode constant); or
          two for each axis between batch and channels, from the last one on; an int for all of these
    mode  constant: `value`; reflect: the elements beside the border, backwards, without the one at the border;
          replicate: the one at the border; circular: those of the other side
    """
    x = variable(x, "pad")
    require(mode in MODES, f"mode {mode!r} is none of {', '.join(MODES)}", AttrError)
    sizes = _paddings(x, pad, mode, data_format)
    if mode == "constant":
        return emit("pad", "pad", x, paddings=sizes, value=value, name=name)
    out = x
    for axis in range(x.ndim):
        before, after = sizes[2 * axis : 2 * axis + 2]
        if before or after:
            out = gather(out, _places(x, axis, before, after, mode), axis)
    return builder_of(x).assign(out, name=output_prefix("pad", name))


def _paddings(x: Variable, pad: Any, mode: str, data_format: str) -> list[int]:
    """Two ints for each axis of x, from the first one on."""
    inner = x.ndim - 2
    given = [pad] * (2 * inner) if isinstance(pad, int) else [*(ints(pad) or ())]
    if mode == "constant" and len(given) == 2 * x.ndim:
        return given
    require(data_format in LAYOUTS, f"data_format {data_format!r} is none of {', '.join(LAYOUTS)}", AttrError)
    fits = x.ndim in (3, 4, 5) and len(given) == 2 * inner
    require(fits, f"pad has {len(given)} numbers, x is {x}: two for each axis are {2 * x.ndim}, those between batch"
            f" and channels, at ranks 3 to 5, take {2 * max(inner, 0)}", COUNT)  # fmt: skip
    first = 2 if data_format.startswith("NC") else 1
    sizes = [0] * (2 * x.ndim)
    for number in range(inner):
        axis = first + inner - 1 - number
        sizes[2 * axis : 2 * axis + 2] = given[2 * number : 2 * number + 2]
    return sizes


def _places(x: Variable, axis: int, before: int, after: int, mode: str) -> Variable:
    """Where the elements along a padded axis come from."""
    g, size = builder_of(x), x.shape[axis]
    require(size > 0, f"mode {mode} needs to know the size of axis {axis}, x is {x}", UNKNOWN_SIZE)
    most = size - 1 if mode == "reflect" else size
    fits = mode == "replicate" or max(before, after) <= most
    require(fits, f"mode {mode}: axis {axis} of size {size} has no border of {max(before, after)}", ShapeError)
    require(min(before, after) >= 0, f"pad has {min(before, after)}", AttrError, "mg.slice takes a part")
    places = g.arange(start=-before, end=size + after)
    if mode == "replicate":
        return g.clip(places, min=0.0, max=float(size - 1))
    if mode == "circular":
        return places % size
    from_end = g.scale(g.abs(places), scale=-1.0, bias=float(size - 1))
    return g.scale(g.abs(from_end), scale=-1.0, bias=float(size - 1))


def zeropad2d(x: Variable, padding: Any, data_format: str = "NCHW", name: str | None = None) -> Variable:
    """Zeros around images; padding: left, right, top, bottom."""
    return pad(x, padding, "constant", 0.0, data_format, name)


__all__ = ["pad", "zeropad2d"]
