"""Random programs of operators that work element by element or on rows, for the tests of fuse_elementwise.

    chain = random_chain(seed, dtype, shape)      the same seed gives the same program

Values are fetched, kept in the Scope, read by a product, of which only the shape is read; numbers stay near 1, so
that errors of different programs can be compared.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

import minigraph.ops  # noqa: F401
from minigraph import static
from minigraph.program import Program, Variable, unique_name
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.types import as_dtype, tensor_type

UNARY: tuple[tuple[str, dict[str, Any]], ...] = (
    ("tanh", {}), ("gelu", {"approximate": True}), ("gelu", {}), ("sigmoid", {}), ("silu", {}), ("softplus", {}),
    ("relu", {}), ("scale", {"scale": 0.5, "bias": 0.25}), ("abs", {}), ("sin", {}), ("leaky_relu", {"alpha": 0.1}),
    ("clip", {"min": -1.5, "max": 1.5}), ("square", {}), ("assign", {}),
)  # fmt: skip
BINARY = ("elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_max", "elementwise_min")
CHOOSING = {"elementwise_max", "elementwise_min", "relu", "leaky_relu", "abs", "clip"}  # where rounding decides
ROWS: tuple[str, ...] = ("softmax", "log_softmax", "layer_norm", "mean", "rms", "dropout")
OTHERS = (*ROWS, "small_dropout", "constant", "count")


@dataclass
class Chain:
    """A program with what it needs to run."""

    program: Program
    feeds: dict[str, np.ndarray]
    fetches: list[str]


class Feeds(dict[str, np.ndarray]):
    """Arrays for data variables of the main program, by name; floats are rounded to one type."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = as_dtype(dtype)

    def data(self, array: np.ndarray, wanted: bool = True) -> Variable:
        """A variable that is fed with `array`; `wanted` says whether its gradient may be asked for."""
        array = array.astype(self.dtype) if array.dtype.kind == "f" else array
        v = static.data(f"x{len(self)}", list(array.shape), array.dtype.name)
        v.stop_gradient = not wanted
        self[v.name] = array
        return v

    def read_by(self, program: Program) -> dict[str, np.ndarray]:
        """Those that an operator of the program reads."""
        used = {name for op in program.ops for name in op.input_arg_names}
        return {name: array for name, array in self.items() if name in used}


def random_chain(
    seed: int, dtype: Any = "float64", shape: tuple[int, ...] = (4, 6), smooth: bool = False
) -> Chain:
    """`smooth` leaves out what chooses between values, and sums of many: both magnify the rounding before them."""
    with unique_name.guard():
        return _Maker(random.Random(seed), np.random.default_rng(seed), as_dtype(dtype), shape, smooth).run()


