"""Layers as one call, each with new parameters."""

from .branches import case, cond, switch_case
from .fc import fc
from .loops import while_loop
from .maps import bilinear_tensor_product, embedding, prelu
from .normalization import batch_norm, group_norm, instance_norm, layer_norm, spectral_norm

__all__ = [
    "batch_norm", "bilinear_tensor_product", "case", "cond", "embedding", "fc", "group_norm", "instance_norm",
    "layer_norm", "prelu", "spectral_norm", "switch_case", "while_loop",
]  # fmt: skip
