"""Layers as one call, each with new parameters."""

from .fc import fc
from .maps import bilinear_tensor_product, embedding, prelu
from .normalization import batch_norm, group_norm, instance_norm, layer_norm, spectral_norm

__all__ = [
    "batch_norm", "bilinear_tensor_product", "embedding", "fc", "group_norm", "instance_norm", "layer_norm", "prelu",
    "spectral_norm",
]  # fmt: skip
