"""Functions of networks: activations, affine maps, normalisation, losses."""

from .activation import gelu, leaky_relu, log_softmax, relu, sigmoid, silu, softmax, softplus, tanh
from .attention import scaled_dot_product_attention
from .linear import embedding, linear, one_hot
from .linear_cross_entropy import fused_linear_cross_entropy
from .loss import (
    cross_entropy,
    label_smooth,
    mse_loss,
    softmax_with_cross_entropy,
    square_error_cost,
)
from .norm import dropout, layer_norm

__all__ = [
    "cross_entropy", "dropout", "embedding", "fused_linear_cross_entropy", "gelu", "label_smooth",
    "layer_norm", "leaky_relu", "linear", "log_softmax", "mse_loss", "one_hot", "relu",
    "scaled_dot_product_attention", "sigmoid", "silu", "softmax", "softmax_with_cross_entropy", "softplus",
    "square_error_cost", "tanh",
]  # fmt: skip
