"""Paddle's `nn.layer.activation`: the layers of minigraph.nn.activation_layers under their older place."""

from minigraph.nn.activation_layers import *  # noqa: F403
from minigraph.nn.activation_layers import __all__ as __all__
