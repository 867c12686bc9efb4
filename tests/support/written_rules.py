"""Updates that a user writes out of elementwise operators, on parameters of many shapes."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np

import minigraph as mg
from minigraph.program import Program, Variable, program_guard, unique_name
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import CompiledProgram
from minigraph.types import as_dtype

SHAPES = [(1,), (7,), (0, 3), (64, 5), (3, 2, 4), (20000,)]


class Written(NamedTuple):
    """A program of updates, and the values that it begins with."""

    program: Program
    values: dict[str, np.ndarray]

    def run(self, strategy: Any = None, steps: int = 3) -> dict[str, np.ndarray]:
        """All values after some steps on a CPU."""
        scope, exe = self.scope(), Executor()
        program = CompiledProgram(self.program, strategy) if strategy is not None else self.program
        for _ in range(steps):
            exe.run(program, {}, [], scope=scope)
        return {name: scope.read(name) for name in self.values}

    def scope(self) -> Scope:
        scope = Scope()
        for name, array in self.values.items():
            scope.write(name, array.copy())
        return scope


class Builder:
    """A Written program on its way."""

    def __init__(self, seed: int = 0) -> None:
        self.program, self.numbers = Program("written"), np.random.default_rng(seed)
        self.values: dict[str, np.ndarray] = {}

    def variable(self, name: str, shape: tuple[int, ...], dtype: str = "float64") -> Variable:
        self.values[name] = self.numbers.normal(size=shape).astype(as_dtype(dtype))
        return self.program.global_block().create_var(name, shape, dtype, persistable=True)


def lion(shapes: Any = SHAPES, dtype: str = "float64", rates: int = 1) -> Written:
    """p and m are updated from the same old m; `rates` learning rates in turn."""
    b = Builder()
    with program_guard(b.program), unique_name.guard(), b.program.emitting("optimize"):
        lrs = [b.variable(f"rate{i}", (1,), dtype) for i in range(rates)]
        for i, shape in enumerate(shapes):
            p, m, g = (b.variable(f"{name}{i}", shape, dtype) for name in "pmg")
            step = mg.sign(m * 0.9 + g * 0.1) + p * 0.01
            mg.assign(m * 0.99 + g * 0.01, output=m)
            mg.assign(p - step * lrs[i % rates], output=p)
    return Written(b.program, b.values)


def momentum_by_lists(shapes: Any = SHAPES, dtype: str = "float64") -> Written:
    """SGD with momentum and decay through mg.foreach, clipped by the largest norm of its own."""
    b = Builder(1)
    with program_guard(b.program), unique_name.guard(), b.program.emitting("optimize"):
        ps, vs, gs = ([b.variable(f"{name}{i}", s, dtype) for i, s in enumerate(shapes)] for name in "pvg")
        norms = mg.foreach.norm(gs)
        gs = mg.foreach.div(gs, mg.foreach.add(norms, 1.0))
        gs = mg.foreach.add(gs, ps, alpha=0.01)
        vs = mg.foreach.add(mg.foreach.mul(vs, 0.9), gs, out=vs)
        mg.foreach.add(ps, vs, alpha=-0.1, out=ps)
    return Written(b.program, b.values)


def random_rules(seed: int) -> Written:
    """Random rules on random tensors, of which some read or write what belongs to others."""
    r, b = random.Random(seed), Builder(seed)
    dtypes = ["float64"] * 3 + ["float32"]
    with program_guard(b.program), unique_name.guard(), b.program.emitting("optimize"):
        rate = b.variable("rate", (1,))
        rules = [[_random_line(r) for _ in range(r.randint(1, 6))] for _ in range(r.randint(1, 3))]
        columns = []
        for i in range(r.randint(2, 9)):
            shape, dtype = r.choice([(1,), (3,), (3,), (2, 3), (0,), (40,)]), r.choice(dtypes)
            columns.append([b.variable(f"{name}{i}", shape, dtype) for name in "pqs"])
        for own in columns:
            if r.random() < 0.1:
                mg.sum(r.choice(r.choice(columns)))  # something else stands between
            values = list(own)
            for kind, x, y, to in r.choice(rules):
                first, second = values[x % len(values)], values[y % len(values)]
                other = r.choice(r.choice(columns))
                if r.random() < 0.08 and other.dtype == first.dtype and other.shape in ((1,), first.shape):
                    second = other  # what belongs to another tensor
                if kind == "rate" and first.dtype == rate.dtype:
                    made = first * rate
                elif kind == "norm":
                    made = first * mg.foreach.norm([first])[0]
                else:
                    made = KINDS.get(kind, KINDS["add"])(first, second)
                values.append(made)
                if to is not None and made.shape == own[to].shape:
                    mg.assign(made, output=own[to])
                    values[to] = own[to]
    return Written(b.program, b.values)


KINDS = {
    "add": lambda x, y: x + y * 0.5, "mul": lambda x, y: x * y * 0.25, "sign": lambda x, y: mg.sign(x) + 0.5 * y,
    "tanh": lambda x, y: mg.tanh(x) - y * 0.5, "max": lambda x, y: mg.maximum(x, y * 0.5),
    "where": lambda x, y: mg.where(mg.greater_than(x, y), x * 0.5, y), "abs": lambda x, y: mg.abs(x) * 0.5 - y * 0.1,
}  # fmt: skip


def _random_line(r: random.Random) -> tuple[str, int, int, int | None]:
    return r.choice([*KINDS, "rate", "norm"]), r.randrange(9), r.randrange(9), r.choice([None, None, 0, 1])
