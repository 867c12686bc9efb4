"""Operators get their calls for other sizes from templates: the same as if each were bound by itself."""

from __future__ import annotations

import gc
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from bench import changing_shapes
from minigraph.errors import MinigraphError
from minigraph.kernels.cuda.elementwise import pointwise
from minigraph.kernels.cuda.record import symbolic, templates
from minigraph.kernels.cuda.record.symbolic import SizeSymbol, Trace
from minigraph.kernels.cuda.record.templates import Resized
from minigraph.kernels.cuda.record.workspace import Algorithm, settling
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.cuda.layout import units
from minigraph.runtime.cuda.sizes import Siblings
from minigraph.types import TensorType, float32
from tests.runtime.test_memory import check_memory
from tests.runtime.test_repeats import facts
from tests.runtime.test_resized import PLACED, check_plans
from tests.support.grades import graded

SIZES = {"mlp": (256, 100, 3, 48, 77, 8, 200, 1, 64, 129, 4, 31), "block": (1024, 429, 17, 301, 230)}


def algorithm(call: Any) -> Algorithm | None:
    """What a library may say: nothing for some numbers of rows, another one for many."""
    return None if call.m % 4 == 1 else Algorithm(64 * (1 + (call.m > 700)), b"many" if call.m > 300 else b"few")


def trained(model: str) -> tuple[Any, str]:
    """A program that trains a model of bench/changing_shapes.py, and its loss."""
    with mg.static.program_guard(mg.static.Program(), mg.static.Program()), mg.base.unique_name.guard():
        _, loss = changing_shapes.network(model)
        strategy = mg.static.BuildStrategy.all()
        compiled = mg.static.CompiledProgram(mg.static.default_main_program(), build_strategy=strategy)
    return compiled.program_for((loss.name,)), loss.name


def check_plans_of(program: Any, fetch: str, feeds: list[dict[str, TensorType]], tf32: bool) -> Counter[bool]:
    """Plans for these feeds are as if each were alone; how often an operator had a template."""
    siblings, own, plans, hits = Siblings(), Resized.filled, [], Counter[bool]()

    def filled(self, *given):
        made = own(self, *given)
        hits[made is not None] += 1
        return made

    def bound(types: dict[str, TensorType], known: Siblings | None) -> Any:
        room = plans[0].arena_bytes if plans else 0
        return bind_program(
            program, types, [fetch], tf32=tf32, room=room, siblings=known, settling=settling(algorithm)
        )  # fmt: skip

    for types in feeds:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Resized, "filled", filled)
            one = bound(types, siblings)
        alone = bound(types, None)
        parts = [[part for i, part in enumerate(facts(plan)) if i not in PLACED] for plan in (one, alone)]
        assert parts[0] == parts[1], types
        assert one.units.units == alone.units.units
        if not one.binder.gone:  # a launch that does the work of others reads what it writes itself
            check_memory(one)
        plans.append(one)
        siblings.keep(one.schedule, one.layout)
    return hits


def check_model(model: str, sizes: tuple[int, ...], tf32: bool = True) -> Counter[bool]:
    """The same of a model of bench/changing_shapes.py."""
    given = changing_shapes.feeds(model)
    feeds = [
        {name: TensorType(a.shape, a.dtype) for name, a in zip("xy", given(n), strict=True)} for n in sizes
    ]  # fmt: skip
    return check_plans_of(*trained(model), feeds, tf32)


