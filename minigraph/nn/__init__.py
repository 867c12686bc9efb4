"""Layers, their functional forms, initialisers and gradient clipping."""

from . import functional, initializer
from .attention import MultiHeadAttention
from .clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from .container import LayerList, Sequential
from .layer import Layer
from .layers import (
    GELU,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    MSELoss,
    ReLU,
    Sigmoid,
    SiLU,
    Silu,
    Softmax,
    Tanh,
)

__all__ = [
    "GELU", "ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue", "CrossEntropyLoss", "Dropout", "Embedding",
    "Layer", "LayerList", "LayerNorm", "Linear", "MSELoss", "MultiHeadAttention", "ReLU", "Sequential", "SiLU",
    "Sigmoid", "Silu", "Softmax", "Tanh", "functional", "initializer",
]  # fmt: skip
