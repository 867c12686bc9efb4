"""Which operators compute in 16 bits: always, where their inputs do, or never.

    white   products: all of the time, and their sums are kept in float32
    gray    moving elements, and what computes an element in float32 and rounds it once: as the inputs
    black   all others: sums over many elements, logarithms, powers, losses

Every kernel here adds in float32, so norms, softmax and the sight of attention lose only one rounding
of their results; level O2 counts them as gray. Losses and sums stay in float32 at both levels: a mean
of a batch in float16 has three digits, and the scaled gradient of one may overflow by itself.
"""

from __future__ import annotations


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


WHITE = _set("matmul fused_gemm_epilogue memory_efficient_attention fused_linear_cross_entropy")

GRAY = (
    # as in Paddle
    _set("elementwise_add elementwise_sub elementwise_mul elementwise_div elementwise_max elementwise_min tanh sigmoid")
    | _set("relu leaky_relu dropout scale sign stack slice transpose reshape gather concat split")
    # what moves or chooses elements
    | _set("assign expand tile squeeze unsqueeze flatten tril_triu where clip abs fmax fmin reduce_max reduce_min sum")
    | _set("fill_any_like print stop_gradient")
    # activations, computed in float32 and rounded once
    | _set("gelu silu elu hardtanh softsign erf")
)
GRAY_O2 = _set("layer_norm softmax log_softmax embedding")

KEPT_WIDE = {"layer_norm": _set("Scale Bias")}  # slots that stay float32 beside 16-bit ones

BLACK = (
    _set("tan acos asin sinh cosh atanh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt pow square reduce_sum")
    | _set("reduce_mean reduce_prod cumsum p_norm squared_l2_norm layer_norm softmax log_softmax softplus embedding")
    | _set("softmax_with_cross_entropy sigmoid_cross_entropy_with_logits bce_loss")
)

PADDLES = {  # operators that have another name there
    "matmul_v2": "matmul", "mul": "matmul", "lookup_table": "embedding", "lookup_table_v2": "embedding",
    "mean": "reduce_mean", "reshape2": "reshape", "transpose2": "transpose", "flatten2": "flatten",
    "flatten_contiguous_range": "flatten", "squeeze2": "squeeze", "unsqueeze2": "unsqueeze",
    "expand_v2": "expand", "expand_as_v2": "expand", "pnorm": "p_norm",
    "cross_entropy": "softmax_with_cross_entropy", "cross_entropy2": "softmax_with_cross_entropy",
}  # fmt: skip

# operators of Paddle's lists that are not here; naming them has no effect
ELSEWHERE = (
    _set("conv2d depthwise_conv2d einsum pool2d pool3d batch_norm sync_batch_norm instance_norm group_norm nll_loss")
    | _set("cumprod dist frobenius_norm renorm softmin tanh_shrink huber_loss triplet_margin_loss log_loss")
    | _set("hsigmoid_loss margin_cross_entropy c_softmax_with_cross_entropy scatter top_k relu6 soft_relu unstack rank")
    | _set("linear_interp_v2 nearest_interp_v2 bilinear_interp_v2 bicubic_interp_v2 trilinear_interp_v2")
    | _set("max_pool2d_with_index uniform_random fused_attention fused_feedforward resnet_unit")
)
