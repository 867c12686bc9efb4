"""Passes plan no more memory than without them, on a CPU and for a GPU; needs no GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import minigraph as mg
from minigraph.compiler import compiler
from minigraph.incubate.optimizer import GradientMergeOptimizer
from minigraph.ir.convert import to_graph
from minigraph.passes.engine import lives
from minigraph.passes.engine.lives import Lives, bytes_at, step_of
from minigraph.passes.foreach import fuse_foreach
from minigraph.program import unique_name
from minigraph.program.builder import Builder

MIB = 1 << 20
F = mg.nn.functional


def smoothed(dtype, rows=512, width=64, classes=1000, optimizer="SGD"):
    """A tied head with smoothed labels: scores are widened, then one_hot is written, then the loss reads both."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), unique_name.guard():
        ids, y = mg.static.data("ids", [rows], "int64"), mg.static.data("y", [rows], "int64")
        table = mg.static.create_parameter([classes, width], dtype)
        scores = mg.matmul(F.embedding(ids, table), table, transpose_y=True)
        loss = F.cross_entropy(mg.cast(scores, "float32"), y, label_smoothing=0.1)
        getattr(mg.optimizer, optimizer)(0.1).minimize(loss)
    return main, loss, {"ids": [rows], "y": [rows]}


def narrow_steps(level="O1", dtype="bfloat16", rows=16, width=256, layers=4, merge=False):
    """Few rows: the most memory is needed where all gradients are cast for the update, or added to merged ones."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), unique_name.guard():
        x, y = mg.static.data("x", [rows, width], "float32"), mg.static.data("y", [rows], "int64")
        h = x
        for _ in range(layers):
            h = F.relu(mg.nn.Linear(width, width)(h))
        loss = F.cross_entropy(mg.nn.Linear(width, 10)(h), y)
        optimizer = mg.static.amp.decorate(mg.optimizer.SGD(0.1), level=level, dtype=dtype)
        (GradientMergeOptimizer(optimizer, 2) if merge else optimizer).minimize(loss)
    return main, loss, {"x": [rows, width], "y": [rows]}


def report(made, place=None, **flags):
    main, loss, sizes = made
    strategy = mg.static.BuildStrategy(**flags)
    return mg.static.CompiledProgram(main, build_strategy=strategy).memory_report(sizes, [loss], place or mg.CPUPlace())


def planned(made, place=None, **flags):
    return report(made, place, **flags).planned


def types(made, place=None, **flags):
    main, loss, _ = made
    compiled = mg.static.CompiledProgram(main, build_strategy=mg.static.BuildStrategy(**flags))
    return [op.type for op in compiled.program_for([loss.name], place=place).ops], compiled.explain()


EVERY = vars(mg.static.BuildStrategy.all())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("flags", [{"fuse_elementwise": True}, EVERY], ids=["alone", "all"])
def test_a_cast_does_not_keep_what_it_reads_beside_its_result(dtype, flags):
    made = smoothed(dtype)
    off, on = planned(made), planned(made, **flags)
    assert on <= off + 64 * 1024, (off / MIB, on / MIB)


def test_the_rest_of_the_group_is_fused_and_the_refusal_says_why():
    found, said = types(smoothed("float16"), fuse_elementwise=True)
    assert "fused_elementwise" in found
    assert "needs more memory" in said


def test_float32_heads_are_fused_as_before():
    _, said = types(smoothed("float32"), fuse_elementwise=True)
    assert "needs more memory" not in said


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("flags", [{"fuse_foreach": True}, EVERY], ids=["alone", "all"])
def test_lists_of_casts_are_cut_where_the_step_needs_most_memory(dtype, flags):
    made = narrow_steps(dtype=dtype)
    off, on = planned(made), planned(made, **flags)
    assert on <= off + 64 * 1024, (off / MIB, on / MIB)


def test_lists_stay_whole_where_the_step_needs_more_elsewhere():
    """Many rows: activations are the most; the same casts are one list for all weights, one for all gradients."""
    few, said = types(narrow_steps(), fuse_foreach=True)
    many, other = types(narrow_steps(rows=4096), fuse_foreach=True)
    assert "need more memory at once" in said
    assert "need more memory at once" not in other
    assert many.count("cast") < few.count("cast")


def test_estimates_without_the_question_would_be_seen(monkeypatch):
    """Planted defects: nothing grows; lists may take all the memory there is."""
    head, steps = smoothed("float16"), narrow_steps()
    less = planned(head, fuse_elementwise=True), planned(steps, fuse_foreach=True)
    monkeypatch.setattr(Lives, "more_as_one", lambda *args: 0)
    monkeypatch.setattr(Lives, "more", lambda *args: 0)
    more = planned(head, fuse_elementwise=True), planned(steps, fuse_foreach=True)
    assert more[0] > 1.1 * less[0]
    assert more[1] > 1.1 * less[1]
    assert fuse_foreach.FREE == lives.FREE


# products beside others' gradients


MERGED = [narrow_steps(*how, width=1024, merge=True) for how in (("O1", "float16"), ("O2", "bfloat16"))]


@pytest.mark.parametrize("made", MERGED)
@pytest.mark.parametrize("flags", [{"fuse_grad_accumulation": True}, EVERY], ids=["alone", "all"])
def test_a_workspace_does_not_lie_beside_all_sums(made, flags):
    """On a GPU a product that adds to a merged gradient would have its workspace where all merged ones are."""
    for place in (mg.CPUPlace(), mg.CUDAPlace(0)):
        off, on = planned(made, place), planned(made, place, **flags)
        assert on <= 1.01 * off + 64 * 1024, (place, off / MIB, on / MIB)


def test_products_beside_all_sums_would_be_seen(monkeypatch):
    """A planted defect: nothing grows. explain() says what was refused."""
    made = MERGED[0]
    less = planned(made, mg.CUDAPlace(0), fuse_grad_accumulation=True)
    assert "needs more memory" in types(made, mg.CUDAPlace(0), fuse_grad_accumulation=True)[1]
    monkeypatch.setattr(Lives, "more", lambda *args: 0)
    assert planned(made, mg.CUDAPlace(0), fuse_grad_accumulation=True) > 1.1 * less


def test_a_head_whose_gradient_a_product_could_add_plans_no_more():
    """Three gradients of one table are added: by products to one of them, which a fused head has no part in."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), unique_name.guard():
        ids, y = mg.static.data("ids", [64], "int64"), mg.static.data("y", [64], "int64")
        table, losses = mg.static.create_parameter([16000, 256], "float32"), []
        h = F.embedding(ids, table)
        for _ in range(2):
            losses.append(F.cross_entropy(mg.matmul(h, table, transpose_y=True), y))
            h = mg.tanh(mg.nn.Linear(256, 256)(h))
        loss = losses[0] + losses[1]
        mg.optimizer.AdamW(0.1).minimize(loss)
    made = main, loss, {"ids": [64], "y": [64]}
    for place in (mg.CPUPlace(), mg.CUDAPlace(0)):
        off, on = planned(made, place, **{**EVERY, "fuse_linear_cross_entropy": False}), planned(made, place, **EVERY)
        assert on <= 1.01 * off + 64 * 1024, (place, off / MIB, on / MIB)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_sum_on_a_cpu_lies_where_an_operand_did(kept):
    """Of three values, the first `kept` of which are read once more; not over the third, which is read last."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), unique_name.guard():
        x = mg.static.data("x", [256, 256], "float32")
        parts = [mg.exp(x), mg.scale(x, scale=2.0), mg.tanh(x)]
        out = mg.scale(mg.add_n([mg.add_n(parts), *parts[:kept]]) if kept else mg.add_n(parts), scale=1.0)
    made = main, out, {"x": [256, 256]}
    assert planned(made) - report(made).fed <= (4 if kept == 2 else 3) * 256 * 256 * 4 + 4096
    array = np.random.default_rng(1).normal(size=(256, 256)).astype(np.float32)
    found = mg.static.Executor(mg.CPUPlace()).run(main, {"x": array}, [out])[0]
    wide = array.astype(np.float64)
    parts = [np.exp(wide), 2 * wide, np.tanh(wide)]
    np.testing.assert_allclose(found, sum([*parts, *parts[:kept]]), rtol=1e-5, atol=1e-5)


# the estimate


@pytest.mark.parametrize("made", [
    smoothed("float16"), smoothed("float32"), narrow_steps(rows=512), narrow_steps("O2", rows=64, width=1024),
    MERGED[1]])  # fmt: skip
def test_the_estimate_is_what_is_planned(made):
    """Of programs that no pass has changed; but for layout and feeds. A GPU's plan may find a better order."""
    main, loss, _ = made
    for place, most in ((mg.CPUPlace(), 1.02), (mg.CUDAPlace(0), 1.2)):
        graph, found = to_graph(main, [loss.name]), report(made, place)
        graph.on_gpu = isinstance(place, mg.CUDAPlace)
        live = found.live - found.fed
        assert 0.98 * live <= Lives(graph).peak <= most * live, place


