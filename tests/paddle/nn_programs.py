"""Functions and layers of nn and static.nn, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.paddle.cases import Gradients

Made = tuple[Callable[..., Any], tuple[np.ndarray, ...]]

X = np.array([[-3.25, -1.5, -0.5, 0.0], [0.25, 0.5, 1.0, 2.75], [6.0, 7.5, -6.5, 30.0]])
NOT_0 = np.where(X == 0, 0.75, X)
Y = np.array([[0.5, -1.0, 2.0, 0.25], [-0.75, 1.5, -2.5, 3.0], [1.25, -0.25, 0.75, -1.75]])
Z = np.array([[1.5, 0.25, -0.5, 1.0], [2.0, -1.25, 0.5, -0.5], [-1.0, 0.75, 1.75, 0.125]])
P = np.array([[0.1, 0.25, 0.5, 0.9], [0.75, 0.3, 0.6, 0.45], [0.2, 0.8, 0.05, 0.55]])
YES = np.array([[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]])
SIGNS = 2 * YES - 1
NUMBERS = np.array([2, 0, 3])
WEIGHT = np.array([0.5, 2.0, 1.5, 1.0])
CUBE = np.sin(np.arange(24.0)).reshape(2, 4, 3)  # [N, C, L]
PICTURE = np.cos(np.arange(48.0)).reshape(2, 4, 3, 2)  # [N, C, H, W]
RANKED = np.array([[0.5, 0.25], [1.5, -0.5], [-1.0, 0.75]])


def activations() -> dict[str, Made]:
    """Functions of X and layers of them."""
    calls: dict[str, Callable[..., Any]] = {
        "relu6": lambda p, x: p.nn.functional.relu6(x),
        "elu": lambda p, x: p.nn.functional.elu(x, 0.75),
        "celu": lambda p, x: p.nn.functional.celu(x, 0.5),
        "selu": lambda p, x: p.nn.functional.selu(x),
        "hardtanh": lambda p, x: p.nn.functional.hardtanh(x, -0.5, 1.0),
        "hardsigmoid": lambda p, x: p.nn.functional.hardsigmoid(x, 0.25, 0.5),
        "hardsigmoid as it is": lambda p, x: p.nn.functional.hardsigmoid(x),
        "hardswish": lambda p, x: p.nn.functional.hardswish(x),
        "hardshrink": lambda p, x: p.nn.functional.hardshrink(x, 0.5),
        "softshrink": lambda p, x: p.nn.functional.softshrink(x, 0.5),
        "thresholded_relu": lambda p, x: p.nn.functional.thresholded_relu(x, 0.5),
        "softsign": lambda p, x: p.nn.functional.softsign(x),
        "tanhshrink": lambda p, x: p.nn.functional.tanhshrink(x),
        "mish": lambda p, x: p.nn.functional.mish(x),
        "swish": lambda p, x: p.nn.functional.swish(x),
        "log_sigmoid": lambda p, x: p.nn.functional.log_sigmoid(x),
        "softplus": lambda p, x: p.nn.functional.softplus(x),
        "softplus with options": lambda p, x: p.nn.functional.softplus(x, 0.5, 1.5),
        "glu": lambda p, x: p.nn.functional.glu(x),
        "glu of columns": lambda p, x: p.nn.functional.glu(p.transpose(x, [1, 0]), 0),
        "relu_": lambda p, x: p.nn.functional.relu_(x),
        "normalize": lambda p, x: p.nn.functional.normalize(x + 0.25),
        "normalize by 1": lambda p, x: p.nn.functional.normalize(x + 0.25, p=1.0, axis=0),
        "normalize by 3": lambda p, x: p.nn.functional.normalize(x + 0.25, p=3, axis=-1),
        "alpha_dropout": lambda p, x: p.nn.functional.alpha_dropout(x, 0.25, training=False),
    }  # fmt: skip
    layers = {
        "ELU": (0.75,), "CELU": (0.5,), "SELU": (), "GELU": (True,), "GLU": (0,), "Hardshrink": (0.75,),
        "Hardsigmoid": (), "Hardswish": (), "Hardtanh": (-0.75, 0.5),
        "LogSigmoid": (),
        "LogSoftmax": (0,), "Mish": (), "ReLU6": (), "Sigmoid": (), "Silu": (), "Softmax": (0,),
        "Softplus": (2.0, 3.0), "Softshrink": (0.25,), "Softsign": (), "Swish": (), "Tanh": (), "Tanhshrink": (),
        "ThresholdedReLU": (0.75,), "Identity": (7,), "Flatten": (0,), "PReLU": (1, 0.5),
    }  # fmt: skip
    made = {f"nn.{name}": _layer(name, arguments) for name, arguments in layers.items() if name != "GLU"}
    cases: dict[str, Made] = {name: (call, (X,)) for name, call in {**calls, **made}.items()}
    cases["nn.GLU"] = _layer("GLU", (0,)), (X[:2],)
    cases["maxout"] = (lambda p, x: p.nn.functional.maxout(x, 2)), (PICTURE,)
    cases["maxout of the last axis"] = (
        lambda p, x: p.nn.functional.maxout(p.transpose(x, [0, 2, 3, 1]), 4, -1), (PICTURE,)
    )  # fmt: skip
    cases["nn.Maxout"] = _layer("Maxout", (4,)), (PICTURE,)
    cases["prelu"] = (lambda p, x, w: p.nn.functional.prelu(x, w)), (X, WEIGHT)
    cases["prelu of the last axis"] = (
        lambda p, x, w: p.nn.functional.prelu(p.transpose(x, [0, 2, 1]), w, data_format="NLC"), (CUBE, WEIGHT)
    )  # fmt: skip
    # At 0, where two slopes meet, Paddle takes the other one.
    cases["leaky_relu"] = (lambda p, x: p.nn.functional.leaky_relu(x, 0.25)), (NOT_0,)
    cases["nn.LeakyReLU"] = _layer("LeakyReLU", (0.125,)), (NOT_0,)
    cases["rrelu"] = (lambda p, x: p.nn.functional.rrelu(x, 0.25, 0.5, training=False)), (NOT_0,)
    cases["nn.Unflatten"] = _layer("Unflatten", (1, [2, -1])), (X,)
    cases["nn.Softmax2D"] = _layer("Softmax2D", ()), (PICTURE,)
    return cases


def _layer(name: str, arguments: tuple[Any, ...], **options: Any) -> Callable[..., Any]:
    return lambda p, *inputs: getattr(p.nn, name)(*arguments, **options)(*inputs)


def _loss(name: str, **options: Any) -> Callable[..., Any]:
    return lambda p, *inputs: getattr(p.nn.functional, name)(*inputs, **options)


LOSSES: dict[str, tuple[str, tuple[np.ndarray, ...], tuple[dict[str, Any], ...]]] = {
    "l1_loss": ("L1Loss", (X, Y), ({},)),
    "smooth_l1_loss": ("SmoothL1Loss", (X, Y), ({}, {"delta": 2.5})),
    "mse_loss": ("MSELoss", (X, Y), ({},)),
    "kl_div": ("KLDivLoss", (np.log(P), P[::-1] * YES), ({}, {"reduction": "batchmean"})),
    "poisson_nll_loss": ("PoissonNLLLoss", (Y, X[::-1] + 7), ({}, {"full": True})),
    "gaussian_nll_loss": ("GaussianNLLLoss", (X, Y, P), ({}, {"full": True})),
    "binary_cross_entropy": ("BCELoss", (P, YES), ({},)),
    "binary_cross_entropy_with_logits": ("BCEWithLogitsLoss", (X, YES), ({},)),
    "soft_margin_loss": ("SoftMarginLoss", (Y, SIGNS), ({},)),
    "multi_label_soft_margin_loss": ("MultiLabelSoftMarginLoss", (X, YES), ({},)),
    "sigmoid_focal_loss": ("", (X, YES), ({}, {"alpha": 0.5, "gamma": 3.0, "reduction": "mean"})),
    "margin_ranking_loss": ("MarginRankingLoss", (X, Y, SIGNS), ({}, {"margin": 0.5})),
    "hinge_embedding_loss": ("HingeEmbeddingLoss", (Y, SIGNS), ({}, {"margin": 2.0})),
    "cosine_embedding_loss": ("CosineEmbeddingLoss", (X, Y, SIGNS[:, 0]), ({}, {"margin": -0.5})),
    "triplet_margin_loss": ("TripletMarginLoss", (X, Y, Z), ({}, {"margin": 9.0, "swap": True}, {"p": 1})),
    "multi_margin_loss": ("MultiMarginLoss", (X, NUMBERS), ({}, {"p": 2, "margin": 2.5})),
    "nll_loss": ("NLLLoss", (np.log(P), NUMBERS), ({}, {"ignore_index": 0})),
}


def losses() -> dict[str, Made]:
    cases: dict[str, Made] = {}
    for name, (layer, inputs, variants) in LOSSES.items():
        for options in variants:
            for reduction in [options["reduction"]] if "reduction" in options else ["mean", "sum", "none"]:
                given = {**options, "reduction": reduction}
                title = ", ".join(f"{k}={v}" for k, v in given.items())
                cases[f"{name}({title})"] = _loss(name, **given), inputs
            if layer and name != "sigmoid_focal_loss":
                title = ", ".join(f"{k}={v}" for k, v in options.items())
                cases[f"nn.{layer}({title})"] = _layer(layer, (), **options), inputs
    return cases | {
        "binary_cross_entropy with weight": (
            lambda p, x, y, w: p.nn.functional.binary_cross_entropy(x, y, w, "sum"), (P, YES, WEIGHT)),
        "binary_cross_entropy_with_logits with weights": (
            lambda p, x, y, w: p.nn.functional.binary_cross_entropy_with_logits(x, y, w, "sum", w), (X, YES, WEIGHT)),
        "multi_label_soft_margin_loss with weight": (
            lambda p, x, y, w: p.nn.functional.multi_label_soft_margin_loss(x, y, w, "none"), (X, YES, WEIGHT)),
        "multi_margin_loss with weight": (
            lambda p, x, y, w: p.nn.functional.multi_margin_loss(x, y, weight=w), (X, NUMBERS, WEIGHT)),
        "nll_loss with weight": (
            lambda p, x, y, w: p.nn.functional.nll_loss(x, y, w), (np.log(P), NUMBERS, WEIGHT)),
        "nll_loss of rows of rows": (
            lambda p, x, y: p.nn.functional.nll_loss(x, y, reduction="none"),
            (CUBE, np.array([[0, 1, 3], [2, 2, 1]]))),
        "log_loss": (lambda p, x, y: p.nn.functional.log_loss(x, y), (np.float32(P[:, :1]), np.float32(YES[:, :1]))),
        "npair_loss": (
            lambda p, x, y, n: p.nn.functional.npair_loss(x, y, n),
            (np.float32(Y), np.float32(Z), np.float32([1, 0, 1]))),
        "cross_entropy smoothed": (
            lambda p, x, y: p.nn.functional.cross_entropy(x, y, label_smoothing=0.25), (Y, NUMBERS)),
        "cross_entropy smoothed, of probabilities": (
            lambda p, x, y: p.nn.functional.cross_entropy(x, y, label_smoothing=0.25), (Y, YES / 2)),
        "dice_loss": (lambda p, x, y: p.nn.functional.dice_loss(x, y), (P, NUMBERS[:, None])),
        "cosine_similarity": (lambda p, x, y: p.nn.functional.cosine_similarity(x, y, axis=0), (Y, Z)),
        "nn.CosineSimilarity": (lambda p, x, y: p.nn.CosineSimilarity()(x, y), (Y, Z)),
        "pairwise_distance": (lambda p, x, y: p.nn.functional.pairwise_distance(x, y), (Y, Z)),
        "nn.PairwiseDistance": (lambda p, x, y: p.nn.PairwiseDistance(1.0, 0.0, True)(x, y), (Y, Z)),
        "square_error_cost": (lambda p, x, y: p.nn.functional.square_error_cost(x, y), (Y, Z)),
    }  # fmt: skip


def maps() -> dict[str, Made]:
    """With weights: those of layers are constants."""

    def constant(p: Any, value: float) -> Any:
        return p.ParamAttr(initializer=p.nn.initializer.Constant(value))

    weights = np.cos(np.arange(40.0)).reshape(5, 4, 2)
    return {
        "bilinear": (lambda p, x, y, w: p.nn.functional.bilinear(x, y, w), (Y, RANKED, weights)),
        "nn.Bilinear": (
            lambda p, x, y: p.nn.Bilinear(4, 2, 3, constant(p, 0.5), constant(p, 0.25))(x, y), (Y, RANKED)),
        "static.nn.bilinear_tensor_product": (
            lambda p, x, y: p.static.nn.bilinear_tensor_product(x, y, 3, "tanh", param_attr=constant(p, 0.5)),
            (Y, RANKED)),
        "nn.BatchNorm1D": (lambda p, x: p.nn.BatchNorm1D(4)(x), (X,)),
        "nn.BatchNorm1D of [N, C, L]": (
            lambda p, x: p.nn.BatchNorm1D(4, 0.5, 2**-10, constant(p, 1.5), constant(p, 0.75))(x), (CUBE,)),
        "nn.BatchNorm2D": (lambda p, x: p.nn.BatchNorm2D(4)(x), (PICTURE,)),
        "nn.BatchNorm1D with global statistics": (
            lambda p, x: p.nn.BatchNorm1D(4, use_global_stats=True)(x), (X,)),
        "nn.GroupNorm": (lambda p, x: p.nn.GroupNorm(2, 4, weight_attr=constant(p, 1.5))(x), (PICTURE,)),
        "nn.InstanceNorm1D": (lambda p, x: p.nn.InstanceNorm1D(4)(x), (CUBE,)),
        "nn.InstanceNorm2D": (lambda p, x: p.nn.InstanceNorm2D(4, 0.25)(x), (PICTURE,)),
        "nn.LayerNorm": (lambda p, x: p.nn.LayerNorm(4)(x), (X,)),
        "static.nn.embedding": (
            lambda p, x: p.static.nn.embedding(x, [4, 3], param_attr=constant(p, 0.5), dtype="float64"), (NUMBERS,)),
        "static.nn.layer_norm": (
            lambda p, x: p.static.nn.layer_norm(x, param_attr=constant(p, 1.5), act="relu"), (CUBE,)),
        "static.nn.batch_norm": (lambda p, x: p.static.nn.batch_norm(x, act="tanh"), (PICTURE,)),
        "static.nn.batch_norm in inference": (lambda p, x: p.static.nn.batch_norm(x, is_test=True), (X,)),
        "static.nn.batch_norm NHWC": (lambda p, x: p.static.nn.batch_norm(x, data_layout="NHWC"), (PICTURE,)),
        "static.nn.group_norm": (
            lambda p, x: p.static.nn.group_norm(x, 2, param_attr=constant(p, 1.5)), (PICTURE,)),
        "static.nn.group_norm NHWC": (
            lambda p, x: p.static.nn.group_norm(x, 1, data_layout="NHWC"), (PICTURE,)),
        "static.nn.instance_norm": (lambda p, x: p.static.nn.instance_norm(x), (PICTURE,)),
        "static.nn.prelu all": (lambda p, x: p.static.nn.prelu(x, "all"), (X,)),
        "static.nn.prelu channel": (
            lambda p, x: p.static.nn.prelu(x, "channel", constant(p, 0.5)), (PICTURE,)),
        "static.nn.prelu element": (lambda p, x: p.static.nn.prelu(x, "element"), (CUBE,)),
    }  # fmt: skip


# Paddle keeps attributes and constants in float32, so 0.1, 1e-5 or selu's numbers are others than here.
NEAR = {
    "selu": 1e-5, "nn.SELU": 1e-5, "ardsigmoid": 1e-8, "ormalize": 1e-6, "full=True": 1e-7, "Norm": 1e-8, "_norm": 1e-8,
}  # fmt: skip
SLIPS = {
    "binary_cross_entropy_with_logits with weights": "pos_weight multiplies only log(1 + exp(-|x|)), not the loss",
    "static.nn.group_norm NHWC": "the gradient is wrong; the same numbers as NCHW have another one",
}
# Paddle gives labels no gradient, or only that of their factors; here it is the derivative, as for soft labels.
LABELS = ("kl_div", "nn.KLDivLoss", "binary_cross_entropy", "nn.BCE", "sigmoid_focal_loss", "nll_loss with weight",
          "log_loss", "cross_entropy")  # fmt: skip
CASES = {
    name: Gradients(*made, of=1 if name.startswith(LABELS) else None)
    for name, made in (activations() | losses() | maps()).items()
}
