"""Layers of losses."""

from __future__ import annotations

from . import functional as F
from .functional_layer import FunctionalLayer


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
    "HingeEmbeddingLoss", "KLDivLoss", "L1Loss", "MSELoss", "MarginRankingLoss", "MultiLabelSoftMarginLoss",
    "MultiMarginLoss", "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss", "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
]  # fmt: skip
