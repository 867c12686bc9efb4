"""Layers as one call, each with new parameters."""

from minigraph.static.py_func import py_func

from . import control_flow
from .branches import case, cond, switch_case
from .fc import fc
from .loops import while_loop
from .maps import bilinear_tensor_product, embedding, prelu
from .normalization import batch_norm, group_norm, instance_norm, layer_norm, spectral_norm
from .own_gradient import static_pylayer

__all__ = [
    "batch_norm", "bilinear_tensor_product", "case", "cond", "control_flow", "embedding", "fc", "group_norm",
    "instance_norm", "layer_norm", "prelu", "py_func", "spectral_norm", "static_pylayer", "switch_case", "while_loop",
]  # fmt: skip
