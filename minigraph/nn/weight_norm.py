"""Weights as a direction and a length that are trained apart.

Source: Salimans and Kingma, Weight Normalization, arXiv:1602.07868.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigraph.errors import AttrError, require
from minigraph.program import Variable
from minigraph.program.builder import Builder

from .initializer import Initializer
from .param_attr import ParamAttr


class WeightNormParamAttr(ParamAttr):
    """A ParamAttr whose weight is g * v / |v|, with parameters v of the weight's shape and g.

    dim  the axis along which each slice has a length of its own, g has that axis alone; None: one length for all.
         -1 is the last axis
    The other arguments are those of ParamAttr, for g and v. g begins as |v|, so that the weight begins as v.
    """

    def __init__(
        self, dim: int | None = None, name: str | None = None, initializer: Callable[..., Any] | None = None,
        learning_rate: float = 1.0, regularizer: Any = None, trainable: bool = True, do_model_average: bool = False,
        need_clip: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(name, initializer, learning_rate, regularizer, trainable, do_model_average, need_clip)
        self.dim = dim

    def plain(self, name: str, initializer: Callable[..., Any] | None) -> ParamAttr:
        """The facts of one of the two parameters."""
        return ParamAttr(
            name, initializer, self.learning_rate, self.regularizer, self.trainable, self.do_model_average,
            self.need_clip,
        )  # fmt: skip

    def summed(self, rank: int) -> tuple[int, ...]:
        """The axes over which a length is taken."""
        if self.dim is None:
            return tuple(range(rank))
        fits = isinstance(self.dim, int) and -rank <= self.dim < rank
        require(fits, f"dim {self.dim!r} of WeightNormParamAttr is no axis of a weight of rank {rank}", AttrError)
        return tuple(a for a in range(rank) if a != self.dim % rank)


class Length(Initializer):
    """The length of a parameter of the same startup program over `axes`."""

    def __init__(self, name: str, axes: tuple[int, ...]) -> None:
        self.name, self.axes = name, axes

    def emit(self, g: Builder, param: Variable) -> None:
        g.sqrt(_squares(g, param.block.var(self.name), self.axes), out={"Out": param})


def length(g: Builder, v: Variable, axes: tuple[int, ...]) -> Variable:
    """sqrt(sum(v * v)) over `axes`, which stay with size 1; v itself, its absolute value, where there are none."""
    return g.sqrt(_squares(g, v, axes))


def _squares(g: Builder, v: Variable, axes: tuple[int, ...]) -> Variable:
    return g.reduce_sum(g.square(v), axis=axes, keepdim=True) if axes else g.square(v)
