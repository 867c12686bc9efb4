"""Layers that only show their input, as it is or in another shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph.errors import AttrError, call_site
from minigraph.errors.kinds import AXIS, RANK
from minigraph.program import Variable
from minigraph.tensor import flatten, reshape
from minigraph.tensor.arguments import variable

from . import functional as F
from .functional_layer import FunctionalLayer
from .layer import Layer


class Identity(Layer):
    """Its input; arguments are accepted and have no effect."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        return input


class Flatten(FunctionalLayer, function=flatten, options="start_axis stop_axis", start_axis=1):
    """The axes from start_axis to stop_axis as one."""


class Pad1D(Layer):
    """A border around [N, C, L]; padding: ints before and behind L, or one for both; the rest as functional.pad."""

    layout = "NCL"

    def __init__(
        self, padding: Any, mode: str = "constant", value: float = 0.0, data_format: str | None = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.padding, self.mode, self.value, self.name = padding, mode, value, name
        self.data_format = data_format or self.layout

    def forward(self, x: Variable) -> Variable:
        axes = len(self.layout)
        if variable(x, type(self).__name__).ndim != axes:
            raise RANK(f"x must have rank {axes}, is {x}", call=type(self).__name__, site=call_site())
        return F.pad(x, self.padding, self.mode, self.value, self.data_format, self.name)


class Pad2D(Pad1D):
    """A border around [N, C, H, W]; padding: left, right, top, bottom."""

    layout = "NCHW"


class Pad3D(Pad1D):
    """A border around [N, C, D, H, W]; padding: left, right, top, bottom, front, back."""

    layout = "NCDHW"


class ZeroPad2D(Pad2D):
    """Zeros around [N, C, H, W]; padding: left, right, top, bottom."""

    def __init__(self, padding: Any, data_format: str = "NCHW", name: str | None = None) -> None:
        super().__init__(padding, "constant", 0.0, data_format, name)


class Unflatten(Layer):
    """The axis `axis` as several axes of sizes `shape`, of which one may be -1."""

    def __init__(self, axis: int, shape: Sequence[int], name: str | None = None) -> None:
        super().__init__()
        if list(shape).count(-1) > 1:
            raise AttrError(f"shape {list(shape)} leaves more than one size open", site=call_site())
        self.axis, self.shape, self.name = axis, tuple(shape), name

    def forward(self, x: Variable) -> Variable:
        axis = self.axis + variable(x, "Unflatten").ndim if self.axis < 0 else self.axis
        if not 0 <= axis < x.ndim:
            raise AXIS(f"{x} has no axis {self.axis}", call="Unflatten", site=call_site())
        before = [0] * axis  # 0: that size of x
        return reshape(x, [*before, *self.shape, *x.shape[axis + 1 :]], name=self.name)

    def extra_repr(self) -> str:
        return f"axis={self.axis}, shape={list(self.shape)}"


class Softmax2D(Layer):
    """Softmax over the channels of [N, C, H, W] or [C, H, W]."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Variable) -> Variable:
        if variable(x, "Softmax2D").ndim not in (3, 4):
            raise RANK(f"x must have rank 3 or 4, is {x}", call="Softmax2D", site=call_site())
        return F.softmax(x, axis=-3, name=self.name)


__all__ = ["Flatten", "Identity", "Pad1D", "Pad2D", "Pad3D", "Softmax2D", "Unflatten", "ZeroPad2D"]
