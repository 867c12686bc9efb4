"""Paddle's `nn.layer.norm`: the layers of minigraph.nn.norm_layers under their older place."""

from minigraph.nn.norm_layers import *  # noqa: F403
from minigraph.nn.norm_layers import __all__ as __all__
