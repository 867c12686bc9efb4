"""Paddle's `nn.layer.container`: the layers of minigraph.nn.container under their older place."""

from minigraph.nn.container import *  # noqa: F403
from minigraph.nn.container import __all__ as __all__
