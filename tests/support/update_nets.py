"""Programs that update parameters with gradients that are fed, for the tests on a CPU, on the stub and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import minigraph.optimizer as opt
from minigraph.kernels.cuda.optimizer import paged
from minigraph.nn import clip
from minigraph.program import Program, program_guard, unique_name
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import as_dtype

MODES = ("auto", "table", "struct4k", "struct32k", "arena", "unified", "paged")
LEVELS = (None, "foreach_optimizer_ops", "fuse_all_optimizer_ops")
OPTIMIZERS = {
    "SGD": lambda **o: opt.SGD(0.1, **o), "Momentum": lambda **o: opt.Momentum(0.1, use_nesterov=True, **o),
    "Adam": lambda **o: opt.Adam(0.1, amsgrad=True, **o), "AdamW": lambda **o: opt.AdamW(0.1, weight_decay=0.1, **o),
    "Adamax": lambda **o: opt.Adamax(0.1, **o), "Adagrad": lambda **o: opt.Adagrad(0.1, **o),
    "Adadelta": lambda **o: opt.Adadelta(0.1, **o),
    "RMSProp": lambda **o: opt.RMSProp(0.1, centered=True, momentum=0.5, **o),
    "Lion": lambda **o: opt.Lion(0.1, weight_decay=0.1, **o),
    "Lamb": lambda **o: opt.Lamb(0.1, lamb_weight_decay=0.1, **o),
}  # fmt: skip
SHAPES = [(2, 3), (), (0, 4), (1,), (1025,), (37, 3)]

Net = tuple[Program, Program, dict[str, np.ndarray]]
Clip = clip.ClipGradByGlobalNorm


def net(optimizer: Any, shapes: Any = SHAPES, dtype: str = "float32", found: bool | None = None) -> Net:
    """sum(parameter * x) for each parameter, so that x is its gradient; returns (main, startup, feed)."""
    main, startup, feed = Program("main"), Program("startup"), {}
    rng = np.random.default_rng(3)
    with unique_name.guard(), program_guard(main, startup):
        block = main.global_block()
        g, g0 = Builder(block), Builder(startup.global_block())
        total = []
        for i, shape in enumerate(shapes):
            own, p = (b.create_parameter(f"p{i}", shape, dtype) for b in (startup.global_block(), block))
            first = block.create_var(f"first{i}", shape, dtype, is_data=True, stop_gradient=True)
            given = startup.global_block().create_var(f"first{i}", shape, dtype, is_data=True, stop_gradient=True)
            g0.assign(given, out={"Out": own})
            x = block.create_var(f"x{i}", shape, dtype, is_data=True, stop_gradient=True)
            feed[x.name], feed[first.name] = (rng.normal(size=shape).astype(as_dtype(dtype)) for _ in range(2))
            total.append(g.reduce_sum(g.elementwise_mul(p, x)))
        if found is not None:
            flag = block.create_var("found", (1,), "bool", is_data=True, stop_gradient=True)
            optimizer._set_auxiliary_var("found_inf", flag)
            feed["found"] = np.array([found])
        optimizer.minimize(g.sum(total), startup)
    return main, startup, feed


@contextmanager
def blocks_of_bytes(nbytes: int) -> Iterator[None]:
    """Every state is paged, in blocks of so many bytes, so that small tests have many."""
    before = paged.SMALL, paged.BLOCK
    paged.SMALL, paged.BLOCK = 1, nbytes
    try:
        yield
    finally:
        paged.SMALL, paged.BLOCK = before


def started(made: Net) -> Scope:
    """A Scope in which the startup program ran, on a CPU."""
    _, startup, feed = made
    scope = Scope()
    Executor().run(startup, {n: a for n, a in feed.items() if n.startswith("first")}, scope=scope)
    return scope


def steps_feed(made: Net) -> dict[str, np.ndarray]:
    """What a step is fed."""
    return {n: a for n, a in made[2].items() if not n.startswith("first")}


def on_cpu(made: Net, program: Any = None, steps: int = 2) -> Scope:
    """The Scope after some steps of the main program, or of another form of it."""
    exe, scope = Executor(), started(made)
    for _ in range(steps):
        exe.run(program or made[0], steps_feed(made), [], scope=scope)
    return scope


def difference(found: Scope, expected: Scope) -> tuple[str, float]:
    """(name, largest difference of an element) of the values that differ most."""
    worst = "", 0.0
    for name in expected.list_names():
        a, b = found.read(name), expected.read(name)
        assert a.shape == b.shape and a.dtype == b.dtype, name
        if not np.array_equal(a, b, equal_nan=True):
            apart = float(np.max(np.abs(a.astype(float) - b.astype(float))))
            worst = max(worst, (name, apart if apart == apart else np.inf), key=lambda pair: pair[1])
    return worst
