"""The pass recompute and checkpoints of append_backward: the same bits in less memory, and what is refused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import AttrError, ProgramError
from minigraph.ir.convert import to_graph
from minigraph.ir.text import parse
from minigraph.passes.recompute import forward_of, narrow_cuts
from minigraph.program.scope import Scope
from minigraph.program.text.dump import dump
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram

F = mg.nn.functional
ROWS, WIDTH, LAYERS = 64, 32, 12
ON = {"recompute": True}


def network(checkpoints=None, every=3, optimizer=None, batch_norm=False, rows=ROWS):
    """(program, startup, loss, hidden values) of layers with dropout; every third hidden value may be a checkpoint."""
    main, startup = mg.static.Program(), mg.static.Program()
    main.random_seed = startup.random_seed = 7
    with mg.static.program_guard(main, startup), mg.utils.unique_name.guard():
        x = h = mg.static.data("x", [rows, WIDTH])
        hidden = []
        for _ in range(LAYERS):
            h = h + F.dropout(F.gelu(mg.nn.Linear(WIDTH, WIDTH)(h)), 0.3)
            h = mg.nn.BatchNorm1D(WIDTH)(h) if batch_norm else h
            hidden.append(h)
        loss = mg.mean((h - x) ** 2)
        if checkpoints is not None:
            chosen = hidden[every - 1 : -1 : every]
            chosen = [v.name for v in chosen] if checkpoints == "names" else chosen
            if optimizer is None:
                mg.static.append_backward(loss, checkpoints=chosen)
            else:
                optimizer._set_checkpoints(chosen)
        if optimizer is not None:
            optimizer.minimize(loss)
        elif checkpoints is None:
            mg.static.append_backward(loss)
    return main, startup, loss, hidden


def grads(main, program, startup, loss, extra=()):
    """All parameters' gradients, the loss, and other values, of one run."""
    exe, scope = Executor(mg.CPUPlace()), Scope()
    exe.run(startup, scope=scope)
    x = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype("float32")
    names = [f"{p.name}@GRAD" for p in main.all_parameters() if f"{p.name}@GRAD" in main.vars]
    return exe.run(program, {"x": x}, [loss, *names, *extra], scope=scope), scope


def same_bits(a, b):
    return len(a) == len(b) > LAYERS and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("flags", [{}, vars(BuildStrategy.all())])
@pytest.mark.parametrize("segments", [None, 2, 7, 400])
def test_results_are_the_same_bits(flags, segments):
    main, startup, loss, _ = network()
    plain, _ = grads(main, CompiledProgram(main, BuildStrategy(**flags)), startup, loss)
    compiled = CompiledProgram(main, BuildStrategy(**{**flags, **ON, "recompute_segments": segments}))
    again, _ = grads(main, compiled, startup, loss)
    assert same_bits(plain, again)
    ops = compiled.after.ops
    drawn = Counter(op.number for op in ops if op.type == "dropout")
    assert flags or max(drawn.values()) == 2  # some draw twice, the same
    assert any(".again" in name for op in ops for name in op.output_arg_names)
    assert "recompute" in compiled.explain()


@pytest.mark.parametrize("flags", [{}, vars(BuildStrategy.all())])
@pytest.mark.parametrize("place", [mg.CPUPlace(), mg.CUDAPlace(0)])
def test_memory_is_that_of_the_cuts_and_a_segment(flags, place):
    main, _, loss, _ = network(rows=1 << 16, optimizer=mg.optimizer.SGD(0.1))
    off, on = (
        CompiledProgram(main, BuildStrategy(**{**flags, "recompute": on})).memory_report(fetch_list=[loss], place=place)
        for on in (False, True)
    )
    gradients = sum(p.type.nbytes for p in main.all_parameters())
    assert on.live - gradients < 0.6 * (off.live - gradients)
    assert on.planned - gradients < 0.6 * (off.planned - gradients)


@pytest.mark.parametrize("checkpoints", ["variables", "names"])
def test_checkpoints_are_what_is_kept(checkpoints):
    plain, startup, loss, _ = network()
    main, _, _, hidden = network(checkpoints)
    exact, _ = grads(plain, plain, startup, loss)
    again, _ = grads(main, main, startup, loss.name)
    assert same_bits(exact, again)
    drawn = Counter(op.number for op in main.ops if op.type == "dropout")
    assert sorted(drawn.values()) == [1] * 3 + [2] * 9  # the last three layers are kept
    last = next(at for at, op in enumerate(main.ops) if any(v is hidden[8] for v in op.output_vars))
    early = {id(v) for op in main.ops[:last] for v in op.output_vars}
    read = {v.name for op in main.ops if op.role == "backward" for slot, vs in op.inputs.items() for v in vs
            if id(v) in early and slot not in op.opdef.unread(op.outputs)}  # fmt: skip
    assert read == {hidden[2].name, hidden[5].name}
    assert dump(parse(dump(main))) == dump(main)


