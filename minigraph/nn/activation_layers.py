"""Layers without weights: activations, dropout, distances."""

from __future__ import annotations

from . import functional as F
from .functional_layer import FunctionalLayer


class ReLU(FunctionalLayer, function=F.relu):
    """max(x, 0)"""


class ReLU6(FunctionalLayer, function=F.relu6):
    """min(max(x, 0), 6)"""


class LeakyReLU(FunctionalLayer, function=F.leaky_relu):
    """x where x > 0, else negative_slope * x."""


class ThresholdedReLU(FunctionalLayer, function=F.thresholded_relu):
    """x where x > threshold, else 0."""


class RReLU(FunctionalLayer, function=F.rrelu):
    """x where x > 0, else a * x with a random a in [lower, upper); in inference a is their mean."""


class ELU(FunctionalLayer, function=F.elu):
    """x where x > 0, else alpha * (exp(x) - 1)."""


class CELU(FunctionalLayer, function=F.celu):
    """x where x > 0, else alpha * (exp(x / alpha) - 1)."""


class SELU(FunctionalLayer, function=F.selu):
    """scale * x where x > 0, else scale * alpha * (exp(x) - 1)."""


class GELU(FunctionalLayer, function=F.gelu):
    """x * Phi(x), Phi the normal distribution function; approximate=True uses the tanh form."""


class SiLU(FunctionalLayer, function=F.silu):
    """x * sigmoid(x)"""


Silu = SiLU  # as Paddle spells it


class Swish(FunctionalLayer, function=F.swish):
    """x * sigmoid(x), another name of SiLU."""


class Mish(FunctionalLayer, function=F.mish):
    """x * tanh(log(1 + exp(x)))"""


class Sigmoid(FunctionalLayer, function=F.sigmoid):
    """1 / (1 + exp(-x))"""


class LogSigmoid(FunctionalLayer, function=F.log_sigmoid):
    """log(sigmoid(x))"""


class Hardsigmoid(FunctionalLayer, function=F.hardsigmoid, options="name"):
    """x / 6 + 0.5, brought into [0, 1]."""


class Hardswish(FunctionalLayer, function=F.hardswish):
    """x * min(max(x + 3, 0), 6) / 6"""


class Hardtanh(FunctionalLayer, function=F.hardtanh):
    """x brought into [min, max]."""


class Hardshrink(FunctionalLayer, function=F.hardshrink):
    """x where |x| > threshold, else 0."""


class Softshrink(FunctionalLayer, function=F.softshrink):
    """x moved by threshold towards 0, and 0 where |x| <= threshold."""


class Tanh(FunctionalLayer, function=F.tanh):
    """The hyperbolic tangent."""


class Tanhshrink(FunctionalLayer, function=F.tanhshrink):
    """x - tanh(x)"""


class Softsign(FunctionalLayer, function=F.softsign):
    """x / (1 + |x|)"""


class Softplus(FunctionalLayer, function=F.softplus):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x > threshold."""


class Softmax(FunctionalLayer, function=F.softmax, options="axis name"):
    """exp(x) / sum(exp(x)) along `axis`."""


class LogSoftmax(FunctionalLayer, function=F.log_softmax, options="axis name"):
    """log(softmax(x)) along `axis`."""


class GLU(FunctionalLayer, function=F.glu):
    """a * sigmoid(b), a and b the halves of x along `axis`."""


class Maxout(FunctionalLayer, function=F.maxout):
    """The largest of each `groups` channels that follow each other on `axis`."""


class Dropout(FunctionalLayer, function=F.dropout):
    """Each element is zero with probability p while training, by train() and eval() or clone(for_test=True)."""


class Dropout2D(FunctionalLayer, function=F.dropout2d):
    """Whole channels [H, W] of x [N, C, H, W] are zero with probability p while training."""


class Dropout3D(FunctionalLayer, function=F.dropout3d):
    """Whole channels [D, H, W] of x [N, C, D, H, W] are zero with probability p while training."""


class AlphaDropout(FunctionalLayer, function=F.alpha_dropout):
    """Dropout after selu, which keeps mean 0 and variance 1."""


class CosineSimilarity(FunctionalLayer, function=F.cosine_similarity, inputs=2):
    """sum(x1 * x2) / max(|x1| |x2|, eps) along `axis`."""


class PairwiseDistance(FunctionalLayer, function=F.pairwise_distance, inputs=2):
    """The p-norm along the last axis of x - y + epsilon."""


__all__ = [
    "CELU", "ELU", "GELU", "GLU", "SELU", "AlphaDropout", "CosineSimilarity", "Dropout", "Dropout2D", "Dropout3D",
    "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "LogSoftmax", "Maxout", "Mish",
    "PairwiseDistance", "RReLU", "ReLU", "ReLU6", "SiLU", "Sigmoid", "Silu", "Softmax", "Softplus", "Softshrink",
    "Softsign", "Swish", "Tanh", "Tanhshrink", "ThresholdedReLU",
]  # fmt: skip
