"""Two transformer blocks without names of `nn`: their values and the gradients of all that they read, fed."""

from __future__ import annotations

from typing import Any

import numpy as np

import minigraph as mg
from minigraph.nn.functional.attention import attend
from minigraph.program.backward import gradients
from minigraph.types import as_dtype
from tests.support.random_chains import Chain

B, S, H, D = 4, 256, 2, 32  # 1024 rows of 64
W = H * D


def residual_blocks(dtype: str = "float64", blocks: int = 2, before: bool = True, seed: int = 0) -> Chain:
    """x + attention(norm(x)), then x + layers(norm(x)); `before` False puts each norm behind its addition."""
    rng, feeds = np.random.default_rng(seed), dict[str, np.ndarray]()
    main = mg.static.Program("blocks")
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():

        def data(*shape: int, scale: float = 1.0, around: float = 0.0) -> Any:
            name = f"d{len(feeds)}"
            feeds[name] = (rng.normal(size=shape) * scale + around).astype(as_dtype(dtype))
            v = mg.static.data(name, list(shape), dtype)
            v.stop_gradient = False
            return v

        def linear(x: Any, n: int) -> Any:
            k = x.shape[-1]
            return mg.matmul(x, data(k, n, scale=k**-0.5)) + data(n, scale=0.1)

        def norm(x: Any) -> Any:
            return mg.nn.functional.layer_norm(x, W, data(W, scale=0.1, around=1.0), data(W, scale=0.1))

        def attention(x: Any) -> Any:
            q, k, v = (mg.reshape(linear(x, W), [B, S, H, D]) for _ in range(3))
            return linear(mg.reshape(attend("blocks", q, k, v, layout="bshd", causal=True), [B, S, W]), W)

        def layers(x: Any) -> Any:
            return linear(mg.nn.functional.gelu(linear(x, 2 * W), True), W)

        x = data(B, S, W)
        for part in (attention, layers) * blocks:
            x = x + part(norm(x)) if before else norm(x + part(x))
        out = norm(x) if before else x
        given = [main.global_block().var(name) for name in feeds]
        target = data(B, S, W)
        found = gradients([mg.sum(out * target)], given)
    return Chain(main, feeds, [out.name, *(g.name for g in found)])
