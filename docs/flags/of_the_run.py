"""A small program for each flag of the run, and what shows that the flag does something: the text of its page."""

from __future__ import annotations

import numpy as np

import minigraph as mg
from minigraph.nn import functional as F

VALUES = {  # the two values that a page shows
    "enable_inplace": (False, True),
    "memory_optimize": (False, True),
    "multi_tensor_mode": ("table", "struct4k"),
    "attention_kernel": ("exact", "auto"),
    "check_nan_inf": (False, True),
}
UNSEEN = {  # flags that only a GPU shows -> where to read on
    "allow_cuda_graph_capture": "[gpu.md](../gpu.md) says what a captured step is, "
    "[how_a_step_runs.md](../how_a_step_runs.md) when it is captured.",
    "autotune": "[gpu.md](../gpu.md) says which ways there are. `explain()` says which one was taken.",
}


def enable_inplace(strategy):
    x = mg.static.data("x", [256, 1024])
    y = mg.tanh(mg.exp(mg.tanh(x)))
    step = mg.static.CompiledProgram(mg.static.default_main_program(), strategy)
    return step.memory_report(fetch_list=[y], place=mg.CPUPlace())


def memory_optimize(strategy):
    x = mg.static.data("x", [256, 1024])
    y = x
    for _ in range(3):
        y = F.gelu(mg.matmul(y, mg.static.create_parameter([1024, 1024], "float32")))
    step = mg.static.CompiledProgram(mg.static.default_main_program(), strategy)
    return step.memory_report(fetch_list=[y], place=mg.CPUPlace())


def multi_tensor_mode(strategy):
    x = mg.static.data("x", [32, 64])
    for _ in range(40):
        x = mg.nn.Linear(64, 64)(x)
    loss = mg.mean(x)
    mg.optimizer.Momentum(0.1).minimize(loss)
    strategy.fuse_all_optimizer_ops = True
    step = mg.static.CompiledProgram(mg.static.default_main_program(), strategy)
    return step.kernels(fetch_list=[loss]).of("fused_momentum")


def attention_kernel(strategy):
    q, k, v = (mg.static.data(name, [2, 8, 512, 64], "bfloat16") for name in "qkv")
    out = mg.matmul(F.softmax(mg.matmul(q, k, transpose_y=True) * 0.125), v)
    strategy.memory_efficient_attention = True
    step = mg.static.CompiledProgram(mg.static.default_main_program(), strategy)
    return step.kernels(fetch_list=[out])


def check_nan_inf(strategy):
    x = mg.static.data("x", [3])
    y = mg.exp(mg.log(x))
    step = mg.static.CompiledProgram(mg.static.default_main_program(), strategy)
    feed = {"x": np.array([1, 0, -1], "float32")}
    with np.errstate(invalid="ignore", divide="ignore"):
        try:
            return mg.static.Executor(mg.CPUPlace()).run(step, feed, [y])[0]
        except mg.MinigraphError as error:
            return error