def test_fusions_take_copies_too():
    main, startup, loss, _ = network("variables")
    compiled = CompiledProgram(main, BuildStrategy.all())
    plain, _ = grads(main, main, startup, loss)
    fused, _ = grads(main, compiled, startup, loss)
    count = Counter(op.type for op in compiled.after.ops)
    assert count["fused_gemm_epilogue"] == LAYERS + 9
    assert count["fused_gemm_epilogue_grad"] == LAYERS
    assert count["gelu"] == count["gelu_grad"] == 0
    for a, b in zip(plain, fused, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


def test_values_inside_a_segment_can_be_fetched():
    main, startup, loss, hidden = network()
    inside = [hidden[1].name, hidden[4].name]
    plain, _ = grads(main, main, startup, loss, inside)
    again, _ = grads(main, CompiledProgram(main, BuildStrategy(**ON)), startup, loss, inside)
    assert same_bits(plain, again)


@pytest.mark.parametrize("how", ["pass", "checkpoints"])
def test_states_are_updated_once(how):
    """Running averages of batch norm: operators that write them, or read what they were, are not copied."""
    main, startup, loss, _ = network(batch_norm=True)
    plain, one = grads(main, main, startup, loss)
    cut, startup, loss, _ = network("names" if how == "checkpoints" else None, batch_norm=True)
    program = cut if how == "checkpoints" else CompiledProgram(cut, BuildStrategy(**ON))
    again, other = grads(cut, program, startup, loss)
    assert same_bits(plain, again)
    ops = program.after.ops if isinstance(program, CompiledProgram) else program.ops
    types = Counter(op.type for op in ops)
    copied = Counter(op.type for op in ops if any(".again" in name for name in op.output_arg_names))
    assert copied["rsqrt"] > LAYERS // 2 and not copied["used_statistics"] and types["running_average"] == 2 * LAYERS
    states = [p.name for p in main.all_parameters() if not p.trainable]
    assert len(states) == 2 * LAYERS
    assert all(np.array_equal(one.read(name), other.read(name)) for name in states)


def test_an_optimizer_with_checkpoints_trains_the_same():
    curves = []
    for wrapped in (False, True):
        inner = mg.optimizer.Adam(1e-2, grad_clip=mg.nn.ClipGradByGlobalNorm(0.5))
        optimizer = mg.incubate.optimizer.RecomputeOptimizer(inner) if wrapped else inner
        main, startup, loss, _ = network("variables" if wrapped else None, optimizer=optimizer)
        exe, scope = Executor(mg.CPUPlace()), Scope()
        exe.run(startup, scope=scope)
        x = np.random.default_rng(2).normal(size=(ROWS, WIDTH)).astype("float32")
        curves.append([float(exe.run(main, {"x": x}, [loss], scope=scope)[0]) for _ in range(5)])
        assert optimizer.get_lr() == 1e-2
    assert curves[0] == curves[1]
    assert curves[0][-1] < curves[0][0]


def test_cuts_are_narrow():
    """Behind the sum that ends a block only it is handed on."""
    main, _, _, hidden = network()
    forward = forward_of(to_graph(main))
    cuts = narrow_cuts(forward, 4)
    names = {v.name for v in hidden}
    assert len(cuts) == 3
    assert all(names & {v.name for v in forward[at].output_vars} for at in cuts)


def test_a_program_without_gradients_stays():
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup):
        out = mg.tanh(mg.tanh(mg.static.data("x", [2, 3])))
    compiled = CompiledProgram(main, BuildStrategy(**ON))
    assert dump(compiled.program_for([out.name])) == dump(main)
    assert "recompute                        0 applied" in compiled.explain()


@pytest.mark.parametrize(
    ("checkpoints", "fact"),
    [
        (lambda hidden: "h", "checkpoints is a list of variables, not 'h'"),
        (lambda hidden: ["hiden"], "no variable of program|'hiden'"),
        (lambda hidden: ["x"], "checkpoint x: f32.* is not computed before the first gradient"),
        (lambda hidden: [3], "3"),
        (lambda hidden: [mg.static.Program().global_block().create_var("v", [2])], "'v' does not exist"),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_nothing(checkpoints, fact):
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        x = mg.static.data("x", [2, 3])
        h = mg.tanh(mg.nn.Linear(3, 3)(x))
        loss = mg.mean(mg.tanh(h))
        before = dump(main)
        with pytest.raises(ProgramError, match=fact):
            mg.static.append_backward(loss, checkpoints=checkpoints([h]))
        assert dump(main) == before
        optimizer = mg.incubate.optimizer.RecomputeOptimizer(mg.optimizer.SGD(0.1))
        with pytest.raises(ProgramError, match="has no checkpoints"):
            optimizer.minimize(loss)
        assert dump(main) == before


def test_settings_that_are_refused():
    with pytest.raises(AttrError, match="recompute_segments must be a positive int"):
        BuildStrategy(recompute_segments=0)
    with pytest.raises(ProgramError, match="made of an optimizer"):
        mg.incubate.optimizer.RecomputeOptimizer("adam")
    with pytest.raises(ProgramError, match="list of variables or names"):
        mg.incubate.optimizer.RecomputeOptimizer(mg.optimizer.SGD(0.1))._set_checkpoints("h")


def test_an_optimizer_takes_the_checkpoints_of_one_program_after_another():
    again = mg.incubate.optimizer.RecomputeOptimizer(mg.optimizer.SGD(0.1))
    for names in (False, True):
        with mg.static.program_guard(mg.static.Program(), mg.static.Program()):
            hidden = mg.tanh(mg.nn.Linear(2, 2)(mg.static.data("x", [None, 2])))
            checkpoints = [hidden.name if names else hidden]
            again._set_checkpoints(checkpoints)
            again.minimize(mg.mean(hidden))
            with pytest.raises(ProgramError, match="checkpoints are set after minimize, they would have no effect"):
                again._set_checkpoints(checkpoints)
