"""fuse_foreach: user-written updates are one operator and give the same bits; what is refused; defects are seen."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
import minigraph.optimizer as opt
from minigraph.errors import ShapeError
from minigraph.kernels.cpu import foreach_elementwise as cpu
from minigraph.passes.foreach import chains, fuse_foreach
from minigraph.program import Program, program_guard
from minigraph.program.builder import Builder as OpBuilder
from minigraph.static import BuildStrategy, CompiledProgram
from tests.support.written_rules import Builder, Written, lion, momentum_by_lists, random_rules

ON = {"fuse_foreach": True, "verify": "each_pass"}


def check_same(written: Written, **flags) -> CompiledProgram:
    """The same bits with the pass on; the compiled program."""
    expected, found = written.run(), written.run(BuildStrategy(**ON, **flags))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    return CompiledProgram(written.program, BuildStrategy(**ON, **flags))


def types(compiled: CompiledProgram) -> list[str]:
    return [op.type for op in compiled.program_for(()).ops]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_rule_on_tensors_of_all_sizes_is_one_operator(dtype):
    assert types(check_same(lion(dtype=dtype))) == ["foreach_elementwise"]


def test_rates_that_differ_are_numbers_of_the_tensors():
    compiled = check_same(lion(rates=2))
    op, = compiled.program_for(()).ops
    assert op.type == "foreach_elementwise" and "Shared" not in op.inputs


@pytest.mark.parametrize("sizes", [[(4, 3), (1,)], [(1,), (3,)]])
def test_a_list_of_whole_tensors_and_of_numbers_is_refused(sizes):
    """Kernels read one number for each tensor of a list, or all elements of each."""
    made, body = Program(), ["y0 = elementwise_add(X=x0, Y=x1)"]
    with program_guard(made):
        lists = ("a", [(4, 3), (3,)]), ("b", sizes)
        whole, other = ([mg.static.data(f"{of}{i}", s) for i, s in enumerate(own)] for of, own in lists)
        block = made.global_block()
        with pytest.raises(ShapeError, match="x1 has one element for some tensors, and more for others"):
            OpBuilder(block).emit("foreach_elementwise", [*whole, *other], body=body, count=2)
        ones = [mg.static.data(f"c{i}", (1,)) for i in range(2)]
        OpBuilder(block).emit("foreach_elementwise", [*whole, *ones], body=body, count=2)


@pytest.mark.parametrize("again", [1, 2])
def test_a_value_inside_that_is_written_again_later_is_refused(again):
    """It has two values, and the second one stays."""
    made, fed = Program(), np.arange(3, dtype="f4")
    with program_guard(made):
        xs = [mg.static.data(f"x{i}", [3]) for i in range(2)]
        inner = [mg.scale(x, 2.0) for x in xs]
        outs = [mg.scale(v, 3.0) for v in inner]
        for v in inner[:again]:
            mg.assign(xs[0][::-1], output=v)
        last = mg.scale(inner[0], 5.0)
    compiled = CompiledProgram(made, BuildStrategy(**ON))
    found = mg.static.Executor().run(compiled, {"x0": fed, "x1": fed + 1}, [*outs, last])
    np.testing.assert_array_equal(found, [fed * 6, (fed + 1) * 6, fed[::-1] * 5])
    assert f"{inner[0].name} is written again" in str(compiled.explain())


def test_functions_of_lists_are_few_operators():
    assert types(check_same(momentum_by_lists())) == ["foreach_p_norm", "foreach_elementwise", "foreach_elementwise"]


def test_data_types_have_an_operator_each():
    b = Builder()
    with program_guard(b.program), b.program.emitting("optimize"):
        for i, dtype in enumerate(("float64", "float32", "float64", "float32")):
            p = b.variable(f"p{i}", (i + 2,), dtype)
            mg.assign(p * 0.5 + 1.0, output=p)
    assert types(check_same(Written(b.program, b.values))) == ["foreach_elementwise"] * 2


def test_all_turns_it_on_and_keeps_results():
    written = lion()
    expected, found = written.run(), written.run(BuildStrategy.all())
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert types(CompiledProgram(written.program, BuildStrategy.all())) == ["foreach_elementwise"]


def test_arrays_of_the_scope_are_updated_in_place():
    written = lion()
    scope, exe = written.scope(), mg.static.Executor()
    compiled = CompiledProgram(written.program, BuildStrategy(**ON))
    exe.run(compiled, {}, [], scope=scope)  # brings large arrays to the start of a page
    arrays = dict(scope.arrays)
    exe.run(compiled, {}, [], scope=scope)
    kept = {name for name, a in arrays.items() if scope.arrays[name] is a}
    assert kept == set(arrays)


class Rule(opt.Optimizer):
    """A rule like Lion's, as the page docs/foreach.md has it."""

    def append_update(self, g, param, grad, lr):
        m = self.state(param, "moment")
        step = mg.sign(m * 0.9 + grad * 0.1) + param * 0.01
        mg.assign(m * 0.99 + grad * 0.01, output=m)
        mg.assign(param - step * lr, output=param)