def test_views_and_values_that_are_written_over_count_once():
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), unique_name.guard():
        x = mg.static.data("x", [4, 256], "float32")
        h = mg.exp(x)  # 4 KiB
        shown = mg.reshape(h, [1024])
        out = mg.sum(mg.tanh(mg.exp(shown)))
    graph = to_graph(main, [out.name])
    live = dict(zip([op.type for op in graph.ops], bytes_at([step_of(op) for op in graph.ops]), strict=True))
    assert live["reshape"] == 4096
    assert live["tanh"] == 4096
    assert max(live.values()) <= 2 * 4096


# gradients that a state collects


def merged_head(level, dtype, rows=64):
    """The gradients of a table and of a last layer, each added to a state."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), unique_name.guard():
        ids, y = mg.static.data("ids", [rows], "int64"), mg.static.data("y", [rows], "int64")
        table = mg.static.create_parameter([32000, 768], "float32")
        h = F.gelu(mg.nn.Linear(768, 768)(F.embedding(ids, table)))
        loss = F.cross_entropy(mg.matmul(h, mg.static.create_parameter([768, 32000], "float32")), y)
        optimizer = mg.static.amp.decorate(mg.optimizer.AdamW(0.1), level=level, dtype=dtype)
        GradientMergeOptimizer(optimizer, 2).minimize(loss)
    return main, loss, {"ids": [rows], "y": [rows]}


PLACES = [mg.CPUPlace(), mg.CUDAPlace(0)]
NO_HEAD, NO_ADDING = ({**EVERY, flag: False} for flag in ("fuse_linear_cross_entropy", "fuse_grad_accumulation"))


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_merged_gradients_of_a_head_plan_no_more(level, place):
    """Few rows: as one operator the head has its gradient early, and a product that adds has a copy of the state."""
    for rows in (64, 256):
        made = merged_head(level, "bfloat16", rows)
        on = planned(made, place, **EVERY)
        for other in (NO_HEAD, NO_ADDING):
            off = planned(made, place, **other)
            assert on <= 1.01 * off + MIB, (rows, off / MIB, on / MIB)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_merged_gradients_stay_in_16_bits_until_they_are_added(place):
    """One kernel sets the state to zero or keeps it, casts the gradient and adds it: neither is there in float32."""
    made = merged_head("O2", "bfloat16")
    n = 768 * 32000
    assert 2 * 2 * n <= planned(made, place, **EVERY) <= 2 * 2 * n + 4 * MIB
    found, said = types(made, place, **EVERY)
    assert "matmul_accumulate" not in found
    assert "one kernel makes the state ready and adds" in said
    assert "one kernel casts" in said


def test_a_state_that_is_added_to_as_it_is_takes_the_product():
    """Nothing makes it ready: the product adds to the state itself, and no gradient is written."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), unique_name.guard():
        x = mg.static.data("x", [8, 64], "float32")
        w = mg.static.create_parameter([64, 64], "float32")
        total = mg.static.create_global_var([64, 64], 0.0, "float32", persistable=True)
        (grad,) = mg.static.gradients([mg.mean(mg.matmul(x, w))], [w])
        with main.emitting("optimize"):
            Builder(main.global_block()).elementwise_add(total, grad, out={"Out": total})
    found, _ = types((main, total, {}), **EVERY)
    assert "matmul_accumulate" in found


