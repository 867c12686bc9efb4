"""A small program for each rewrite, the one on its page: what it returns is fetched."""

from __future__ import annotations

import minigraph as mg
from minigraph.nn import functional as F
from minigraph.program.reductions import reduce_gradients

ALSO = {  # what must be on as well for a flag to do something
    "fuse_activation_grad": {"fuse_gemm_epilogue": True},
    "fuse_parallel_linears": {"fuse_gemm_epilogue": True},
    "recompute_norms": {"fuse_gemm_epilogue": True},
    "recompute": {"recompute_segments": 2},
}


def memory_efficient_attention():
    q, k, v = (mg.static.data(name, [2, 4, 256, 64]) for name in "qkv")
    scores = mg.matmul(q, k, transpose_y=True) * 0.125
    return mg.matmul(F.softmax(scores), v)


def constant_folding():
    x = mg.static.data("x", [4, 3])
    weights = mg.full([3], 2.0) / 3.0
    return x * weights


def dead_code_elimination():
    x = mg.static.data("x", [4, 3])
    mg.log(x)  # nobody reads it
    return mg.exp(x)


def common_subexpression_elimination():
    x, y = mg.static.data("x", [4, 3]), mg.static.data("y", [4, 3])
    left = mg.exp(x) * y
    right = mg.exp(x) - y
    return left, right


def remove_redundant_cast():
    x = mg.static.data("x", [4, 3])
    wide = mg.cast(x, "float64")
    return mg.exp(mg.cast(wide, "float32"))


def remove_redundant_transpose():
    x = mg.static.data("x", [2, 3, 4])
    turned = mg.transpose(x, [0, 2, 1])
    return mg.exp(mg.transpose(turned, [0, 2, 1]))


def fuse_matmul_transpose():
    x, table = mg.static.data("x", [4, 8]), mg.static.data("table", [100, 8])
    return mg.matmul(x, mg.transpose(table, [1, 0]))


def fuse_linear_cross_entropy():
    x, y = mg.static.data("x", [512, 64]), mg.static.data("y", [512, 1], "int64")
    scores = mg.nn.Linear(64, 10_000)(x)
    return F.cross_entropy(scores, y)


def fuse_gemm_epilogue():
    x = mg.static.data("x", [32, 64])
    hidden = F.gelu(mg.nn.Linear(64, 256)(x))
    out = mg.nn.Linear(256, 10)(hidden)
    return out, *mg.static.gradients([out], mg.static.default_main_program().all_parameters())


def fuse_parallel_linears():
    x = mg.static.data("x", [8, 256, 64])
    q, k, v = (mg.reshape(mg.nn.Linear(64, 64)(x), [8, 256, 2, 32]) for _ in range(3))
    return F.scaled_dot_product_attention(q, k, v)


def fuse_grad_accumulation():
    x = mg.static.data("x", [32, 64])
    w = mg.static.create_parameter([64, 64], "float32", name="w")
    out = mg.matmul(mg.matmul(x, w), w)  # two uses of w, so its gradient is a sum
    return mg.static.gradients([out], [w])


def fuse_activation_grad():
    x = mg.static.data("x", [32, 64])
    hidden = F.relu(mg.nn.Linear(64, 64)(x))
    w = mg.static.create_parameter([64, 10], "float32", name="w")
    out = mg.matmul(hidden, w)  # no bias
    return mg.static.gradients([out], mg.static.default_main_program().all_parameters())


def fuse_adamw():
    loss = mg.mean(mg.nn.Linear(8, 8)(mg.static.data("x", [4, 8])))
    mg.optimizer.AdamW(1e-3).minimize(loss)
    return loss


def fuse_all_optimizer_ops():
    loss = mg.mean(mg.nn.Linear(8, 8)(mg.static.data("x", [4, 8])))
    mg.optimizer.Momentum(0.1).minimize(loss)
    return loss


def foreach_optimizer_ops():
    loss = mg.mean(mg.nn.Linear(8, 8)(mg.static.data("x", [4, 8])))
    mg.optimizer.Momentum(0.1).minimize(loss)
    return loss


def fuse_foreach():
    inputs = [mg.static.data(f"x{n}", [n]) for n in (3, 5, 7)]
    return [mg.tanh(x * 0.5) for x in inputs]


def recompute_norms():
    x = mg.static.data("x", [4, 8])
    x.stop_gradient = False
    layer = mg.nn.Linear(8, 8)
    out = layer(F.layer_norm(mg.tanh(x), 8))
    return mg.static.gradients([mg.sum(out)], [x, layer.weight])


def fuse_elementwise():
    x, y = mg.static.data("x", [32, 64]), mg.static.data("y", [32, 64])
    return mg.tanh(x * y + 1.0) * y


def recompute():
    x = h = mg.static.data("x", [32, 64])
    x.stop_gradient = False
    for _ in range(4):
        h = F.silu(h)
    return mg.static.gradients([h], [x])


def fuse_all_reduce_ops():
    loss = mg.mean(mg.nn.Linear(8, 8)(mg.static.data("x", [4, 8])))
    mg.optimizer.Momentum(0.1).minimize(loss)
    reduce_gradients(mg.static.default_main_program(), loss.name, ranks=2)  # as with_data_parallel does
    return loss