def hundred(clip=None) -> Program:
    main = Program()
    with program_guard(main, Program()):
        x = mg.static.data("x", [4, 8])
        for _ in range(50):
            x = mg.nn.Linear(8, 8)(x)
        Rule(0.01, grad_clip=clip).minimize(mg.mean(x))
    return main


def test_a_hundred_parameters_are_one_launch():
    main = hundred()
    counts = []
    for strategy in (BuildStrategy(), BuildStrategy(fuse_foreach=True)):
        kernels = CompiledProgram(main, strategy).kernels({"x": [4, 8]}, fetch_list=[])
        counts.append(sum(k.op is not None and k.op.role == "optimize" for k in kernels))
    assert counts == [1300, 1]
    said = CompiledProgram(main, BuildStrategy(fuse_foreach=True)).explain()
    assert "foreach_elementwise of 100 tensors" in said


def test_clipping_by_each_norm_needs_no_operator_for_each_parameter():
    compiled = CompiledProgram(hundred(mg.nn.ClipGradByNorm(1.0)), BuildStrategy(fuse_foreach=True))
    optimize = [op.type for op in compiled.program_for(()).ops if op.role == "optimize"]
    assert optimize.count("foreach_elementwise") == 2
    assert set(optimize) == {"squared_l2_norm", "fill_constant", "foreach_elementwise"}


@pytest.mark.parametrize("seed", range(60))
def test_random_rules_give_the_same_bits(seed):
    check_same(random_rules(seed))


def test_random_rules_reach_the_pass_and_its_refusals():
    applied, refused = 0, set()
    for seed in range(60):
        said = CompiledProgram(random_rules(seed).program, BuildStrategy(fuse_foreach=True)).explain()
        applied += said.count("foreach_elementwise of")
        refused |= {word for word in ("alone", "written twice", "run before the other") if word in said}
    assert applied > 60 and refused == {"alone", "written twice", "run before the other"}


# hazards


def two(body) -> Written:
    """`body(p, q, o)` builds on three variables of one shape."""
    b = Builder()
    with program_guard(b.program), b.program.emitting("optimize"):
        body(*(b.variable(name, (3,)) for name in "pqo"))
    return Written(b.program, b.values)


HAZARDS = {
    "a chain reads what another one has written": lambda p, q, o: (
        mg.assign(p * 0.5, output=p), mg.assign(p * 0.5, output=q)),
    "a chain reads what another one will write": lambda p, q, o: (
        mg.assign(q * 0.5, output=p), mg.assign(o * 0.5, output=q)),
    "each reads what the other one writes": lambda p, q, o: mg.foreach.add([p, q], [q, p], out=[p, q]),
    "a value is read between": lambda p, q, o: (
        mg.assign(p * 0.5, output=p), mg.assign(mg.cumsum(p), output=o), mg.assign(q * 0.5, output=q)),
    "a sum of what is overwritten": lambda p, q, o: (
        mg.assign(q * mg.sum(p), output=q), mg.assign(p * mg.sum(o), output=p)),
    "twice in a list": lambda p, q, o: mg.foreach.mul([p, p], [q, o], out=[q, o]),
    "written twice": lambda p, q, o: (
        mg.assign(p * 0.5, output=p), mg.assign(p * 0.5, output=p), mg.assign(q * 0.5, output=q)),
    "other arithmetic": lambda p, q, o: (mg.assign(p * 0.5, output=p), mg.assign(mg.tanh(q), output=q)),
    "the old value is needed behind the new one": lambda p, q, o: [_late(x, o) for x in (p, q)],
}  # fmt: skip


