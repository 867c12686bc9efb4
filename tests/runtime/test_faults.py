"""Runs with a fault on a stub of the GPU: nothing is updated, nothing waits that need not."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.compiler.strategy import BuildStrategy
from minigraph.kernels.cuda.record.calls import Launch
from minigraph.opdef import OPS, OpDef
from minigraph.program.builder import Builder
from minigraph.runtime.cuda.bind import BoundProgram, bind_program
from minigraph.runtime.cuda.layout.order import dependencies
from minigraph.types import TensorType
from tests.gpu import faults as gpu_faults
from tests.gpu.faults import LEVELS, OPTIMIZERS, Net
from tests.support.grades import shortened

pytestmark = pytest.mark.usefixtures("stub")


OTHERS = "/for-loop", "/foreach_optimizer_ops"  # of one optimizer; make test-gpu runs them of all
CHECKS = {c.name: c.run for c in gpu_faults.checks() if not c.name.endswith(OTHERS) or "/AdamW/" in c.name}
FEWER = {"faults/modes": ["Lamb"], "faults/with_flags": ["AdamW"]}
ALIKE = {f"faults/{name}/{LEVELS[-1]}" for name in OPTIMIZERS} - {  # but for one state, two, a norm before the update
    f"faults/{name}/{LEVELS[-1]}" for name in ("Momentum", "AdamW", "Lamb")
}


@pytest.mark.parametrize("run", shortened({name: run for name, run in CHECKS.items() if name not in ALIKE}, FEWER))
def test_nothing_is_lost(run):
    run()


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(ALIKE))
def test_nothing_is_lost_by_optimizers_that_are_alike(name):
    CHECKS[name]()


def bound(optimizer: str, level: str | None = None) -> BoundProgram:
    made = Net(OPTIMIZERS[optimizer]())
    feeds = {name: TensorType(x.shape, x.dtype) for name, x in made.feed(0).items()}
    program = mg.static.CompiledProgram(made.main, BuildStrategy(**({level: True} if level else {})))
    return bind_program(program.program_for([]), feeds, [])


def kinds(made: BoundProgram) -> tuple[set[int], set[int]]:
    """Numbers of the calls that may report, and of those that leave the Scope alone after a fault."""
    touching = {i for i, c in enumerate(made.binder.calls) if isinstance(c, Launch) and made.binder.fault in c.args}
    reporters = {i for position in made.binder.wrong for i in made.spans[position] if i in touching}
    return reporters, touching - reporters


@pytest.mark.parametrize("level", LEVELS)
def test_who_writes_into_the_scope_waits_for_all_that_may_report(level):
    made = bound("AdamW", level)
    reporters, guards = kinds(made)
    assert len(reporters) >= 3 and guards
    before = dependencies(made.units.units)
    assert all(reporters <= before[i] for i in guards)
    own = {id(b) for b in made.outside.values()}
    units, blocks = made.units
    writers = {i for i, unit in enumerate(units) if any(id(blocks[n]) in own for n in unit.writes)}
    assert writers == guards, "others write what a Scope keeps"


def test_programs_in_which_nothing_can_be_wrong_have_no_guards():
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup):
        x = mg.static.data("x", [4, 5])
        mg.optimizer.AdamW(0.1).minimize(mg.mean(mg.square(mg.nn.Linear(5, 3)(x))))
    made = bind_program(main, {"x": TensorType((4, 5), np.dtype("float32"))}, [])
    assert kinds(made) == (set(), set())


def doubled(X):
    """2 * X"""
    return 2 * X


def with_doubled(monkeypatch, *traits: str) -> Net:
    """A net that doubles a state of its own in each run, by an operator with these traits."""
    facts = {"traits": {"nondifferentiable", *traits}, "inplace": {"Out": "X"}, "cuda": "C(2) * X"}
    monkeypatch.setitem(OPS, "doubled", OpDef(doubled, "Out", **facts))
    made = Net(OPTIMIZERS["SGD"]())
    for program in (made.startup, made.main):
        program.global_block().create_var("state", [7], "float32", persistable=True, stop_gradient=True)
    first, block = made.startup.global_block(), made.main.global_block()
    Builder(first).fill_constant(shape=(7,), value=1, out={"Out": first.var("state")})
    Builder(block).emit("doubled", block.var("state"), out={"Out": block.var("state")})
    return made


def test_an_update_that_does_not_say_that_it_looks_at_faults_is_kept_apart_from_the_scope(monkeypatch):
    gpu_faults.agree(with_doubled(monkeypatch), None)


def test_an_update_that_looks_at_no_faults_must_not_say_so(monkeypatch):
    made = with_doubled(monkeypatch, "guarded")
    with pytest.raises(AssertionError, match="doubled is guarded, but looks at no faults"):
        gpu_faults.agree(made, None)


def test_updates_of_one_shape_are_bound_once():
    made = bound("SGD")
    sources = [c.source for i in kinds(made)[1] for c in [made.binder.calls[i]] if c.function == "update"]
    assert len(sources) == 5 and len(set(map(id, sources))) == 1
