"""Layers, their functional forms, initialisers and gradient clipping."""

from . import (
    activation_layers,
    functional,
    initializer,
    layers,
    loss_layers,
    norm_layers,
    shape_layers,
    transformer,
)
from .activation_layers import *  # noqa: F403
from .attention import MultiHeadAttention
from .clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from .container import LayerDict, LayerList, ParameterList, Sequential
from .layer import Layer
from .layers import *  # noqa: F403
from .loss_layers import *  # noqa: F403
from .norm_layers import *  # noqa: F403
from .shape_layers import *  # noqa: F403
from .transformer import *  # noqa: F403

__all__ = [
    "ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue", "Layer", "LayerDict", "LayerList",
    "MultiHeadAttention", "ParameterList", "Sequential", "functional", "initializer",
]  # fmt: skip
__all__ += activation_layers.__all__
__all__ += layers.__all__
__all__ += loss_layers.__all__
__all__ += norm_layers.__all__
__all__ += shape_layers.__all__
__all__ += transformer.__all__
