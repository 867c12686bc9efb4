"""Paddle's `nn.layer.transformer`: the layers of minigraph.nn.transformer under their older place."""

from minigraph.nn.transformer import *  # noqa: F403
from minigraph.nn.transformer import __all__ as __all__
