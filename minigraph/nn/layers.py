"""Layers: affine maps, tables, normalisation, activations, losses."""

from __future__ import annotations

import math
from typing import Any

from minigraph.errors import AttrError, require
from minigraph.program import Variable
from minigraph.program.builder import whole
from minigraph.types import normalize_shape

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
        require(self.weight is not None, "Linear needs a weight, weight_attr=False gives none", AttrError)
        self.bias = self.create_parameter([out_features], attr=bias_attr, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        return F.linear(input, self.weight, self.bias, name=self.name)  # pyright: ignore[reportArgumentType]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class Embedding(Layer):
    """Rows of weight [num_embeddings, embedding_dim] at int positions.

    padding_idx  ids with this value give zeros and no gradient; negative ones count from the back
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
        self.padding_idx, self.name = padding_idx, name
        self.weight = self.create_parameter([num_embeddings, embedding_dim], attr=weight_attr)
        require(self.weight is not None, "Embedding needs a weight, weight_attr=False gives none", AttrError)

    def forward(self, x: Variable) -> Variable:
        return F.embedding(x, self.weight, self.padding_idx, name=self.name)  # pyright: ignore[reportArgumentType]

    def extra_repr(self) -> str:
        return f"{', '.join(map(str, self.weight.shape))}"  # pyright: ignore[reportOptionalMemberAccess]


class LayerNorm(Layer):
    """Normalisation over the last axes, of sizes `normalized_shape`, with a weight (1 at first) and bias (0)."""

    @whole
    def __init__(
        self, normalized_shape: Any, epsilon: float = 1e-5, weight_attr: Any = None, bias_attr: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape, self.epsilon, self.name = normalize_shape(normalized_shape), epsilon, name
        size = [math.prod(self.normalized_shape)]
        self.weight = self.create_parameter(size, attr=weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter(size, attr=bias_attr, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.epsilon, name=self.name)

    def extra_repr(self) -> str:
        return f"normalized_shape={list(self.normalized_shape)}, epsilon={self.epsilon}"


class Dropout(Layer):
    """functional.dropout while training, by layer.train() and eval() or program.clone(for_test=True)."""

    def __init__(
        self, p: float = 0.5, axis: Any = None, mode: str = "upscale_in_train", name: str | None = None
    ) -> None:
        super().__init__()
        self.p, self.axis, self.mode, self.name = p, axis, mode, name

    def forward(self, input: Variable) -> Variable:
        return F.dropout(input, self.p, self.axis, self.training, self.mode, name=self.name)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class ReLU(Layer):
    """max(x, 0)"""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Variable) -> Variable:
        return F.relu(x, name=self.name)


class GELU(Layer):
    """x * Phi(x); approximate=True uses the tanh form."""

    def __init__(self, approximate: bool = False, name: str | None = None) -> None:
        super().__init__()
        self.approximate, self.name = approximate, name

    def forward(self, x: Variable) -> Variable:
        return F.gelu(x, self.approximate, name=self.name)


class SiLU(Layer):
    """x * sigmoid(x)"""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Variable) -> Variable:
        return F.silu(x, name=self.name)


Silu = SiLU  # as Paddle spells it


class Tanh(Layer):
    """The hyperbolic tangent."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Variable) -> Variable:
        return F.tanh(x, name=self.name)


class Sigmoid(Layer):
    """1 / (1 + exp(-x))"""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Variable) -> Variable:
        return F.sigmoid(x, name=self.name)


class Softmax(Layer):
    """exp(x) / sum(exp(x)) along `axis`."""

    def __init__(self, axis: int = -1, name: str | None = None) -> None:
        super().__init__()
        self.axis, self.name = axis, name

    def forward(self, x: Variable) -> Variable:
        return F.softmax(x, self.axis, name=self.name)


class CrossEntropyLoss(Layer):
    """functional.cross_entropy with its options."""

    def __init__(
        self, weight: Variable | None = None, ignore_index: int = -100, reduction: str = "mean",
        soft_label: bool = False, axis: int = -1, use_softmax: bool = True, label_smoothing: float = 0.0,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.options: dict[str, Any] = {
            "weight": weight, "ignore_index": ignore_index, "reduction": reduction, "soft_label": soft_label,
            "axis": axis, "use_softmax": use_softmax, "label_smoothing": label_smoothing,
        }  # fmt: skip

    def forward(self, input: Variable, label: Variable) -> Variable:
        return F.cross_entropy(input, label, **self.options)


class MSELoss(Layer):
    """The mean (or sum, or each) of (input - label)^2."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Variable, label: Variable) -> Variable:
        return F.mse_loss(input, label, self.reduction)
