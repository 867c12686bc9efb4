"""A small language model, with and without the fused last layer, and the curve of its loss while it learns."""

from __future__ import annotations

import numpy as np

import minigraph as mg
from minigraph.program import unique_name
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor

WORDS, WIDTH, LENGTH, TEXTS, STEPS = 80, 24, 8, 16, 40


def model(dtype, written):
    """(program, startup, loss) of a model that foretells the next word; the last layer's products have this type."""
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup), unique_name.guard():
        words = mg.static.data("words", [None, LENGTH + 1], "int64")
        h = mg.nn.functional.embedding(words[:, :-1], mg.static.create_parameter([WORDS, WIDTH], "float32"))
        h = mg.tanh(mg.nn.Linear(WIDTH, WIDTH)(h))
        w = mg.static.create_parameter([WIDTH, WORDS], "float32")
        z = mg.cast(mg.matmul(mg.cast(h, dtype), mg.cast(w, dtype)), "float32")
        if written:
            log_probabilities = mg.nn.functional.log_softmax(z)
            loss = -mg.mean(mg.sum(mg.nn.functional.one_hot(words[:, 1:], WORDS) * log_probabilities, axis=-1))
        else:
            z = mg.reshape(z, [-1, WORDS])
            loss = mg.nn.functional.cross_entropy(z, mg.reshape(words[:, 1:], [-1]))
        mg.optimizer.AdamW(0.02).minimize(loss)
    return main, startup, loss


def texts(steps):
    """Batches of a language in which every word has three words that may follow it."""
    rng = np.random.default_rng(7)
    follows = rng.integers(0, WORDS, (WORDS, 3))
    for _ in range(steps):
        words = [rng.integers(0, WORDS, TEXTS)]
        for _ in range(LENGTH):
            words.append(follows[words[-1], rng.integers(0, 3, TEXTS)])
        yield np.stack(words, axis=1)


def curve(seed, dtype, fused, written=False, make=Executor):
    """The losses of all steps, by an executor that `make` gives."""
    main, startup, loss = model(dtype, written)
    startup.random_seed = seed
    if fused:
        strategy = mg.static.BuildStrategy(
            fuse_linear_cross_entropy=True, linear_cross_entropy_chunk_rows=16, remove_redundant_cast=True
        )  # fmt: skip
        main = mg.static.CompiledProgram(main, build_strategy=strategy)
        types = [op.type for op in main.program_for([loss.name]).ops]
        assert types.count("fused_linear_cross_entropy") == 1
        assert "fused_linear_cross_entropy_grad" not in types
    exe, scope = make(), Scope()
    exe.run(startup, scope=scope)
    return np.array([float(exe.run(main, {"words": words}, [loss], scope=scope)[0]) for words in texts(STEPS)])


def distance(a, b):
    """The mean distance of two curves, of which the first point is that of the same untrained model or of another."""
    return np.abs(a - b).mean()
