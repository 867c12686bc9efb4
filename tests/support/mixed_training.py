"""Small trainings that tests decorate: an MLP, and a language model with a block of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import minigraph as mg
from minigraph import nn, static
from minigraph.nn import functional as F
from minigraph.program import unique_name

WORDS, WIDTH, HEADS, LENGTH, TEXTS, ROWS = 17, 16, 2, 6, 4, 16


def mlp() -> Any:
    """The loss of a regression with two hidden layers."""
    x, y = static.data("x", [None, 8]), static.data("y", [None, 1])
    h = F.gelu(nn.Linear(8, 16)(x))
    h = F.relu(nn.LayerNorm(16)(nn.Linear(16, 16)(h)))
    return mg.mean(mg.square(nn.Linear(16, 1)(h) - y))


def attention() -> Any:
    """The loss of a model that foretells the next word, with attention written out."""
    words = static.data("words", [TEXTS, LENGTH + 1], "int64")
    table = nn.Embedding(WORDS, WIDTH)
    x = table(words[:, :-1])
    h = nn.LayerNorm(WIDTH)(x)
    q, k, v = (_heads(nn.Linear(WIDTH, WIDTH)(h)) for _ in range(3))
    scores = mg.matmul(q, k, transpose_y=True) * (WIDTH // HEADS) ** -0.5
    mixed = mg.transpose(mg.matmul(F.softmax(scores), v), [0, 2, 1, 3])
    x = x + nn.Linear(WIDTH, WIDTH)(mg.reshape(mixed, [TEXTS, LENGTH, WIDTH]))
    x = x + nn.Linear(2 * WIDTH, WIDTH)(F.gelu(nn.Linear(WIDTH, 2 * WIDTH)(nn.LayerNorm(WIDTH)(x))))
    logits = mg.matmul(nn.LayerNorm(WIDTH)(x), table.weight, transpose_y=True)
    return F.cross_entropy(mg.reshape(logits, [-1, WORDS]), mg.reshape(words[:, 1:], [-1]))


def _heads(x: Any) -> Any:
    return mg.transpose(mg.reshape(x, [TEXTS, LENGTH, HEADS, WIDTH // HEADS]), [0, 2, 1, 3])


MODELS = {"mlp": mlp, "attention": attention}


def feeds(model: str, steps: int) -> Iterator[dict[str, np.ndarray]]:
    """The same numbers each time."""
    rng = np.random.default_rng(5)
    follows = rng.integers(0, WORDS, (WORDS, 2))
    for _ in range(steps):
        if model == "mlp":
            x = rng.normal(size=(ROWS, 8)).astype("float32")
            yield {"x": x, "y": np.sin(x[:, :1] + x[:, 1:2])}
            continue
        words = [rng.integers(0, WORDS, TEXTS)]
        for _ in range(LENGTH):
            words.append(follows[words[-1], rng.integers(0, 2, TEXTS)])
        yield {"words": np.stack(words, axis=1)}


class Training:
    """Programs and a scope; `decorated` says what `static.amp.decorate` is told, None leaves the optimizer as it is.

    merging  runs whose gradients make one update
    """

    def __init__(
        self, model: str, decorated: dict[str, Any] | None = None,
        optimizer: Callable[[], Any] = lambda: mg.optimizer.AdamW(0.01), place: Any = None,
        merging: int = 1,
    ) -> None:  # fmt: skip
        self.model, self.scope, self.exe = model, static.Scope(), static.Executor(place)
        self.main, self.startup = static.Program("main"), static.Program("startup")
        self.main.random_seed = self.startup.random_seed = 7
        with static.program_guard(self.main, self.startup), unique_name.guard():
            self.loss = MODELS[model]()
            self.test = self.main.clone(for_test=True)
            self.optimizer = optimizer()
            if decorated is not None:
                self.optimizer = static.amp.decorate(self.optimizer, **decorated)
            if merging > 1:
                self.optimizer = mg.incubate.optimizer.GradientMergeOptimizer(self.optimizer, merging)
            self.optimizer.minimize(self.loss)
        self.target: Any = self.main

    def compile(self) -> Training:
        self.target = static.CompiledProgram(self.main, static.BuildStrategy.all(verify="each_pass"))
        return self

    def start(self) -> Training:
        self.exe.run(self.startup, scope=self.scope)
        return self

    def step(self, feed: dict[str, np.ndarray]) -> float:
        return float(self.exe.run(self.target, feed, [self.loss], scope=self.scope)[0])

    def curve(self, steps: int) -> np.ndarray:
        self.start()
        return np.array([self.step(feed) for feed in feeds(self.model, steps)])

    def states(self) -> dict[str, np.ndarray]:
        """All that lasts, by name."""
        names = [v.name for v in self.main.list_vars() if v.persistable]
        return {name: self.scope.read(name) for name in names}

    def number(self, prefix: str) -> Any:
        """The only state whose name begins so, as a number."""
        (name,) = (n for n in self.states() if n.startswith(prefix))
        return self.scope.read(name).item()


def same_bits(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and a[n].tobytes() == b[n].tobytes() for n in a)
