"""A loss and its gradient in one kernel: equal on a CPU and as generated C++, refusals, planted defects."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.compiler import CompiledProgram
from minigraph.compiler.strategy import BuildStrategy
from minigraph.errors import KernelError, MinigraphError
from minigraph.ir.text import parse
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.compile import compile_source
from minigraph.opdef import OPS
from minigraph.passes.elementwise import fuse_elementwise, groups, loss_groups, split_reductions
from minigraph.program.scope import Scope
from minigraph.runtime.cuda.plan import CudaPlan
from minigraph.runtime.executor import Executor
from minigraph.types import TensorType, float64
from tests.support.counted_work import check_proportion, lines
from tests.support.cuda_host import COMPILER, run_bind
from tests.support.gpu_stub import StubRuntime
from tests.support.loss_programs import KINDS, cross_entropy_step, random_loss

FUSED = OPS["fused_elementwise"]
SHAPES = ((70, 10), (3, 50, 33))
ALONE = BuildStrategy(fuse_elementwise=True)
WITHIN = 60
MEETING = tuple(kind for kind in KINDS if kind != "scaled")


def run(program, step):
    return Executor().run(program, step.feeds, step.fetches, scope=Scope())


def together(program) -> int:
    """How many kernels compute a cross entropy and its gradient."""
    bodies = [op.attrs["body"] for op in program.ops if op.type == "fused_elementwise"]
    return sum(sum(" softmax_with_cross_entropy" in line for line in body) == 2 for body in bodies)


def compiled(step, strategy=ALONE):
    return CompiledProgram(step.program, strategy).program_for(step.fetches)


# equal


@pytest.mark.parametrize("fetch_loss", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_give_the_bits_of_the_operators(kind, shape, fetch_loss, small_blocks):
    for dtype in ("float64", "float32"):
        step = cross_entropy_step(kind, dtype, shape, fetch_loss)
        after = compiled(step)
        assert together(after) == (kind != "scaled")
        for name, a, b in zip(step.fetches, run(step.program, step), run(after, step), strict=True):
            np.testing.assert_array_equal(b, a, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_every_flag_with_validation(kind):
    step = cross_entropy_step(kind, "float64", SHAPES[0])
    program = CompiledProgram(step.program, BuildStrategy.all(verify="each_pass"))
    for a, b in zip(run(step.program, step), run(program.program_for(step.fetches), step), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-12 * np.abs(a).max(initial=1))
    assert "not validated" not in program.explain()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_low_precision_errs_at_most_twice_as_much(kind, dtype):
    step, exact = (cross_entropy_step(kind, d, (60, 24)) for d in (dtype, "float64"))
    exact.feeds = {name: x.astype(float64) if x.dtype.kind in "fV" else x for name, x in step.feeds.items()}
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    for name, r, a, b in zip(
        step.fetches, run(exact.program, exact), run(step.program, step), run(compiled(step), step), strict=True
    ):
        unfused, fused = (np.abs(v.astype(float) - r).max() for v in (a, b))
        assert fused <= 2 * max(unfused, unit * np.abs(r).max()), name


def worst(step, strategy=ALONE) -> float:
    """The largest difference with the pass, beside the largest value."""
    pairs = zip(run(step.program, step), run(compiled(step, strategy), step), strict=True)
    return max(np.abs(a - b).max(initial=0) / np.abs(a).max(initial=1) for a, b in pairs)


@pytest.mark.parametrize("seed", range(WITHIN))
def test_random_programs_agree(seed, small_blocks):
    """Scores, probabilities and losses that are fetched, frozen, shared; weights, squares and reductions of losses."""
    step = random_loss(seed, shape=(70, 7) if seed % 2 else (3, 11, 5))
    for strategy in (ALONE, BuildStrategy.all()):
        assert worst(step, strategy) <= 1e-12


def test_most_random_programs_meet():
    steps = [random_loss(seed) for seed in range(WITHIN)]
    asked = sum(op.type == "softmax_with_cross_entropy_grad" for step in steps for op in step.program.ops)
    assert sum(together(compiled(step)) for step in steps) > asked / 2


def test_saved_bytes_are_shown():
    step = cross_entropy_step("sum", "float32", (256, 1000))
    program = CompiledProgram(step.program, ALONE)
    program.program_for(step.fetches)
    line = next(line for line in program.explain().splitlines() if "softmax_with_cross_entropy_grad" in line)
    assert "saves " in line and "MiB of " in line


def test_size_of_a_batch_known_at_run_time():
    text = """program p
  data x     : f64[-1,7] live
  data label : i64[-1,1]
forward
  p, loss : f64[-1,7], f64[-1,1] = softmax_with_cross_entropy(Logits=x, Label=label)
  total   : f64[]                = reduce_sum(X=loss)
