"""Linear algebra under Paddle's names: tensor/linalg has the functions."""

from minigraph.tensor.linalg import *  # noqa: F403
from minigraph.tensor.linalg import __all__ as __all__
