"""fuse_grad_accumulation joins gradients of slices: what it becomes, where it says no, random slices, each executed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.program import Program, Variable, unique_name
from minigraph.program.backward import gradients
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram


class Slices:
    """The sum of weighted slices of a parameter, and its gradient."""

    def __init__(self, shape: tuple[int, ...], seed: int = 0) -> None:
        self.rng, self.feeds = np.random.default_rng(seed), dict[str, np.ndarray]()
        self.program, self.fetches = Program(), list[str]()
        self.block = self.program.global_block()
        self.w = self.block.create_parameter("w", shape, "float64")
        self.value = self.rng.normal(size=shape)
        with mg.static.program_guard(self.program, Program()):
            self.x: Any = mg.tanh(self.w)

    def data(self, shape: Any) -> Variable:
        name = f"d{len(self.feeds)}"
        self.feeds[name] = self.rng.normal(size=tuple(shape))
        return self.block.create_var(name, tuple(shape), "float64", is_data=True, stop_gradient=True)

    def compiled(self, *parts: Variable, more: Any = None) -> CompiledProgram:
        """Off and on give the same; the latter, whose pass was verified by the interpreter, too."""
        with mg.static.program_guard(self.program, Program()):
            losses = [mg.sum(part * self.data(part.shape)) for part in parts]
            loss = losses[0] if len(losses) == 1 else mg.sum(mg.stack(losses))
            if more is not None:
                loss = loss + more(self)
            (grad,) = gradients([loss], [self.w])
        self.fetches += [loss.name, grad.name]
        found = CompiledProgram(self.program, BuildStrategy(fuse_grad_accumulation=True, verify="each_pass"))
        results = []
        for program in (self.program, found):
            scope = Scope()
            scope.write("w", self.value.copy())
            results.append(Executor().run(program, self.feeds, self.fetches, scope=scope))
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-13, atol=1e-14)
        return found

    def counts(self, compiled: CompiledProgram) -> Counter[str]:
        return Counter(op.type for op in compiled.program_for(self.fetches).ops)


@pytest.fixture(autouse=True)
def names():
    with unique_name.guard():
        yield


def made(shape, cut, more=None) -> tuple[Counter[str], str]:
    net = Slices(shape)
    with mg.static.program_guard(net.program, Program()):
        parts = cut(net.x)
    compiled = net.compiled(*parts, more=more)
    return net.counts(compiled), compiled.explain()


@pytest.mark.parametrize(
    ("shape", "cut", "joined"),
    [
        ((5, 6), lambda x: (x[:, :2], x[:, 2:]), "concat"),
        ((5, 6), lambda x: (x[:, 4:], x[:, :2], x[:, 2:4]), "concat"),
        ((2, 4, 3, 2, 5), lambda x: (x[:, :, 0], x[:, :, 1], x[:, :, 2]), "stack"),
        ((3, 4), lambda x: (x[2], x[0], x[1]), "stack"),
        ((3, 4), lambda x: (x[0:1], x[1:3]), "concat"),
        ((4, 3), lambda x: (x[:, -1], x[:, -2], x[:, -3]), "stack"),
        ((1, 2, 3), lambda x: (x[:, 0:1, :], x[0:1, 1:, 0:3]), "concat"),
    ],
)  # fmt: skip
def test_pieces_that_fill_an_array_are_joined(shape, cut, joined):
    counts, text = made(shape, cut)
    assert counts[joined] == (2 if joined == "stack" else 1), text  # losses are stacked
    assert counts["slice_grad"] == counts["sum"] == 0
    assert f"{joined}   from slice_grad" in text


REFUSED = {
    "gap": ((5, 6), lambda x: (x[:, :2], x[:, 3:]), "the slices share places or leave some out"),
    "overlap": ((5, 6), lambda x: (x[:, :3], x[:, 2:]), "the slices share places or leave some out"),
    "begins late": ((5, 6), lambda x: (x[:, 1:3], x[:, 3:]), "the slices share places or leave some out"),
    "ends early": ((5, 6), lambda x: (x[:, :3], x[:, 3:5]), "the slices share places or leave some out"),
    "corners": ((4, 6), lambda x: (x[:2, :3], x[2:, 3:]), "does not cut along one axis"),
    "two axes": ((2, 2), lambda x: (x[:, :1], x[0:1]), "the slices are not alike"),
    "one axis dropped": ((2, 4), lambda x: (x[0], x[1:2]), "the slices are not alike"),
    "steps": ((4, 6), lambda x: (x[:, ::2], x[:, 1::2]), "takes no run of places"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_pieces_that_do_not_are_added(case):
    shape, cut, reason = REFUSED[case]
    counts, text = made(shape, cut)
    assert counts["slice_grad"] == 2
    assert counts["sum"] == 1
    assert reason in text


def test_other_gradients_beside_them_are_added():
    counts, _ = made((5, 6), lambda x: (x[:, :2], x[:, 2:]), more=lambda net: mg.sum(net.x * net.x))
    assert counts["slice_grad"] == 2


def test_a_gradient_that_is_fetched_stays():
    net = Slices((5, 6))
    with mg.static.program_guard(net.program, Program()):
        parts = net.x[:, :2], net.x[:, 2:]
    net.fetches.append(f"{net.x.grad_name}@RENAME@block0@0")
    compiled = net.compiled(*parts)
    assert net.counts(compiled)["slice_grad"] == 2
    assert "it must be written" in compiled.explain()


def test_gradients_that_are_differentiated_stay():
    net = Slices((5, 6))
    with mg.static.program_guard(net.program, Program()):
        (d,) = gradients([mg.sum(mg.exp(net.x[:, :2])) + mg.sum(mg.exp(net.x[:, 2:]))], [net.w])
    compiled = net.compiled(d)
    assert "is differentiated" in compiled.explain()


def test_sizes_that_are_unknown_are_left_alone():
    program = Program()
    with mg.static.program_guard(program, Program()):
        x = program.global_block().create_var("x", (-1, 4), "float64", is_data=True, stop_gradient=False)
        y = mg.tanh(x)
        (d,) = gradients([mg.sum(mg.exp(y[:2])) + mg.sum(y[2:] * 2.0)], [x])
    compiled = CompiledProgram(program, BuildStrategy(fuse_grad_accumulation=True))
    feed = {"x": np.random.default_rng(0).normal(size=(5, 4))}
    a, b = (Executor().run(p, feed, [d.name])[0] for p in (program, compiled))
    np.testing.assert_array_equal(a, b)
    assert "is known only at run time" in compiled.explain()


def test_random_slices():
    """Partitions of a random axis in random order, sometimes with one piece too many, too few, read or fetched."""
    joined = 0
    for seed in range(60):
        r, net = random.Random(seed), Slices(tuple(random.Random(seed).choices((2, 3, 4), k=3)), seed)
        axis, single = r.randrange(3), r.random() < 0.4
        size = net.x.shape[axis]
        cuts = range(1, size) if single else sorted(r.sample(range(1, size), r.randint(1, size - 1)))
        ends = list(zip([0, *cuts], [*cuts, size], strict=True))
        r.shuffle(ends)
        if r.random() < 0.2:
            ends.append(r.choice(ends))
        if r.random() < 0.2:
            ends.pop()
        lead = (slice(None),) * axis
        with mg.static.program_guard(net.program, Program()):
            parts = [net.x[(*lead, a if single else slice(a, b))] for a, b in ends]
        if r.random() < 0.2:
            net.fetches.append(r.choice(parts).name)
        compiled = net.compiled(*parts)
        joined += net.counts(compiled)["slice_grad"] == 0
    assert 20 < joined < 55
