"""Layers of losses."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, require
from minigraph.program import Variable

from . import functional as F
from .functional_layer import FunctionalLayer
from .layer import Layer


class MSELoss(FunctionalLayer, function=F.mse_loss, inputs=2):
    """The mean (or sum, or each) of (input - label)^2."""


class L1Loss(FunctionalLayer, function=F.l1_loss, inputs=2):
    """The mean (or sum, or each) of |input - label|."""


class SmoothL1Loss(FunctionalLayer, function=F.smooth_l1_loss, inputs=2):
    """Huber's loss: half of the square up to a difference of delta, from there on a line."""


class KLDivLoss(FunctionalLayer, function=F.kl_div, inputs=2):
    """label * (log(label) - input) of logarithms of probabilities."""


class PoissonNLLLoss(FunctionalLayer, function=F.poisson_nll_loss, inputs=2):
    """-log of the probability of a count, without its constant part."""


class GaussianNLLLoss(FunctionalLayer, function=F.gaussian_nll_loss, inputs=3):
    """(log(variance) + (input - label)^2 / variance) / 2"""


class CrossEntropyLoss(FunctionalLayer, function=F.cross_entropy, inputs=2):
    """-log(softmax(input)[label]), with the options of functional.cross_entropy."""


class NLLLoss(FunctionalLayer, function=F.nll_loss, inputs=2):
    """-input[label] of logarithms of probabilities [N, C, ...]."""


class BCELoss(FunctionalLayer, function=F.binary_cross_entropy, inputs=2):
    """-(label * log(input) + (1 - label) * log(1 - input)) of probabilities."""


class BCEWithLogitsLoss(FunctionalLayer, function=F.binary_cross_entropy_with_logits, inputs=2):
    """BCELoss of sigmoid(logit), which loses nothing where that is 0 or 1."""


class SoftMarginLoss(FunctionalLayer, function=F.soft_margin_loss, inputs=2):
    """log(1 + exp(-label * input)) with labels -1 and 1."""


class MultiLabelSoftMarginLoss(FunctionalLayer, function=F.multi_label_soft_margin_loss, inputs=2):
    """The mean over the classes of the cross entropy of sigmoid(input)."""


class HSigmoidLoss(Layer):
    """Hierarchical sigmoid with its own weight [num_classes - 1, feature_size] and bias [num_classes - 1, 1].

    is_custom  the ways are given in each call, over num_classes nodes; is_sparse has no effect
    """

    def __init__(
        self, feature_size: int, num_classes: int, weight_attr: Any = None, bias_attr: Any = None,
        is_custom: bool = False, is_sparse: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        require(num_classes >= 2 or is_custom, f"num_classes must be at least 2, is {num_classes}", AttrError)
        self.num_classes = num_classes
        nodes = num_classes if is_custom else num_classes - 1
        self.weight = self.create_parameter([nodes, feature_size], weight_attr)
        self.bias = self.create_parameter([nodes, 1], bias_attr, is_bias=True)

    def forward(
        self, input: Variable, label: Variable, path_table: Variable | None = None, path_code: Variable | None = None
    ) -> Variable:
        assert self.weight is not None
        return F.hsigmoid_loss(input, label, self.num_classes, self.weight, self.bias, path_table, path_code)


class MarginRankingLoss(FunctionalLayer, function=F.margin_ranking_loss, inputs=3):
    """max(0, margin - label * (input - other))"""


class HingeEmbeddingLoss(FunctionalLayer, function=F.hinge_embedding_loss, inputs=2):
    """Distances where label is 1, max(0, margin - input) where it is -1."""


class CosineEmbeddingLoss(FunctionalLayer, function=F.cosine_embedding_loss, inputs=3):
    """1 - c of the cosine c for label 1, max(0, c - margin) for -1."""


class TripletMarginLoss(FunctionalLayer, function=F.triplet_margin_loss, inputs=3):
    """max(0, d(input, positive) - d(input, negative) + margin)"""


class TripletMarginWithDistanceLoss(FunctionalLayer, function=F.triplet_margin_with_distance_loss, inputs=3):
    """TripletMarginLoss with a distance of the caller's choice."""


class MultiMarginLoss(FunctionalLayer, function=F.multi_margin_loss, inputs=2):
    """The mean over the classes j of max(0, margin - input[label] + input[j])^p."""


__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "GaussianNLLLoss",
    "HSigmoidLoss", "HingeEmbeddingLoss", "KLDivLoss", "L1Loss", "MSELoss", "MarginRankingLoss",
    "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss",
    "TripletMarginLoss", "TripletMarginWithDistanceLoss",
]  # fmt: skip
