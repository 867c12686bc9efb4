"""Functions of networks: activations, affine maps, normalisation, distances, losses. Each file lists its names."""

from minigraph.tensor.grids import diag_embed
from minigraph.tensor.waiting.functions import OF_NETWORKS, with_waiting

from . import (
    activation,
    binary_loss,
    distance,
    flash_attention,
    loss,
    margin_loss,
    norm,
    padding,
    regression_loss,
)
from .activation import *  # noqa: F403
from .attention import scaled_dot_product_attention
from .binary_loss import *  # noqa: F403
from .distance import *  # noqa: F403
from .dropout import alpha_dropout, dropout, dropout2d, dropout3d
from .hierarchical import hsigmoid_loss
from .linear import bilinear, embedding, linear, one_hot
from .linear_cross_entropy import fused_linear_cross_entropy
from .loss import *  # noqa: F403
from .margin_loss import *  # noqa: F403
from .mask import sequence_mask
from .norm import *  # noqa: F403
from .padding import *  # noqa: F403
from .regression_loss import *  # noqa: F403

globals().update(with_waiting(globals(), OF_NETWORKS, "functional."))

__all__ = [
    "alpha_dropout", "bilinear", "diag_embed", "dropout", "dropout2d", "dropout3d", "embedding", "flash_attention",
    "fused_linear_cross_entropy",
    "hsigmoid_loss", "linear", "one_hot", "scaled_dot_product_attention", "sequence_mask",
]  # fmt: skip
__all__ += activation.__all__
__all__ += binary_loss.__all__
__all__ += distance.__all__
__all__ += loss.__all__
__all__ += margin_loss.__all__
__all__ += norm.__all__
__all__ += padding.__all__
__all__ += regression_loss.__all__
