"""Random programs with branches and loops, one in another, for the equivalence tests.

    case = random_control(seed)      the same seed gives the same program

Values are [3, 3] in float64. What a branch or a round computes is drawn as the layers outside are, so
blocks read values and parameters of all blocks around them, and sometimes write one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.program import Program, Variable, program_guard, unique_name
from minigraph.static.nn import cond, switch_case, while_loop
from tests.support.random_programs import Case

DEEPEST = 3  # blocks in blocks
UNARY: list[Callable[[Any], Any]] = [
    mg.tanh, mg.nn.functional.relu, mg.nn.functional.gelu, lambda v: v * 0.5, lambda v: mg.transpose(v, [1, 0]),
    lambda v: mg.nn.functional.softmax(v), lambda v: v - mg.mean(v),
]  # fmt: skip
KINDS = {"unary": 4, "sum": 2, "product": 2, "linear": 3, "branch": 3, "switch": 1, "loop": 3, "write": 1}


def random_control(seed: int) -> Case:
    """The program of `seed`."""
    main, startup = Program("random"), Program("startup")
    with unique_name.guard(), program_guard(main, startup):
        net = _Net(random.Random(seed), seed)
        x = mg.static.data("x0", [3, 3], "float64")
        x.stop_gradient = False
        pool = [x, net.weight()]
        for _ in range(net.r.randint(2, 5)):
            pool.append(net.layer(pool, 0))
        pool.append(pool[-1] * net.weight())
        loss = mg.mean(pool[-1] * pool[-1]) + mg.mean(net.r.choice(pool))
        fetches = [loss.name, *(v.name for v in pool[2:])]
        if net.r.random() < 0.8:
            grads = mg.optimizer.SGD(0.1).minimize(loss, startup)[1]
            fetches += [grad.name for _, grad in grads]
    numbers = np.random.default_rng(seed)
    values = {p.name: numbers.normal(size=(3, 3)) for p in main.all_parameters()}
    rates = {v.name: np.full(v.shape, 0.1) for v in main.list_vars() if v.persistable and v.name not in values}
    return Case(seed, 1, main, values | rates, {"x0": numbers.normal(size=(3, 3))}, list(dict.fromkeys(fetches)))


class _Net:
    """A program on the way."""

    def __init__(self, r: random.Random, seed: int) -> None:
        self.r, self.parameters = r, 0

    def weight(self) -> Variable:
        self.parameters += 1
        return mg.static.create_parameter([3, 3], "float64", name=f"p{self.parameters}")

    def layer(self, pool: list[Variable], depth: int) -> Variable:
        kind = self.r.choices(list(KINDS), list(KINDS.values()))[0]
        if depth >= DEEPEST and kind in ("branch", "switch", "loop", "write"):
            kind = "unary"
        return getattr(self, kind)(pool, depth)

    def some(self, pool: list[Variable]) -> Variable:
        return pool[-1] if self.r.random() < 0.6 else self.r.choice(pool)

    def unary(self, pool: list[Variable], depth: int) -> Variable:
        return self.r.choice(UNARY)(self.some(pool))

    def sum(self, pool: list[Variable], depth: int) -> Variable:
        return self.some(pool) + self.r.choice(pool)

    def product(self, pool: list[Variable], depth: int) -> Variable:
        return mg.tanh(self.some(pool) * self.r.choice(pool))

    def linear(self, pool: list[Variable], depth: int) -> Variable:
        made = mg.matmul(self.some(pool), self.weight()) + self.weight()
        return mg.nn.functional.relu(made) if self.r.random() < 0.5 else mg.tanh(made)

    def inside(self, pool: list[Variable], depth: int) -> Variable:
        """What a function of a branch or loop returns."""
        own = list(pool)
        for _ in range(self.r.randint(0, 3)):
            own.append(self.layer(own, depth + 1))
        return own[-1]

    def pred(self, pool: list[Variable]) -> Variable:
        """A sum compared with what none is but for rounding: that of `v - mean(v)` is 0, its sign any."""
        return mg.sum(self.some(pool)) > self.r.choice((-1.0, 0.1, 0.5))

    def branch(self, pool: list[Variable], depth: int) -> Variable:
        return cond(self.pred(pool), lambda: self.inside(pool, depth), lambda: self.inside(pool, depth))

    def switch(self, pool: list[Variable], depth: int) -> Variable:
        number = mg.cast(mg.sum(mg.cast(self.some(pool) > 0.0, "int32")), "int32")
        functions = {n: lambda: self.inside(pool, depth) for n in self.r.sample(range(10), 3)}
        return switch_case(number, functions, lambda: self.inside(pool, depth))

    def loop(self, pool: list[Variable], depth: int) -> Variable:
        rounds = self.r.randint(0, 3)

        def body(i: Variable, v: Variable) -> list[Variable]:
            return [i + 1, mg.tanh(self.inside([*pool, v], depth))]

        return while_loop(lambda i, v: i < rounds, body, [mg.full([1], 0, "int64"), self.some(pool)])[1]

    def write(self, pool: list[Variable], depth: int) -> Variable:
        """A branch writes a value outside of it."""
        target = self.some(pool) * 1.0

        def change() -> None:
            old = target * 1.0  # whose gradient does not read what is overwritten
            mg.assign(self.inside(pool, depth) * 0.5 + old, target)

        cond(self.pred(pool), change, None)
        return target * 1.0
