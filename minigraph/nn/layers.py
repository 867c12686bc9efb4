"""Layers with weights: affine maps, tables, products of two inputs, slopes."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, require
from minigraph.errors.kinds import MISSING
from minigraph.program import Variable
from minigraph.program.builder import whole

from . import functional as F
from .initializer import Constant
from .layer import Layer


class Linear(Layer):
    """x @ weight + bias with weight [in_features, out_features]; bias_attr=False leaves the bias out."""

    @whole
    def __init__(
        self, in_features: int, out_features: int, weight_attr: Any = None, bias_attr: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_features, self.out_features, self.name = in_features, out_features, name
        self.weight = self.create_parameter([in_features, out_features], attr=weight_attr)
        require(self.weight is not None, "Linear needs a weight, weight_attr=False gives none", MISSING)
        self.bias = self.create_parameter([out_features], attr=bias_attr, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        return F.linear(input, self.weight, self.bias, name=self.name)  # pyright: ignore[reportArgumentType]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class Embedding(Layer):
    """Rows of weight [num_embeddings, embedding_dim] at int positions.

    padding_idx  ids with this value give zeros and no gradient; negative ones count from the back
    sparse       as of functional.embedding
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, sparse: bool = False,
        weight_attr: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        require(
            padding_idx is None or -num_embeddings <= padding_idx < num_embeddings,
            f"padding_idx {padding_idx} is no row of {num_embeddings}", AttrError,
        )  # fmt: skip
        self.padding_idx, self.sparse, self.name = padding_idx, sparse, name
        self.weight = self.create_parameter([num_embeddings, embedding_dim], attr=weight_attr)
        require(self.weight is not None, "Embedding needs a weight, weight_attr=False gives none", MISSING)

    def forward(self, x: Variable) -> Variable:
        assert self.weight is not None
        return F.embedding(x, self.weight, self.padding_idx, self.sparse, name=self.name)

    def extra_repr(self) -> str:
        return f"{', '.join(map(str, self.weight.shape))}"  # pyright: ignore[reportOptionalMemberAccess]


class Bilinear(Layer):
    """functional.bilinear with a weight [out_features, in1_features, in2_features] and a bias [1, out_features]."""

    @whole
    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, weight_attr: Any = None, bias_attr: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.name = name
        self.weight = self.create_parameter([out_features, in1_features, in2_features], attr=weight_attr)
        require(self.weight is not None, "Bilinear needs a weight, weight_attr=False gives none", MISSING)
        self.bias = self.create_parameter([1, out_features], attr=bias_attr, is_bias=True)

    def forward(self, x1: Variable, x2: Variable) -> Variable:
        return F.bilinear(x1, x2, self.weight, self.bias, name=self.name)  # pyright: ignore[reportArgumentType]

    def extra_repr(self) -> str:
        return f"{', '.join(map(str, self.weight.shape))}"  # pyright: ignore[reportOptionalMemberAccess]


class PReLU(Layer):
    """functional.prelu with a weight of `num_parameters` elements, 1 or one for each channel, that begin at `init`."""

    @whole
    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, weight_attr: Any = None, data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.data_format, self.name = data_format, name
        self.weight = self.create_parameter(
            [num_parameters], attr=weight_attr, default_initializer=Constant(init)
        )
        require(self.weight is not None, "PReLU needs a weight, weight_attr=False gives none", MISSING)

    def forward(self, x: Variable) -> Variable:
        return F.prelu(x, self.weight, self.data_format, name=self.name)  # pyright: ignore[reportArgumentType]

    def extra_repr(self) -> str:
        return f"num_parameters={self.weight.shape[0]}"  # pyright: ignore[reportOptionalMemberAccess]


__all__ = ["Bilinear", "Embedding", "Linear", "PReLU"]