class _Maker:
    def __init__(
        self, r: random.Random, numbers: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...],
        smooth: bool,
    ) -> None:  # fmt: skip
        self.r, self.numbers, self.dtype, self.shape, self.smooth = r, numbers, dtype, shape, smooth
        self.unary = [(name, attrs) for name, attrs in UNARY if not (smooth and name in CHOOSING)]
        self.binary = [name for name in BINARY if not (smooth and name in CHOOSING)]
        self.program = Program("chain")
        self.program.random_seed = 7  # the same masks in every process
        self.block = self.program.global_block()
        self.g = Builder(self.block)
        self.feeds: dict[str, np.ndarray] = {}
        self.fetches: list[str] = []

    def data(self, *shape: int, dtype: Any = None) -> Variable:
        v = self.block.create_var(
            f"x{len(self.feeds)}", type=tensor_type(shape, dtype or self.dtype), is_data=True, stop_gradient=False
        )
        self.feeds[v.name] = self.numbers.uniform(-1.5, 1.5, shape).astype(v.dtype)
        return v

    def run(self) -> Chain:
        r, g, inner = self.r, self.g, self.shape[-1]
        pool = [self.data(*self.shape) for _ in range(r.randint(1, 3))]
        smaller = [(inner,), (1, inner), (*self.shape[:-1], 1), (), (1,) * (len(self.shape) - 1) + (inner,)]
        for _ in range(r.randint(3, 12)):
            x, kind = r.choice(pool[-3:]), r.random()
            if kind < 0.45:
                op_type, attrs = r.choice(self.unary)
                out = getattr(g, op_type)(x, **attrs)
            elif kind < 0.7:
                y = r.choice(pool) if r.random() < 0.6 else self.data(*r.choice(smaller))
                out = getattr(g, r.choice(self.binary))(*((x, y) if r.random() < 0.8 else (y, x)))
            elif kind < 0.74 and not self.smooth:  # no member: what lies before and after it cannot be one group
                out = g.scale(g.cumsum(x, axis=0), scale=1 / self.shape[0])
            elif kind < 0.8 and not self.smooth:
                out = g.where(g.greater_than(x, r.choice(pool)), x, r.choice(pool))
            elif kind < 0.84:
                wide = "float64" if self.dtype == np.float64 else "float32"
                out = g.cast(g.tanh(g.cast(x, dtype=wide)), dtype=self.dtype)
            else:
                out = getattr(self, r.choice(ROWS if self.smooth else OTHERS))(x)
            pool.append(out)
            self.expose(out)
        self.fetches.append(pool[-1].name)
        seeds = [self.data(*pool[-1].shape)]
        wanted = [self.block.var(name) for name in self.feeds]
        found = [d for d in gradients(pool[-1:], wanted, seeds) if d is not None]
        self.fetches += [d.name if self.smooth or r.random() < 0.5 else self.read(d).name for d in found]
        return Chain(self.program, self.feeds, list(dict.fromkeys(self.fetches)))

    def read(self, v: Variable) -> Variable:
        """Something that is no member and reads `v`."""
        return self.g.cumsum(v)

    def expose(self, v: Variable) -> None:
        chance = self.r.random()
        if chance < 0.08:
            self.fetches.append(v.name)
        elif chance < 0.14:
            self.fetches.append(self.g.fill_any_like(v, value=0.5).name)
        elif chance < 0.2:
            self.fetches.append(self.g.reduce_sum(v, axis=(0,)).name)
        elif chance < 0.26:
            v.persistable = True  # the Scope keeps it
            self.fetches.append(v.name)

    def softmax(self, x: Variable) -> Variable:
        return self.g.softmax(x)

    def log_softmax(self, x: Variable) -> Variable:
        return self.g.log_softmax(x)

    def layer_norm(self, x: Variable) -> Variable:
        n, begin = self.shape[-1], len(self.shape) - 1
        parameters = [self.data(n), self.data(n)] if self.r.random() < 0.7 else []
        out, mean, _ = self.g.layer_norm(x, *parameters, begin_norm_axis=begin, epsilon=1e-3)
        if self.r.random() < 0.2:
            self.fetches.append(mean.name)
        return out

    def mean(self, x: Variable) -> Variable:
        """Centred rows."""
        kind = self.r.choice(("reduce_mean", "reduce_sum", "reduce_max", "reduce_min"))
        return self.g.elementwise_sub(x, getattr(self.g, kind)(x, axis=(-1,), keepdim=True))

    def rms(self, x: Variable) -> Variable:
        """x / sqrt(mean(x^2) + 0.1)"""
        mean = self.g.reduce_mean(self.g.square(x), axis=(len(self.shape) - 1,), keepdim=True)
        return self.g.elementwise_mul(x, self.g.rsqrt(self.g.scale(mean, bias=0.1)))

    def small_dropout(self, x: Variable) -> Variable:
        """Rows, or columns, that are dropped together."""
        if self.r.random() < 0.5:
            small = self.g.reduce_mean(x, axis=(-1,), keepdim=True)
        else:
            small = self.g.tanh(self.data(*(1,) * (len(self.shape) - 1), self.shape[-1]))
        return self.g.elementwise_mul(x, self.dropout(small))

    def constant(self, x: Variable) -> Variable:
        """Whole numbers, by the shape of floats or of a mask."""
        mask = self.g.greater_than(x, self.data(*self.shape))
        number = self.g.fill_any_like(mask if self.r.random() < 0.5 else x, value=5, dtype="int64")
        chosen = self.g.where(mask, number, self.g.cast(x, dtype="int64"))
        return self.g.elementwise_mul(x, self.g.scale(self.g.cast(chosen, dtype=self.dtype), scale=0.2))

    def count(self, x: Variable) -> Variable:
        """Rows are measured by a sum of constants."""
        size = self.g.reduce_sum(self.g.fill_any_like(x, value=0.5), axis=(-1,), keepdim=True)
        return self.g.elementwise_mul(x, self.g.elementwise_div(self.g.reduce_sum(x, axis=(-1,), keepdim=True), size))

    def dropout(self, x: Variable) -> Variable:
        out, mask = self.g.dropout(x, p=0.3)
        if self.r.random() < 0.3:
            self.fetches.append(mask.name)
        return out
