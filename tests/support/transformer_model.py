"""A small GPT of nn's blocks: tied embeddings, positions, a causal mask, AdamW with clipping."""

from __future__ import annotations

from typing import Any

import numpy as np

import minigraph as mg
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor

WORDS, WIDTH, HEADS, TEXTS, LENGTH, LAYERS = 60, 16, 2, 3, 8, 2


def language_model(
    normalize_before: bool, dropout: float = 0.1, dtype: str = "float64", optimizer: Any = None
) -> tuple[Any, Any, Any]:
    """(program, startup, loss); `optimizer` is made by a function of AdamW and of what the layers hand on."""
    main, startup = mg.static.Program(), mg.static.Program()
    main.random_seed = startup.random_seed = 5
    before = mg.get_default_dtype()
    mg.set_default_dtype(dtype)
    with mg.static.program_guard(main, startup), mg.utils.unique_name.guard():
        words = mg.static.data("words", [TEXTS, LENGTH + 1], "int64")
        table, places = mg.nn.Embedding(WORDS, WIDTH), mg.nn.Embedding(LENGTH, WIDTH)
        x = table(words[:, :-1]) + places(mg.arange(LENGTH))
        layer = mg.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 32, dropout, "gelu", normalize_before=normalize_before
        )
        norm = mg.nn.LayerNorm(WIDTH) if normalize_before else None
        mask = mg.triu(mg.full([LENGTH, LENGTH], -np.inf), 1)
        stack = mg.nn.TransformerEncoder(layer, LAYERS, norm)
        first = stack.layers[0](x, mask)
        h = stack.layers[1](first, mask)
        h = h if norm is None else norm(h)
        scores = mg.matmul(mg.reshape(h, [-1, WIDTH]), table.weight, transpose_y=True)
        loss = mg.nn.functional.cross_entropy(scores, mg.reshape(words[:, 1:], [-1]))
        adamw = mg.optimizer.AdamW(1e-2, grad_clip=mg.nn.ClipGradByGlobalNorm(1.0))
        (adamw if optimizer is None else optimizer(adamw, first)).minimize(loss)
    mg.set_default_dtype(before)
    return main, startup, loss


def batches(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, WORDS, (TEXTS, LENGTH + 1)) for _ in range(count)]


def losses(program: Any, startup: Any, loss: Any, words: list[np.ndarray], make: Any = Executor) -> list[float]:
    """The loss of each batch while the model learns, by an executor that `make` gives."""
    exe, scope = make(), Scope()
    exe.run(startup, scope=scope)
    return [float(exe.run(program, {"words": batch}, [loss], scope=scope)[0]) for batch in words]
