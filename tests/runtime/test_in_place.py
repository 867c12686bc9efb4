"""Outputs written where dying inputs lay: on a stub of the GPU with the real kernels' text, run on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.compiler import CompiledProgram
from minigraph.compiler.strategy import BuildStrategy
from minigraph.kernels.cuda.fused import fused, members
from minigraph.kernels.cuda.record.calls import Copy
from minigraph.opdef import OPS
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.cuda.bind import BoundProgram, bind_program
from minigraph.runtime.executor import Executor
from minigraph.runtime.options import RunOptions
from minigraph.types import TensorType
from tests.support.random_chains import random_chain

pytestmark = pytest.mark.usefixtures("stub")
SHAPE = (6, 20)


def types_of(feeds):
    return {name: TensorType(a.shape, a.dtype) for name, a in feeds.items()}


def taken_over(program, feeds, fetches) -> int:
    """How many temporary values lie where another one lay."""
    bound = bind_program(program, types_of(feeds), fetches)
    return len(bound.buffers) - len({id(b) for b in bound.buffers})


def on_gpu(program, chain, **flags):
    compiled = CompiledProgram(program, BuildStrategy(allow_cuda_graph_capture=False, **flags))
    return Executor(mg.CUDAPlace(0)).run(compiled, chain.feeds, chain.fetches, scope=Scope())


def test_random_chains_compute_the_same_bits_in_place_and_apart():
    found = 0
    for seed in range(6):
        chain = random_chain(seed, "float32", SHAPE)
        fused_program = CompiledProgram(chain.program, BuildStrategy(fuse_elementwise=True)).program_for(chain.fetches)
        found += taken_over(fused_program, chain.feeds, chain.fetches)
        in_place, apart = (
            on_gpu(chain.program, chain, fuse_elementwise=True, enable_inplace=inplace) for inplace in (True, False)
        )
        for a, b in zip(in_place, apart, strict=True):
            np.testing.assert_array_equal(a, b)
        exact = Executor().run(chain.program, chain.feeds, chain.fetches, scope=Scope())
        for a, b in zip(in_place, exact, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    assert found >= 6


def two_outputs(body, shapes, dtype="float32"):
    """(program, feeds, fetches): y0 and y1 of a body, whose inputs are computed and die there."""
    program = Program()
    g = Builder(program.global_block())
    xs = [program.global_block().create_var(f"x{i}", s, dtype, is_data=True) for i, s in enumerate(shapes)]
    out = g.emit("fused_elementwise", [g.cumsum(x, axis=0) for x in xs], body=body)
    rng = np.random.default_rng(1)
    feeds = {x.name: rng.uniform(0.5, 1.5, s).astype(dtype) for x, s in zip(xs, shapes, strict=True)}
    fetches = [g.cumsum(v, axis=0).name for v in out]
    return program, feeds, fetches


def same_as_cpu(program, feeds, fetches) -> BoundProgram:
    found = Executor(mg.CUDAPlace(0)).run(program, feeds, fetches, scope=Scope())
    exact = Executor().run(program, feeds, fetches, scope=Scope())
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)
    return bind_program(program, types_of(feeds), fetches)


def lies_over(bound) -> list[bool]:
    """For each output of the fused step, whether it lies in the memory of an input."""
    step = next(s for s in bound.schedule.steps if s.op.type == "fused_elementwise")
    inputs = {id(bound.buffers[i]) for i in step.read}
    return [id(bound.buffers[i]) in inputs for i in step.written]


def test_every_output_of_a_fused_kernel_may_lie_over_an_input():
    body = ["y0 = elementwise_add(X=x0, Y=x1)", "y1 = elementwise_mul(X=y0, Y=x0)"]
    bound = same_as_cpu(*two_outputs(body, [SHAPE, SHAPE]))
    assert lies_over(bound) == [True, True]
    assert not any(isinstance(c, Copy) for c in bound.binder.calls)


def too_much(*args):
    raise fused.TooMuch("planted")


def test_members_that_run_one_by_one_read_a_copy(monkeypatch):
    """y0 is written before the second member reads x0, in whose memory it lies; y1 lies over x1, which it reads."""
    body = ["y0 = elementwise_add(X=x0, Y=x1)", "y1 = elementwise_mul(X=x1, Y=x0)"]
    monkeypatch.setattr(fused, "_bind_whole", too_much)
    program, feeds, fetches = two_outputs(body, [SHAPE, SHAPE])
    bound = same_as_cpu(program, feeds, fetches)
    assert lies_over(bound) == [True, True]
    assert sum(isinstance(c, Copy) for c in bound.binder.calls) == 1
    monkeypatch.setattr(members, "_copies", lambda *_: {})
    with pytest.raises(AssertionError):
        same_as_cpu(program, feeds, fetches)


@pytest.mark.parametrize("planted", [None, "_reads_behind", "last_uses"])
def test_members_that_run_one_by_one_compute_the_same_in_memory_that_they_share(monkeypatch, planted):
    monkeypatch.setattr(fused, "_bind_whole", too_much)
    monkeypatch.setattr(fused, "bind_rows", too_much)
    wrong = {"_reads_behind": lambda *_: [],
             "last_uses": lambda ms: {n: 0 for m in ms for n in (*m.read, *m.written)}}  # fmt: skip
    if planted is not None:
        monkeypatch.setattr(members, planted, wrong[planted])
    different = 0
    for seed in range(24):
        chain = random_chain(seed, "float32", SHAPE)
        found = on_gpu(chain.program, chain, fuse_elementwise=True)
        exact = Executor().run(chain.program, chain.feeds, chain.fetches, scope=Scope())
        pairs = zip(found, exact, strict=True)
        different += not all(np.allclose(a, b, rtol=2e-4, atol=2e-5, equal_nan=True) for a, b in pairs)
    assert (different > 0) == (planted is not None)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_too_wide_for_registers_plan_no_more_than_their_members_alone(dtype):
    main = Program()
    with mg.static.program_guard(main, Program()):
        x, y = mg.static.data("x", [500, 32], dtype), mg.static.data("y", [500], "int64")
        z = mg.matmul(x, mg.static.create_parameter([32, 20000], dtype))
        loss = mg.nn.functional.cross_entropy(z, y) + 1e-4 * mg.mean(mg.square(mg.logsumexp(z, -1)))
        mg.optimizer.SGD(0.1).minimize(loss)
    off, on = (
        CompiledProgram(main, BuildStrategy(fuse_elementwise=on)).memory_report({}, [loss], mg.CUDAPlace(0)).planned
        for on in (False, True)
    )
    assert on <= off * 1.001


def test_what_all_rows_share_is_copied_before_a_sum_over_rows_takes_its_place():
    body = ["t0, y0, y1 = layer_norm_grad(X=x0, Mean=x1, Variance=x2, Y_grad=x0, Scale=x3, Bias=x4)"]
    body[0] = body[0].replace("t0", "y2")
    n, rows = 8, 8  # a scale has the type of the statistics of rows, and of the sums over rows
    program, feeds, fetches = two_outputs(body, [(rows, n), (rows,), (rows,), (n,), (n,)])
    bound = same_as_cpu(program, feeds, fetches)
    assert any(lies_over(bound))


@pytest.mark.parametrize("optimizer", [False, True], ids=["fuse_foreach", "foreach_optimizer_ops"])
def test_lists_are_clipped_where_they_lie(optimizer):
    """Operators on lists write over lists that die: the clipped gradients take no memory of their own."""
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup):
        x = mg.static.data("x", [4, 20])
        loss = mg.mean(mg.nn.Linear(30, 7)(mg.tanh(mg.nn.Linear(20, 30)(x))))
        mg.optimizer.SGD(0.1, grad_clip=mg.nn.ClipGradByValue(0.01)).minimize(loss)
    names = [v.name for v in main.all_parameters()]
    found = []
    feeds = {"x": np.random.default_rng(0).normal(size=(4, 20)).astype("float32")}
    lists = {"foreach_optimizer_ops": optimizer, "fuse_foreach": True}
    for place, flags in ((mg.CPUPlace(), {}), (mg.CUDAPlace(0), lists)):
        exe, scope = Executor(place), Scope()
        startup.random_seed = 3
        Executor().run(startup, scope=scope)
        compiled = CompiledProgram(main, BuildStrategy(allow_cuda_graph_capture=False, **flags))
        for _ in range(3):
            exe.run(compiled, feeds, [], scope=scope)
        found.append([np.array(scope.on_host(n)) for n in names])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    bound = bind_program(compiled.program_for([]), types_of(feeds), [])
    buffers, ran = bound.buffers, 0
    for step in bound.schedule.steps:
        if "foreach" in step.op.type and all(bound.schedule.values[i].producer >= 0 for i in step.inputs[0]):
            ran += 1
            assert [id(buffers[i]) for i in step.outputs[0]] == [id(buffers[i]) for i in step.inputs[0]]
    assert ran


def test_lists_of_more_results_than_inputs_are_computed():
    """The results beyond have no input over which they could be written."""
    program, shapes = Program(), [(4, 3), (5,)]
    g, block = Builder(program.global_block()), program.global_block()
    xs = [block.create_var(f"x{i}", s, "float32", is_data=True) for i, s in enumerate(shapes)]
    body = ["y0 = square(X=x0)", "y1 = elementwise_add(X=y0, Y=x0)"]
    outs = g.emit("foreach_elementwise", [g.cumsum(x, axis=0) for x in xs], body=body, count=2)
    feeds = {f"x{i}": np.random.default_rng(i).normal(size=s).astype("float32") for i, s in enumerate(shapes)}
    found = Executor(mg.CUDAPlace(0)).run(program, feeds, [g.cumsum(v, axis=0).name for v in outs], scope=Scope())
    sums = [np.cumsum(x.astype(float), axis=0) for x in feeds.values()]
    for a, b in zip(found, [x * x for x in sums] + [x * x + x for x in sums], strict=True):
        np.testing.assert_allclose(a, np.cumsum(b, axis=0), rtol=1e-5, atol=1e-5)


def test_a_sum_of_gradients_is_added_up_in_place_by_the_product():
    program = Program()
    g = Builder(program.global_block())
    x, y, acc = (program.global_block().create_var(n, (8, 8), "float32", is_data=True) for n in "xya")
    total = g.cumsum(g.matmul_accumulate(x, y, g.cumsum(acc, axis=0)), axis=0)
    feeds = {n: np.random.default_rng(i).normal(size=(8, 8)).astype("float32") for i, n in enumerate("xya")}
    bound = same_as_cpu(program, feeds, [total.name])
    assert not any(isinstance(c, Copy) for c in bound.binder.calls)
    apart = bind_program(program, types_of(feeds), [total.name], options=RunOptions(inplace=False))
    assert sum(isinstance(c, Copy) for c in apart.binder.calls) == 1


@pytest.mark.parametrize("which", ["x", "y"])
def test_an_operand_of_a_product_is_never_its_sum(which):
    """Only what is added to may be overwritten: a product reads its operands more than once."""
    program = Program()
    g = Builder(program.global_block())
    x, y, acc = (program.global_block().create_var(n, (8, 8), "float32", is_data=True) for n in "xya")
    out = g.matmul_accumulate(x, y, {"x": x, "y": y}[which])
    feeds = {n: np.random.default_rng(i).normal(size=(8, 8)).astype("float32") for i, n in enumerate("xy")}
    same_as_cpu(program, feeds, [out.name])
    assert "in_place" in OPS["matmul_accumulate"].traits and acc.is_data


def test_fetched_and_later_read_values_keep_their_memory():
    body = ["y0 = elementwise_add(X=x0, Y=x1)", "y1 = elementwise_mul(X=y0, Y=x0)"]
    program, feeds, fetches = two_outputs(body, [SHAPE, SHAPE])
    first, second = (op.output_arg_names[0] for op in program.ops[:2])
    assert lies_over(same_as_cpu(program, feeds, [*fetches, first])) == [True, False]
    assert lies_over(same_as_cpu(program, feeds, [*fetches, first, second])) == [False, False]
    assert lies_over(bind_program(program, types_of(feeds), fetches, options=RunOptions(inplace=False))) == [False] * 2


@pytest.mark.parametrize("view", [lambda g, w: g.reshape(w, shape=(4, 4)), lambda g, w: g.transpose(w, perm=(1, 0))])
@pytest.mark.parametrize("place", [mg.CPUPlace(), mg.CUDAPlace(0)], ids=str)
def test_a_persistable_is_not_written_while_a_view_of_it_is_read(place, view):
    """Its own operator takes the view, not the persistable itself, which it would update in place."""
    rng, results = np.random.default_rng(0), []
    x, w = rng.normal(size=(4, 4)), rng.normal(size=(4, 4))
    for apart in (False, True):
        program = Program()
        block = program.global_block()
        g = Builder(block)
        data = block.create_var("x", (4, 4), "float64", is_data=True)
        state = block.create_var("w", (4, 4), "float64", persistable=True)
        shown = view(g, state)
        shown = g.scale(shown) if apart else shown
        y = g.tanh_grad(g.exp(data), shown, out={"X_grad": state})
        g.matmul_accumulate(view(g, y) if not apart else g.scale(view(g, y)), data, data, out={"Out": state})
        scope = Scope()
        scope.write("w", w.copy())
        for _ in range(3):
            Executor(place).run(program, {"x": x}, [], scope=scope)
        results.append(np.asarray(scope.read("w")))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12)
