"""Paddle's `nn.layer.loss`: the layers of minigraph.nn.loss_layers under their older place."""

from minigraph.nn.loss_layers import *  # noqa: F403
from minigraph.nn.loss_layers import __all__ as __all__
