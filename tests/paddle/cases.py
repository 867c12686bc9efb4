"""Calls as programs: the arrays that are fed, and what comes of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.paddle.programs import filled

Call = Callable[..., Any]  # of the package and of one variable for each array


@dataclass(frozen=True)
class Case:
    """The results of a call."""

    call: Call
    arrays: tuple[np.ndarray, ...]

    def __call__(self, paddle: Any) -> list[np.ndarray]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = self.call(paddle, *self.inputs(paddle))
        return run(paddle, list(made) if isinstance(made, (list, tuple)) else [made], self.feed())

    def inputs(self, paddle: Any) -> list[Any]:
        return [paddle.static.data(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(self.arrays)]

    def feed(self) -> dict[str, np.ndarray]:
        return {f"x{i}": a for i, a in enumerate(self.arrays)}


@dataclass(frozen=True)
class Gradients(Case):
    """The result of a call and the gradients of its float inputs, None where there is none.

    Parameters have the type of the first float input. With `of`, only the first float inputs have a gradient: Paddle
    gives labels none, or one of a part of the formula.
    """

    of: int | None = None

    def __call__(self, paddle: Any) -> list[np.ndarray | None]:
        default = paddle.get_default_dtype()
        paddle.set_default_dtype(next((a.dtype.name for a in self.arrays if a.dtype.kind == "f"), "float64"))
        try:
            inputs = self.inputs(paddle)
            floats = [v for v, a in zip(inputs, self.arrays, strict=True) if a.dtype.kind == "f"][: self.of]
            for v in floats:
                v.stop_gradient = False
            out = self.call(paddle, *inputs)
            weights = varied(tuple(out.shape), self.dtype(out))
            total = paddle.sum(out * paddle.assign(weights)) if out.shape else out * 1.0
            grads = paddle.static.gradients([total], floats) if floats else []
        finally:
            paddle.set_default_dtype(default)
        found = iter(run(paddle, [out, *(g for g in grads if g is not None)], self.feed()))
        result = next(found)
        return [result, *(None if g is None else next(found) for g in grads)]

    def dtype(self, out: Any) -> str:
        """`float32` of Paddle's VarType.FP32 and of minigraph's type."""
        return "float32" if "32" in str(out.dtype) else "float64"


@dataclass(frozen=True)
class Several(Case):
    """The results of a call, and the gradients of its float inputs, of the sum of the float results' polynomials.

    With `parameters` also their gradients, with their names.
    """

    parameters: bool = False

    def __call__(self, paddle: Any) -> Any:
        inputs = self.inputs(paddle)
        floats = [v for v, a in zip(inputs, self.arrays, strict=True) if a.dtype.kind == "f"]
        for v in floats:
            v.stop_gradient = False
        made = list(self.call(paddle, *inputs))
        parts = [paddle.sum(o * (1.5 + k) + o * o * 0.25) for k, o in enumerate(made) if "FP32" in str(o.dtype)
                 or "float32" in str(o.dtype)]  # fmt: skip
        total = paddle.add_n(parts)
        pairs = paddle.static.append_backward(total) if self.parameters else []
        grads = paddle.static.gradients([total], floats) if not pairs else [f"{v.name}@GRAD" for v in floats]
        fetched = [*made, *(g for g in grads if g is not None), *(g for _, g in pairs)]
        return [p.name for p, _ in pairs], filled(paddle).run(feed=self.feed(), fetch_list=fetched)


def varied(shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    """Weights that differ from place to place; they are exact in float32, which Paddle's constants have."""
    return ((1 + np.arange(np.prod(shape, dtype=int)) % 5).reshape(shape) / 4).astype(dtype)


def run(paddle: Any, fetched: list[Any], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the default program gives after its startup program."""
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    return exe.run(paddle.static.default_main_program(), feed=feed, fetch_list=fetched)
