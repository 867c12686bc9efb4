"""Whole steps on a GPU against PyTorch and JAX: training steps, and forward plus backward.

    python -m bench gpu_steps --peers torch,jax [--only mlp]

All arms run in one process, get the same parameters and batches (already on the GPU), and must agree in what
they compute before they are timed. A figure is the wall time of many steps back to back, one wait at the end,
median of turns that the arms take in alternation, with a rest before each turn and an eighth as many steps before its
clock starts; "no rest" is after a long load.

Peak memory is the most that is needed at one time of a step beside its inputs, parameters and states, counted
alike: gradients count from when they are written, feeds and what was there before the step do not. It is
what is live in minigraph's arena and of its gradients (`arena_mib` is the whole arena, which is taken once),
PyTorch's high-water mark above what was allocated before, without gradients of an earlier step, and XLA's
temporaries and outputs, which it takes as one. The workspaces of products are apart: `peak_mib` has none of
them, `peak_with_workspaces_mib` has, PyTorch's being freed before that step so that the step takes them
again. XLA's figure cannot be taken without.

Host time is what one step keeps the host while the GPU is not the bottleneck: bursts of as many steps as its queue
takes (64 graphs; 8 steps where kernels are launched one by one), each from an idle GPU. Feeds lie on the GPU, but for
"host feeds", where a step waits for its staging memory, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
RATE, DECAY, EPSILON, BETAS = 1e-3, 0.01, 1e-8, (0.9, 0.999)


@dataclass(frozen=True)
class StepRow:
    """One row of the table.

    weights     (name, shape) of the parameters in the order in which `static` makes them
    batch       rng -> {name: array}; float arrays in float32, cast to `dtype` by the arms
    static      (mg, {name: data variable}, drop) -> loss; makes parameters by layers
    torch, jax  (framework, parameters, batch, drop) -> loss with the same parameters in a list
    trains      whether AdamW updates the parameters; otherwise their gradients are the result
    drop        probability of dropout; the check runs without
    wrt         inputs whose gradient is wanted too
    tolerance   relative, on losses of three steps, or on norms of gradients
    asked       milliseconds
    """

    name: str
    title: str
    dtype: str
    weights: Sequence[tuple[str, tuple[int, ...]]]
    batch: Callable[[np.random.Generator], dict[str, np.ndarray]]
    static: Callable[..., Any]
    torch: Callable[..., Any]
    jax: Callable[..., Any]
    trains: bool
    tolerance: float
    asked: float | None = None
    drop: float = 0.0
    wrt: tuple[str, ...] = ()
    flops: float = 0.0
    masters: bool = False  # whether peers keep float32 parameters beside those of `dtype`
    without: Sequence[str] = ()  # kernels for products (product_kernels.py) that an arm of ours goes without
    amp: Mapping[str, Any] = field(default_factory=dict)  # for static.amp.decorate; PyTorch has autocast then
    amp: Mapping[str, Any] = field(default_factory=dict)  # for static.amp.decorate; PyTorch has autocast then
    note: str = field(default="")

    def parameters(self) -> list[np.ndarray]:
        """Weights as an initialiser makes them, biases small, scales near 1; float32."""
        rng = np.random.default_rng(2)
        made = []
        for name, shape in self.weights:
            normal = rng.normal(size=shape)
            if len(shape) == 2:
                made.append(normal * (1.0 / shape[0]) ** 0.5)
            else:
                made.append(1 + 0.1 * normal if name.endswith("scale") else 0.1 * normal)
        return [x.astype(np.float32) for x in made]

    def batches(self, count: int = 4) -> list[dict[str, np.ndarray]]:
        rng = np.random.default_rng(1)
        return [self.batch(rng) for _ in range(count)]


def linears(sizes: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
    return [
        part for i, (a, b) in enumerate(itertools.pairwise(sizes)) for part in ((f"w{i}", (a, b)), (f"b{i}", (b,)))
    ]


# MLP 784-1024-1024-10

MLP = (784, 1024, 1024, 10)


def mlp_batch(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"x": rng.normal(size=(256, MLP[0])).astype(np.float32), "y": rng.integers(0, 10, (256, 1))}


def mlp_static(mg: Any, v: Mapping[str, Any], drop: float) -> Any:
    h = v["x"]
    for i, (a, b) in enumerate(itertools.pairwise(MLP)):
        h = mg.nn.Linear(a, b)(h)
        h = mg.nn.functional.relu(h) if i < 2 else h
    return mg.nn.functional.cross_entropy(h, v["y"])


def mlp_torch(torch: Any, p: Sequence[Any], v: Mapping[str, Any], drop: float) -> Any:
    h = v["x"]
    for i in range(3):
        h = torch.addmm(p[2 * i + 1], h, p[2 * i])
        h = torch.relu(h) if i < 2 else h
    return torch.nn.functional.cross_entropy(h, v["y"][:, 0])


def mlp_jax(jax: Any, p: Sequence[Any], v: Mapping[str, Any], drop: float) -> Any:
    h = v["x"]
    for i in range(3):
        h = h @ p[2 * i] + p[2 * i + 1]
        h = jax.nn.relu(h) if i < 2 else h
    chosen = jax.numpy.take_along_axis(jax.nn.log_softmax(h), v["y"], axis=1)
    return -chosen.mean()


# MLP of four layers 4096 x 4096

WIDE = (4096,) * 5


def wide_batch(rng: np.random.Generator) -> dict[str, np.ndarray]:
    block = rng.normal(size=(1024, 4096)).astype(np.float32)
    return {name: np.concatenate([np.roll(block, 7 * i + k, axis=1) for i in range(8)]) for k, name in enumerate("xy")}


def wide_static(mg: Any, v: Mapping[str, Any], drop: float, approximate: bool = True) -> Any:
    h = v["x"]
    for i, (a, b) in enumerate(itertools.pairwise(WIDE)):
        h = mg.nn.Linear(a, b)(h)
        h = mg.nn.functional.gelu(h, approximate=approximate) if i < 3 else h
    return mg.mean(mg.square(h - v["y"]))


def wide_torch(torch: Any, p: Sequence[Any], v: Mapping[str, Any], drop: float, approximate: str = "tanh") -> Any:
    h = v["x"]
    for i in range(4):
        h = torch.addmm(p[2 * i + 1].to(h.dtype), h, p[2 * i].to(h.dtype))
        h = torch.nn.functional.gelu(h, approximate=approximate) if i < 3 else h
    return torch.nn.functional.mse_loss(h, v["y"])


def wide_jax(jax: Any, p: Sequence[Any], v: Mapping[str, Any], drop: float, approximate: bool = True) -> Any:
    h = v["x"]
    for i in range(4):
        h = h @ p[2 * i].astype(h.dtype) + p[2 * i + 1].astype(h.dtype)
        h = jax.nn.gelu(h, approximate=approximate) if i < 3 else h
    return jax.numpy.mean(jax.numpy.square(h - v["y"]).astype("float32"))


# Paddle's MultiFCLayer, hidden 768, 64 x 128 rows

HIDDEN = 768


def fc_batch(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "x": rng.normal(size=(64, 128, HIDDEN)).astype(np.float32),
        "matmul_y": (rng.normal(size=(1, HIDDEN, HIDDEN)) * HIDDEN**-0.5).astype(np.float32),
        "ele_y": rng.normal(size=(HIDDEN,)).astype(np.float32),
    }


def fc_static(mg: Any, v: Mapping[str, Any], drop: float) -> Any:
    one, two, three = (mg.nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
    relu = mg.nn.functional.relu
    h = two(relu(one(v["x"])))
    beside = mg.matmul(h, v["matmul_y"])
    h = mg.matmul(relu(three(h)), v["matmul_y"])
    return mg.mean(mg.add(relu(mg.add(h, v["ele_y"])), beside))


def fc_torch(torch: Any, p: Sequence[Any], v: Mapping[str, Any], drop: float) -> Any:
    linear = lambda h, i: torch.nn.functional.linear(h, p[2 * i].T, p[2 * i + 1])  # noqa: E731
    h = linear(torch.relu(linear(v["x"], 0)), 1)
    beside = torch.matmul(h, v["matmul_y"])
    h = torch.matmul(torch.relu(linear(h, 2)), v["matmul_y"])
    return (torch.relu(h + v["ele_y"]) + beside).mean()


def fc_jax(jax: Any, p: Sequence[Any], v: Mapping[str, Any], drop: float) -> Any:
    linear = lambda h, i: h @ p[2 * i] + p[2 * i + 1]  # noqa: E731
    h = linear(jax.nn.relu(linear(v["x"], 0)), 1)
    beside = h @ v["matmul_y"][0]
    h = jax.nn.relu(linear(h, 2)) @ v["matmul_y"][0]
    return (jax.nn.relu(h + v["ele_y"]) + beside).mean()


# feed-forward half of a transformer layer

WIDTH = 1024  # four times as wide between its layers


def ffn_batch(rng: np.random.Generator, rows: int = 8, width: int = WIDTH) -> dict[str, np.ndarray]:
    return {k: rng.normal(size=(rows, 1024, width)).astype(np.float32) for k in ("x", "d")}


def ffn_static(mg: Any, v: Mapping[str, Any], drop: float, approximate: bool = True) -> Any:
    width = v["x"].shape[-1]
    norm, up, down = mg.nn.LayerNorm(width), mg.nn.Linear(width, 4 * width), mg.nn.Linear(4 * width, width)
    h = down(mg.nn.functional.gelu(up(norm(v["x"])), approximate=approximate))
    h = mg.nn.functional.dropout(h, drop) if drop else h
    return mg.sum((h + v["x"]) * v["d"])


def ffn_torch(torch: Any, p: Sequence[Any], v: Mapping[str, Any], drop: float, approximate: str = "tanh") -> Any:
    F = torch.nn.functional
    h = F.layer_norm(v["x"], v["x"].shape[-1:], p[0], p[1])
    h = F.linear(F.gelu(F.linear(h, p[2].T, p[3]), approximate=approximate), p[4].T, p[5])
    h = F.dropout(h, drop) if drop else h
    return ((h + v["x"]) * v["d"]).sum()


def ffn_jax(jax: Any, p: Sequence[Any], v: Mapping[str, Any], drop: float, approximate: bool = True) -> Any:
    jnp, x = jax.numpy, v["x"]
    wide = x.astype("float32")
    centred = wide - wide.mean(-1, keepdims=True)
    normal = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    h = (normal * p[0].astype("float32") + p[1].astype("float32")).astype(x.dtype)
    h = jax.nn.gelu(h @ p[2] + p[3], approximate=approximate) @ p[4] + p[5]
    if drop:
        kept = jax.random.bernoulli(v["key"], 1 - drop, h.shape)
        h = jnp.where(kept, h / (1 - drop), 0).astype(h.dtype)
    return ((h + x) * v["d"]).sum()


FC = linears((HIDDEN,) * 4)


def ffn_weights(width: int = WIDTH) -> list[tuple[str, tuple[int, ...]]]:
    return [("scale", (width,)), ("shift", (width,)), *linears((width, 4 * width)), *linears((4 * width, width))]


ROWS = (
    StepRow(
        "mlp", "MLP 784-1024-1024-10, batch 256, AdamW, TF32", "float32", linears(MLP), mlp_batch, mlp_static,
        mlp_torch, mlp_jax, trains=True, tolerance=2e-3, asked=0.065, flops=2 * 256 * (784 * 2 + 1024 * 3 + 30) * 1024,
    ),
    StepRow(
        "mlp_4096", "MLP 4 x 4096, GELU(tanh), batch 8192, bfloat16, AdamW", "bfloat16", linears(WIDE), wide_batch,
        wide_static, wide_torch, wide_jax, trains=True, tolerance=2e-2, asked=4.7, flops=11 * 2 * 8192 * 4096**2,
        masters=True, note="minigraph has bfloat16 parameters, the peers float32 ones beside them",
    ),
    StepRow(
        "fc_bf16", "MultiFCLayer 768, 64 x 128, forward + backward, bfloat16", "bfloat16", FC, fc_batch, fc_static,
        fc_torch, fc_jax, trains=False, tolerance=2e-2, asked=0.30, flops=12 * 2 * 8192 * HIDDEN**2,
    ),
    StepRow(
        "fc_tf32", "MultiFCLayer 768, 64 x 128, forward + backward, TF32", "float32", FC, fc_batch, fc_static,
        fc_torch, fc_jax, trains=False, tolerance=5e-3, asked=0.45, flops=12 * 2 * 8192 * HIDDEN**2,
    ),
    StepRow(
        "ffn", "layer norm, 1024-4096-1024, GELU(tanh), dropout .1, residual; 8 x 1024 rows, fwd + bwd, bfloat16",
        "bfloat16", ffn_weights(), ffn_batch, ffn_static, ffn_torch, ffn_jax, trains=False, tolerance=2e-2, drop=0.1,
        wrt=("x",), flops=6 * 2 * 8192 * 4 * WIDTH**2,
    ),
)  # fmt: skip