def _late(x, o):
    old = x * 1.0
    new = mg.assign(x * 0.5, output=x)
    mg.assign(new + old * o, output=x)


@pytest.mark.parametrize("name", HAZARDS)
def test_hazards_keep_their_results(name):
    check_same(two(HAZARDS[name]))


def _long(x):
    """More operators than a kernel has members."""
    y = x
    for _ in range(fuse_foreach.MOST_MEMBERS):
        y = mg.tanh(y)
    mg.assign(y * 0.5, output=x)


def _wide(x, others):
    """More values than a kernel has columns."""
    for other in others:
        x = x + other
    mg.assign(x, output=others[0])


def refused_of(shapes, body) -> str:
    b = Builder()
    with program_guard(b.program), b.program.emitting("optimize"):
        body([b.variable(f"v{i}", shape) for i, shape in enumerate(shapes)])
    check_same(Written(b.program, b.values))
    return CompiledProgram(b.program, BuildStrategy(fuse_foreach=True)).explain()


def test_chains_that_no_kernel_holds_are_refused():
    said = refused_of([(3,)] * 2, lambda vs: [_long(v) for v in vs])
    assert f"{fuse_foreach.MOST_MEMBERS + 2} operators meet, a kernel has at most {fuse_foreach.MOST_MEMBERS}" in said
    half = fuse_foreach.MOST_COLUMNS + 1
    said = refused_of([(3,)] * 2 * half, lambda vs: [_wide(vs[i], vs[i + 1 : i + half]) for i in (0, half)])
    assert f"values of a tensor are read and written, {fuse_foreach.MOST_COLUMNS} can be" in said


def test_an_output_does_not_overwrite_what_is_read_later():
    body = ["y0 = scale(X=x0) {scale=2.0}", "t0 = square(X=y0)", "y1 = elementwise_add(X=t0, Y=x0)"]
    for size in (3, 200000):
        x = [np.arange(float(size)), np.arange(3.0) + size]
        expected = [x[0] * 2, x[1] * 2, (x[0] * 2) ** 2 + x[0], (x[1] * 2) ** 2 + x[1]]
        rest = [np.empty_like(a) for a in x]
        found = cpu.on_lists(x, body=body, count=2, out=([*x, *rest],))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        assert found[0] is x[0]


# planted defects: each must change a result of a random rule, or break the graph


def the_order_of_levels_is_forgotten(patch):
    patch.setattr(chains.Chains, "_levels", lambda self: dict.fromkeys(self.ops, 0))


def lines_are_not_compared(patch):
    original = fuse_foreach._checked
    patch.setattr(fuse_foreach, "_checked", lambda chain: original(chain)._replace(
        lines=("",) * len(original(chain).lines)))  # fmt: skip


def overwriting_needs_no_order(patch):
    def before(self, op):
        for v in op.input_vars:
            yield from [v.producer] if v.producer is not None else []

    patch.setattr(chains.Chains, "_before", before)


def outputs_are_written_at_once(patch):
    patch.setattr(cpu, "_read_behind", lambda recipe: [])
    cpu.list_recipe.cache_clear()


@pytest.mark.parametrize("plant", [
    the_order_of_levels_is_forgotten, lines_are_not_compared, overwriting_needs_no_order, outputs_are_written_at_once,
], ids=lambda plant: plant.__name__)  # fmt: skip
def test_planted_defect_is_seen(plant, monkeypatch):
    plant(monkeypatch)
    checks = [test_an_output_does_not_overwrite_what_is_read_later,
              *(lambda name=name: check_same(two(HAZARDS[name])) for name in HAZARDS),
              *(lambda seed=seed: check_same(random_rules(seed)) for seed in range(60))]  # fmt: skip
    for check in checks:
        try:
            check()
        except Exception:  # a difference, or a graph that is refused
            cpu.list_recipe.cache_clear()
            return
    pytest.fail("nothing showed it")
