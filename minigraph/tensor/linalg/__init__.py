"""Linear algebra of matrices in the last two axes: what Paddle has in paddle.linalg, for floats."""

from ..statistics import norm
from . import factors, products, solving
from .factors import *  # noqa: F403
from .products import *  # noqa: F403
from .solving import *  # noqa: F403

__all__ = ["norm"]
__all__ += factors.__all__
__all__ += products.__all__
__all__ += solving.__all__