backward
  total@GRAD : f64[]     = fill_constant() {value=2.0, dtype=float64}
  loss@GRAD  : f64[-1,1] = reduce_sum_grad(X=loss, Out_grad=total@GRAD) for total
  x@GRAD     : f64[-1,7] = softmax_with_cross_entropy_grad(Label=label, Softmax=p, Loss_grad=loss@GRAD) for p
fetch total
fetch x@GRAD"""
    program = parse(text)
    after = CompiledProgram(program, ALONE).program_for(["total", "x@GRAD"])
    assert together(after) == 1
    rng = np.random.default_rng(0)
    for rows in (1, 5, 0):
        feed = {"x": rng.normal(size=(rows, 7)), "label": rng.integers(0, 7, (rows, 1))}
        a, b = (Executor().run(p, feed, ["total", "x@GRAD"], scope=Scope()) for p in (program, after))
        for expected, found in zip(a, b, strict=True):
            np.testing.assert_array_equal(found, expected)


# a label that is no class


@pytest.mark.parametrize("kind", ["mean", "flat"])
def test_an_error_names_the_row_among_all(kind, small_blocks):
    step = cross_entropy_step(kind, "float32", (300, 10))
    step.feeds["label"][257] = 10
    with pytest.raises(KernelError, match=r"label 10 of row 257 is not a class in .*, in softmax_with_cross"):
        run(compiled(step), step)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
def test_a_kernel_reports_the_row_and_ignores_it():
    step = cross_entropy_step("flat", "float64", (70, 10))
    good, made, faults = generated(step, compiled(step), {})
    assert not any(fault[0] for fault in faults)
    label = step.feeds["label"].copy()
    label[41] = -3
    _, made, faults = generated(step, compiled(step), {"label": label})
    (fault,) = [fault for fault in faults if fault[0]]
    assert (fault[1], fault[2], fault[3]) == (3, -3, 41)
    x_grad = step.fetches[1]
    assert not made[x_grad][41].any()
    np.testing.assert_allclose(np.delete(made[x_grad], 41, 0), np.delete(good[x_grad], 41, 0), rtol=0, atol=1e-12)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
def test_a_gpus_plan_says_what_a_class_is():
    step = cross_entropy_step("flat", "float32", (70, 10))
    step.feeds["label"][41] = 10
    types = {name: TensorType(np.shape(a), np.asarray(a).dtype) for name, a in step.feeds.items()}
    after = compiled(step)
    assert together(after)
    plan = CudaPlan(after, types, step.fetches, False, 0, StubRuntime(), False)
    with pytest.raises(KernelError, match=r"value 10 at row 41 is not a class in .*, in softmax_with_cross_entropy"):
        plan.run(step.feeds, Scope())


# generated kernels


def generated(step, after, changed):
    """(values of the fused operators' outputs by the reference, by their kernels as C++ on a CPU, the fault records)"""
    names = [v.name for op in after.ops for v in op.output_vars]
    values = step.feeds | dict(zip(names, Executor().run(after, step.feeds, names, scope=Scope()), strict=True))
    right, found, faults = dict(values), {}, []
    for op in (op for op in after.ops if op.type == "fused_elementwise"):
        ins = {slot: [(values | changed)[v.name] for v in op.inputs.get(slot, ())] for slot in ("X", "Like")}
        outs = {"Out": [v.type for v in op.outputs["Out"]]}
        made, fault = run_bind(FUSED.gpu_bind, ins, outs, op.attrs, unread={"Like"})
        found |= {v.name: array for v, array in zip(op.outputs["Out"], made["Out"], strict=True)}
        faults.append(fault)
    return right, found, faults


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("shape", [(70, 10), (3, 5, 264), (6, 1), (37, 33)], ids=str)
@pytest.mark.parametrize("kind", MEETING)
def test_generated_kernels_give_the_reference(kind, shape):
    step = cross_entropy_step(kind if shape[-1] > 2 or kind != "ignored" else "mean", "float64", shape)
    right, found, faults = generated(step, compiled(step), {})
    assert found and not any(fault[0] for fault in faults)
    for name, array in found.items():
        expected = right[name].astype(float)
        error = np.abs(array.astype(float) - expected).max(initial=0)
        assert error <= 1e-12 * np.abs(expected).max(initial=1), name


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("soft", [False, True])
def test_scores_of_minus_infinity(soft):
    """Classes that are masked out: probability 0, and a weight of 0 takes no part in the loss."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(9, 6))
    x[:, 4] = -np.inf
    label = np.eye(6)[rng.integers(0, 4, 9)] if soft else rng.integers(0, 4, (9, 1))
    attrs = FUSED.bind_attrs({"body": [
        f"y0, y1 = softmax_with_cross_entropy(Logits=x0, Label=x1) {{soft_label={str(soft).lower()}}}",
        f"y2 = softmax_with_cross_entropy_grad(Label=x1, Softmax=y0, Loss_grad=y1) {{soft_label={str(soft).lower()}}}",
    ]})  # fmt: skip
    with np.errstate(invalid="ignore"):
        right = FUSED.reference([x, label], None, **attrs)
    types = FUSED.infer_types({"X": [mg.types.TensorType(a.shape, a.dtype) for a in (x, label)]}, attrs)
    made, fault = run_bind(FUSED.gpu_bind, {"X": [x, label], "Like": []}, types, attrs)
    assert not fault[0]
    for a, b in zip(right, made["Out"], strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-13)


@pytest.mark.kernels
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("shape", [(64, 10), (64, 1000), (64, 4096), (5, 37)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_generated_kernels_compile_without_spills(dtype, shape, arch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's Python bindings are not installed")
    for kind in ("mean", "soft", "beside"):
        made = 0
        for op in compiled(cross_entropy_step(kind, dtype, shape), BuildStrategy.all()).ops:
            if op.type != "fused_elementwise":
                continue
            binder = Binder(Device(arch))
            binder.begin(0)
            ins = {slot: [Buffer(v.shape, v.dtype) for v in op.inputs.get(slot, ())] for slot in ("X", "Like")}
            FUSED.gpu_bind(binder, ins, {"Out": [Buffer(v.shape, v.dtype) for v in op.outputs["Out"]]}, op.attrs)
            assert not binder.notes
            for call in binder.calls:
                cubin = compile_source(call.source, arch)
                assert cubin.spilled_bytes == 0 and "0 bytes stack frame" in cubin.log, (op, call.function)
                made += call.function == "fused_rows"
        assert made


# refusals


def reasons(step) -> str:
    program = CompiledProgram(step.program, ALONE)
    assert together(program.program_for(step.fetches)) == 0
    return "\n".join(line for line in program.explain().splitlines() if "refused by Loss" in line)


def test_refused_where_the_gradient_depends_on_the_loss():
    main = mg.static.Program("squares")
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x, label = mg.static.data("x", [30, 10], "float64"), mg.static.data("label", [30, 1], "int64")
        x.stop_gradient = False
        total = mg.sum(mg.square(mg.sum(mg.nn.functional.cross_entropy(x, label, reduction="none"))))
        (grad,) = mg.static.gradients([total], [x])
    step = cross_entropy_step("sum", "float64", (30, 10))
    step.program, step.fetches = main, [total.name, grad.name]
    step.feeds = {"x": step.feeds["x"], "label": step.feeds["label"]}
    assert "depends on the loss" in reasons(step)
    for a, b in zip(run(main, step), run(compiled(step), step), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-12 * np.abs(a).max())


def test_squares_of_each_row_meet():
    """What depends on the loss of its own row is a member."""
    main = mg.static.Program("squares")
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x, label = mg.static.data("x", [30, 10], "float64"), mg.static.data("label", [30, 1], "int64")
        x.stop_gradient = False
        total = mg.sum(mg.square(mg.nn.functional.cross_entropy(x, label, reduction="none")))
        (grad,) = mg.static.gradients([total], [x])
    step = cross_entropy_step("sum", "float64", (30, 10))
    step.program, step.fetches = main, [total.name, grad.name]
    step.feeds = {"x": step.feeds["x"], "label": step.feeds["label"]}
    after = compiled(step)
    assert together(after) == 1
    for a, b in zip(run(main, step), run(after, step), strict=True):
        np.testing.assert_array_equal(b, a)


def test_refused_where_a_row_is_too_long():
    step = cross_entropy_step("sum", "float32", (3, loss_groups.LONGEST + 1))
    assert f"a row has {loss_groups.LONGEST + 1} elements" in reasons(step)


BETWEEN = """program p
  data  x     : f64[6,7] live
  data  w     : f64[6,1]
  data  label : i64[6,1]
  state s     : f64[6,1]
forward
  p, loss : f64[6,7], f64[6,1] = softmax_with_cross_entropy(Logits=x, Label=label)
{between}
backward
  x@GRAD : f64[6,7] = softmax_with_cross_entropy_grad(Label=label, Softmax=p, Loss_grad={seed}) for p
fetch x@GRAD
{fetch}"""


def written(between: str, seed: str, fetch: str):
    text = BETWEEN.format(between=between, seed=seed, fetch=fetch)
    program = parse("\n".join(line for line in text.splitlines() if line.strip()))
    step, rng = cross_entropy_step("sum", "float64", (6, 7)), np.random.default_rng(2)
    step.program, step.fetches = program, ["x@GRAD", *(line.split()[1] for line in fetch.splitlines())]
    step.feeds = {
        "x": rng.normal(size=(6, 7)), "w": rng.normal(size=(6, 1)), "label": rng.integers(0, 7, (6, 1)),
    }  # fmt: skip
    return step


def test_refused_where_much_is_written_between():
    step = written(
        "  big : f64[6,1,90] = one_hot(X=label) {depth=90, dtype=float64}\n  t : f64[6,1,90] = cumsum(X=big) {axis=0}",
        "w", "fetch t",
    )  # fmt: skip
    assert "much is written between" in reasons(step)


def test_refused_where_much_would_be_kept():
    step = written("", "w", "")
    text = """program p
  data  x      : f64[6,7] live
  data  w      : f64[6,1]
  data  label  : i64[6,1]
  data  row    : f64[1,500]
  data  column : f64[500,1]
forward
  p, loss : f64[6,7], f64[6,1] = softmax_with_cross_entropy(Logits=x, Label=label)
backward
  many   : f64[6,500] = matmul(X=w, Y=row)
  seed   : f64[6,1]   = matmul(X=many, Y=column)
  x@GRAD : f64[6,7]   = softmax_with_cross_entropy_grad(Label=label, Softmax=p, Loss_grad=seed) for p
fetch x@GRAD"""
    step.program = parse(text)
    assert "bytes would have to be kept from before the loss on" in reasons(step)


def test_refused_where_an_operand_is_updated_in_place_between():
    step = written("  w : f64[6,1] = increment(X=w) {step=1.0}", "w", "fetch loss")
    program = CompiledProgram(step.program, ALONE)
    after = program.program_for(step.fetches)
    for a, b in zip(run(step.program, step), run(after, step), strict=True):
        np.testing.assert_array_equal(b, a)


def test_gradients_of_sums_stay_where_no_kernel_takes_them():
    """What was spread for nothing is one operator again."""
    main = mg.static.Program("alone")
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x, y = (mg.static.data(n, [8, 8], "float64") for n in "xy")
        x.stop_gradient = False
        total = mg.square(mg.sum(mg.matmul(mg.matmul(x, y), y)))
        (grad,) = mg.static.gradients([total], [x])
    after = CompiledProgram(main, ALONE).program_for([grad.name])
    types = [op.type for op in after.ops]
    assert "reduce_sum_grad" in types and "fill_any_like" not in types


def test_work_is_linear_in_losses():
    def work(count: int) -> int:
        main = mg.static.Program("many")
        with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
            label, parts, xs = mg.static.data("label", [6, 1], "int64"), [], []
            for i in range(count):
                xs.append(mg.static.data(f"x{i}", [6, 4], "float32"))
                xs[-1].stop_gradient = False
                parts.append(mg.nn.functional.cross_entropy(xs[-1], label))
            grads = mg.static.gradients(parts, xs)
        names = [g.name for g in grads]
        return lines(lambda: CompiledProgram(main, ALONE).program_for(names))

    check_proportion(work(10), work(60), factor=6)


# planted defects: what somebody could have written


def spreads_another_number(patch):
    class Wrong(split_reductions.GraphBuilder):
        def emit(self, op_type, *args, **kwargs):
            return super().emit(op_type, *args, **{k: 2.0 if k == "value" else v for k, v in kwargs.items()})

    patch.setattr(split_reductions, "GraphBuilder", Wrong)


def joins_whatever_stands_between(patch):
    for module in (groups, fuse_elementwise):
        patch.setattr(module, "span", lambda group: (groups.FIRST, groups.LAST))


@pytest.mark.parametrize("plant", [spreads_another_number, joins_whatever_stands_between])
def test_planted_defects_are_seen(plant, monkeypatch):
    plant(monkeypatch)
    for seed in range(WITHIN):
        try:
            if worst(random_loss(seed)) > 1e-9:
                return
        except MinigraphError:
            return
    pytest.fail(f"{WITHIN} programs did not show it")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize(
    ("text", "wrong", "kind"),
    [("label < 0 ? C(0) : (", "(", "ignored"), ("* WIDTH + i % WIDTH == label", "* WIDTH == label", "mean")],
)
def test_planted_defects_of_a_kernel_are_seen(text, wrong, kind, monkeypatch):
    for op_type in ("softmax_with_cross_entropy", "softmax_with_cross_entropy_grad"):

        def planted(r, original=OPS[op_type].cuda_rows_function):
            original(r)
            r.lines[:] = [line.replace(text, wrong) for line in r.lines]

        monkeypatch.setattr(OPS[op_type], "cuda_rows_function", planted)
    step = cross_entropy_step(kind, "float64", (37, 10))
    right, found, _ = generated(step, compiled(step), {})
    errors = [np.abs(found[name].astype(float) - right[name].astype(float)).max() for name in found]
    assert max(errors) > 1e-3