# one kind of place


def test_what_is_refused_for_a_gpu_is_done_on_a_cpu():
    """A product has a workspace on a GPU only."""
    main, loss, sizes = MERGED[0]
    compiled = mg.static.CompiledProgram(main, mg.static.BuildStrategy(fuse_grad_accumulation=True))

    def adding(place):
        return [op.type for op in compiled.program_for([loss.name], place=place).ops].count("matmul_accumulate")

    on_cpu = adding(mg.CPUPlace())
    assert "needs more memory" not in compiled.explain()
    assert f"{'compiled for':<32} CPUPlace" in compiled.explain()
    assert adding(mg.CUDAPlace(0)) < on_cpu
    assert "needs more memory" in compiled.explain()
    assert f"{'compiled for':<32} CUDAPlace" in compiled.explain()
    assert adding(None) == on_cpu
    cpu, gpu = (compiled.program_for([loss.name], place=place) for place in PLACES)
    assert cpu is not gpu
    assert gpu is compiled.program_for([loss.name], place=mg.CUDAPlace(1))
    assert compiled.memory_report(sizes, [loss]) and compiled.after is gpu
    assert compiled.memory_report(sizes, [loss], mg.CPUPlace()) and compiled.after is cpu
    with pytest.raises(mg.MinigraphError, match="a place is CPUPlace"):
        compiled.program_for([loss.name], place="gpu")


def test_blocks_and_histories_are_of_the_same_place(monkeypatch):
    """The graph of each block, and of the history that is made later, says where it will run."""
    seen = []
    row = next(row for row in compiler.PASSES if row.flag == "dead_code_elimination")

    def look(graph, report):
        seen.append(graph.on_gpu)
        return 0

    monkeypatch.setattr(compiler, "PASSES", (replace(row, apply=look),))
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), unique_name.guard():
        x = mg.static.data("x", [4], "float32")
        out = mg.static.nn.cond(mg.sum(x) > 0, lambda: mg.tanh(x), lambda: mg.exp(x))
    compiled = mg.static.CompiledProgram(main, mg.static.BuildStrategy(dead_code_elimination=True))
    compiled.program_for([out.name], place=mg.CUDAPlace(0))
    assert len(compiled.history) == 0
    assert len(seen) >= 4 and set(seen) == {True}
