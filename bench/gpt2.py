"""GPT-2's training step for bench.gpu_gpt2: the same network with minigraph's layers, in PyTorch and in JAX.

Dropout is 0, as in pretraining. minigraph has float32 parameters that `static.amp.decorate` casts; PyTorch has
autocast, scaled_dot_product_attention, one product for Q, K and V, and the fused AdamW; JAX casts by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .gpu_steps import StepRow

WORDS = 50304  # GPT-2's 50,257, up to the next multiple of 128
BLOCK = 1024
IN_LAYER = ("q", "k", "v", "out", "up", "down")


@dataclass(frozen=True)
class Network:
    """`batch` texts of `block` numbers; four times as wide inside a layer."""

    layers: int
    width: int
    heads: int
    batch: int
    block: int = BLOCK
    words: int = WORDS

    @property
    def tokens(self) -> int:
        return self.batch * self.block

    @property
    def product_flops(self) -> float:
        """Of forward and backward; the last layer shares its table with the embedding."""
        return 6.0 * self.tokens * (12 * self.layers * self.width**2 + self.words * self.width)

    @property
    def attention_flops(self) -> float:
        """Of forward and backward, 3.5 times forward; what the mask hides is not counted."""
        return 3.5 * 4 * self.batch * self.layers * self.block**2 * self.width / 2

    def weights(self) -> list[tuple[str, tuple[int, ...]]]:
        """In the order in which `static` makes them: the norm behind the last layer comes with the first layer."""
        last = [("scale", (self.width,)), ("shift", (self.width,))]
        first, *others = (self._layer() for _ in range(self.layers))
        tables = [("table", (self.words, self.width)), ("places", (self.block, self.width))]
        return [*tables, *first, *last, *(one for layer in others for one in layer)]

    def _layer(self) -> list[tuple[str, tuple[int, ...]]]:
        w, made = self.width, list[tuple[str, tuple[int, ...]]]()
        for name in IN_LAYER:
            sizes = {"up": (w, 4 * w), "down": (4 * w, w)}.get(name, (w, w))
            made += [(name, sizes), (f"{name} shift", sizes[1:])]
        return [*made, *[("scale", (w,)), ("shift", (w,))] * 2]

    def packed(self, values: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """The weights in the order of PyTorch's and JAX's programs, Q, K and V side by side."""
        one = len(self._layer())
        table, places, *rest = values
        layers = [rest[:one], *(rest[i : i + one] for i in range(one + 2, len(rest), one))]
        yield from (table, places)
        for layer in layers:
            yield np.concatenate(layer[0:6:2], axis=1)
            yield np.concatenate(layer[1:6:2])
            yield from layer[6:]
        yield from rest[one : one + 2]


@cache
def values_of(network: Network, seed: int = 2) -> list[np.ndarray]:
    """The weights in the order of `Network.weights`: normal with 0.02, scales 1, the rest 0."""
    rng, made = np.random.default_rng(seed), list[np.ndarray]()
    for name, shape in network.weights():
        if len(shape) == 2:
            made.append(rng.standard_normal(shape, np.float32) * np.float32(0.02))
        else:
            made.append(np.full(shape, name == "scale", np.float32))
    return made


@dataclass(frozen=True)
class GptRow(StepRow):
    """A StepRow whose parameters are made once, and `packed` for the peers.

    texts  numbers of a text of which batches are cut at random places, `steps` of them; random numbers for None
    """

    network: Network = Network(1, 64, 1, 1)
    packed: bool = False
    seed: int = 2
    texts: np.ndarray | None = None
    steps: int = 4

    def parameters(self) -> list[np.ndarray]:
        values = values_of(self.network, self.seed)
        return list(self.network.packed(values)) if self.packed else values

    def batches(self, count: int = 4) -> list[dict[str, np.ndarray]]:
        if self.texts is None:
            return super().batches(count)
        rng, block, found = np.random.default_rng(1), self.network.block + 1, list[dict[str, np.ndarray]]()
        for _ in range(self.steps):
            starts = rng.integers(0, len(self.texts) - block, self.network.batch)
            found.append({"words": np.stack([self.texts[s : s + block] for s in starts]).astype(np.int64)})
        return found


def row(name: str, title: str, network: Network, dtype: str = "bfloat16", packed: bool = False) -> GptRow:
    def batch(rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"words": rng.integers(0, network.words, (network.batch, network.block + 1))}

    def static(mg: Any, v: Mapping[str, Any], drop: float) -> Any:
        return static_loss(mg, network, v["words"])

    def torch(torch: Any, p: Sequence[Any], v: Mapping[str, Any], drop: float) -> Any:
        return torch_loss(torch, network, p, v["words"])

    def jax(jax: Any, p: Sequence[Any], v: Mapping[str, Any], drop: float) -> Any:
        return jax_loss(jax, network, p, v["words"])

    amp = {"level": "O2", "dtype": dtype}
    return GptRow(
        name, title, "float32", network.weights(), batch, static, torch, jax, trains=True, tolerance=2e-2, masters=True,
        flops=network.product_flops + network.attention_flops, amp=amp, network=network, packed=packed,
    )  # fmt: skip


def static_loss(mg: Any, n: Network, words: Any) -> Any:
    """With minigraph: what examples/train_gpt.py builds, without dropout."""
    F = mg.nn.functional
    x = mg.nn.Embedding(n.words, n.width)(words[:, :-1]) + mg.nn.Embedding(n.block, n.width)(mg.arange(n.block))
    layer = mg.nn.TransformerEncoderLayer(
        n.width, n.heads, 4 * n.width, 0.0, lambda x: F.gelu(x, True), normalize_before=True
    )
    causal = mg.triu(mg.full([n.block, n.block], -math.inf), 1)
    hidden = mg.nn.TransformerEncoder(layer, n.layers, mg.nn.LayerNorm(n.width))(x, causal)
    table = words.block.program.all_parameters()[0]
    scores = mg.matmul(mg.reshape(hidden, [-1, n.width]), table, transpose_y=True)
    return F.cross_entropy(scores, mg.reshape(words[:, 1:], [-1]))


def torch_loss(torch: Any, n: Network, p: Sequence[Any], words: Any) -> Any:
    F, given, wanted = torch.nn.functional, words[:, :-1], words[:, 1:]
    p = iter(p)
    table, places = next(p), next(p)
    x = F.embedding(given, table) + places
    for _ in range(n.layers):
        qkv, qkv_b, out, out_b, up, up_b, down, down_b, s1, b1, s2, b2 = (next(p) for _ in range(12))
        h = F.linear(F.layer_norm(x, (n.width,), s1, b1), qkv.T, qkv_b)
        q, k, v = (t.view(n.batch, n.block, n.heads, -1).transpose(1, 2) for t in h.split(n.width, -1))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n.batch, n.block, n.width)
        x = x + F.linear(h, out.T, out_b)
        h = F.linear(F.layer_norm(x, (n.width,), s2, b2), up.T, up_b)
        x = x + F.linear(F.gelu(h, approximate="tanh"), down.T, down_b)
    x = F.layer_norm(x, (n.width,), next(p), next(p))
    return F.cross_entropy(F.linear(x, table).view(-1, n.words), wanted.reshape(-1))


def jax_loss(jax: Any, n: Network, p: Sequence[Any], words: Any) -> Any:
    jnp, half = jax.numpy, "bfloat16"
    p = iter(p)
    table, places = next(p), next(p)

    def norm(x: Any, scale: Any, shift: Any) -> Any:
        wide = x.astype("float32")
        centred = wide - wide.mean(-1, keepdims=True)
        factor = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale
        return (centred * factor + shift).astype(half)

    def linear(x: Any, w: Any, b: Any) -> Any:
        return x @ w.astype(half) + b.astype(half)

    x = (table[words[:, :-1]] + places).astype(half)
    for _ in range(n.layers):
        qkv, qkv_b, out, out_b, up, up_b, down, down_b, s1, b1, s2, b2 = (next(p) for _ in range(12))
        q, k, v = jnp.split(linear(norm(x, s1, b1), qkv, qkv_b), 3, axis=-1)
        q, k, v = (t.reshape(n.batch, n.block, n.heads, -1) for t in (q, k, v))
        kernel = "cudnn" if jax.default_backend() == "gpu" else None
        h = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=kernel)
        x = x + linear(h.reshape(n.batch, n.block, n.width), out, out_b)
        x = x + linear(jax.nn.gelu(linear(norm(x, s2, b2), up, up_b)), down, down_b)
    scores = (norm(x, next(p), next(p)) @ table.T.astype(half)).astype("float32")
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), words[:, 1:, None], axis=-1)
    return -chosen.mean()