def check_two_sizes() -> Counter[bool]:
    """The same of a program of which one size changes, then another one, then both, also to the same."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x = mg.static.data("x", [None, None])
        y = mg.nn.functional.softmax(mg.matmul(x, mg.transpose(x, [1, 0])) + mg.sum(x, axis=1))
        mg.assign(y * mg.mean(x), output=mg.static.data("out", [None, None]))
        out = mg.sum(y)
    sizes = (8, 32), (9, 32), (12, 32), (12, 40), (9, 64), (64, 64), (10, 48), (33, 7), (11, 50), (5, 5), (8, 32)
    sizes = *sizes, (8, 64), (9, 32), (10, 32), (11, 64), (12, 32), (4, 0), (7, 1), (1, 7)
    return check_plans_of(main, out.name, [{"x": TensorType(both, float32)} for both in sizes], tf32=False)


@pytest.mark.parametrize(
    ("model", "tf32"), graded([("mlp", False), ("mlp", True), ("block", True)], now=lambda model, tf32: model == "mlp")
)
def test_plans_of_many_sizes_are_as_if_each_were_alone(model, tf32):
    hits = check_model(model, SIZES[model], tf32)
    assert hits[True] > 20, "many operators are not bound anew"


def test_the_last_sizes_of_many_are_bound_by_nothing_but_templates():
    sizes = tuple(dict.fromkeys([256, *map(int, changing_shapes.sizes("mlp"))]))
    assert not check_model("mlp", (*sizes[:36], *sizes[46:]))[False] > 60


def test_sizes_that_change_one_after_the_other_are_no_constants():
    hits = check_two_sizes()
    assert hits[True] > 10


def check_all() -> None:
    check_two_sizes()
    check_model("mlp", SIZES["mlp"], tf32=False)
    check_model("mlp", SIZES["mlp"])
    list(map(check_plans, range(8)))


def wrong_conditions(monkeypatch):
    own = Trace.asked
    monkeypatch.setattr(Trace, "asked", lambda self, f, a, b: f(*(getattr(x, "value", x) for x in (a, b))))
    return own


def wrong_constants(monkeypatch):
    def fitting(self, sizes):
        return self.questions.fitting([sizes[i] for i in self.places])

    monkeypatch.setattr(templates.Templates, "fitting", fitting)


def wrong_answers(monkeypatch):
    monkeypatch.setattr(templates, "_answers", lambda calls, sure: [])
    own = templates.CallTemplate.__init__
    monkeypatch.setattr(templates.CallTemplate, "__init__",
                        lambda self, *given: own(self, *given) or setattr(self, "answers", None))  # fmt: skip


def wrong_structures(monkeypatch):
    class Any_(dict):
        def get(self, key, default=None):
            return next(iter(self.values()), default)

    own, kept = units.structure_of, Any_()
    monkeypatch.setattr("minigraph.runtime.cuda.bind.structure_of", lambda *given: own(*given[:-1], kept))


def wrong_branches(monkeypatch):
    """What comes after one answer comes after any."""

    def end(branch, found):
        while branch.end is None:
            for function, a, b, asked, known in branch.steps:
                found.append(a if function is None else function(found[a], found[b]))
                if asked and found[-1] != known:
                    return None
            branch = branch.answers[0][1]
        return own(branch, found)

    own = symbolic._end
    monkeypatch.setattr(symbolic, "_end", end)


@pytest.mark.parametrize("bug", [wrong_conditions, wrong_constants, wrong_answers, wrong_structures, wrong_branches])
def test_templates_of_other_sizes_are_seen(monkeypatch, bug):
    """Bugs: no answer is a condition; what changes is a constant; answers of a library, structures, branches of others.
    """
    bug(monkeypatch)
    with pytest.raises((AssertionError, MinigraphError, TypeError, IndexError, KeyError)):
        check_all()


def test_a_template_that_gives_other_calls_is_not_kept(monkeypatch):
    """A bind function that asks for the type of a size: its calls on symbols are others."""
    own = pointwise.blocks_for
    monkeypatch.setattr(pointwise, "blocks_for", lambda n, each: own(n, each if isinstance(n, int) else 2 * each))
    check_model("mlp", SIZES["mlp"][:6])


def value(scope: mg.static.Scope, name: str) -> np.ndarray:
    found = scope.find_var(name)
    assert found is not None
    return np.array(found.get_tensor())


def test_a_label_that_is_no_class_is_told_of_at_sizes_from_templates(stub):
    main, startup, scope = mg.static.Program(), mg.static.Program(), mg.static.Scope()
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        x, y = mg.static.data("x", [None, 6]), mg.static.data("y", [None, 1], "int64")
        loss = mg.nn.functional.cross_entropy(mg.nn.Linear(6, 5)(x), y)
        mg.optimizer.AdamW(1e-2).minimize(loss)
    program = mg.static.CompiledProgram(main, build_strategy=mg.static.BuildStrategy.all())
    exe = mg.static.Executor(mg.CUDAPlace(0))
    exe.run(startup, scope=scope)
    for n in (9, 4, 12, 16, 11, 7):
        before = {name: value(scope, name) for name in list(scope.arrays)}
        label = np.zeros((n, 1), np.int64)
        label[n - 1] = 7
        with pytest.raises(MinigraphError, match=re.escape(f"value 7 at row {n - 1} is not a class in [0, 5)")) as told:
            exe.run(program, {"x": np.ones((n, 6), np.float32), "y": label}, [loss], scope=scope)
        assert f"f32[{n},5]" in str(told.value) and str(told.value).count("softmax_with_cross_entropy") == 1
        for name, array in before.items():
            np.testing.assert_array_equal(value(scope, name), array)
        exe.run(program, {"x": np.ones((n, 6), np.float32), "y": label % 5}, [loss], scope=scope)


def test_no_symbol_outlives_its_plans(stub, frozen):
    """Else a cache that knows it would take it for a size of another program."""
    assert check_model("block", (64, 32, 48, 17))[True]
    with mg.static.program_guard(mg.static.Program(), mg.static.Program()):
        x = mg.static.data("x", [None, 48], "float32")
        loss = mg.mean(mg.exp(mg.nn.functional.relu(x) * 0.5) + mg.sqrt(mg.abs(x) + 1.0))
        compiled = mg.static.CompiledProgram(mg.static.default_main_program(), mg.static.BuildStrategy.all())
        exe = mg.static.Executor(mg.CUDAPlace(0))
        for n in (5, 7, 3, 4, 6):
            exe.run(compiled, {"x": np.ones((n, 48), "float32")}, [loss])
    del compiled, exe, loss, x
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is SizeSymbol]
