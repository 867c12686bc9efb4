"""fuse_elementwise on whole programs: CPU blocks, generated kernels on a CPU, low precision, planted defects."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.compiler import CompiledProgram
from minigraph.compiler.strategy import BuildStrategy
from minigraph.errors import AttrError, MinigraphError, ProgramError
from minigraph.ir.convert import to_graph
from minigraph.ir.text import parse
from minigraph.kernels.cpu import fused_blocks as blocks
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.compile import compile_source
from minigraph.opdef import OPS
from minigraph.opdef import body as bodies
from minigraph.passes.elementwise import fuse_elementwise as fusion
from minigraph.passes.elementwise import groups
from minigraph.passes.engine.log import PassReport
from minigraph.program import Program
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.program.text.dump import dump
from minigraph.runtime.executor import Executor
from minigraph.types import bfloat16, float16, float32, float64, tensor_type
from tests.support.counted_work import check_proportion, lines
from tests.support.cuda_host import COMPILER, run_bind
from tests.support.grades import checkered, graded
from tests.support.random_chains import Chain, random_chain

FUSED = OPS["fused_elementwise"]
LARGE = (3, 70, 257)  # cut into blocks where these are made small


def compiled(chain: Chain) -> Program:
    program = CompiledProgram(chain.program, BuildStrategy(fuse_elementwise=True))
    return program.program_for(chain.fetches)


def run(program: Program, chain: Chain) -> list[np.ndarray]:
    return Executor().run(program, chain.feeds, chain.fetches, scope=Scope())


def fused_ops(program: Program) -> list:
    return [op for op in program.ops if op.type == "fused_elementwise"]


# on a CPU


def sums_over_rows(program: Program) -> set[str]:
    """Names of values that depend on a sum whose order blocks change."""
    late: set[str] = set()
    for op in program.ops:
        if op.type == "layer_norm_grad" or any(n in late for n in op.input_arg_names):
            late.update(op.output_arg_names)
    return late


@pytest.mark.parametrize(
    ("seed", "dtype"),
    graded(
        product(range(60), ["float64", "float32"]),
        now=lambda seed, dtype: seed < 20 and (seed % 2 == 0) == (dtype == "float64"),
    ),
)
def test_blocks_give_the_bits_of_the_operators(seed, dtype, small_blocks):
    chain = random_chain(seed, dtype, LARGE)
    after = compiled(chain)
    late = sums_over_rows(chain.program)
    for name, a, b in zip(chain.fetches, run(chain.program, chain), run(after, chain), strict=True):
        if name in late:
            np.testing.assert_allclose(b, a, rtol=0, atol=np.abs(a).max(initial=1) * 100 * np.finfo(a.dtype).eps)
        else:
            np.testing.assert_array_equal(b, a, err_msg=name)


def test_programs_are_cut_into_blocks(small_blocks):
    cut = 0
    for seed in range(20):
        chain = random_chain(seed, "float64", LARGE)
        for op in fused_ops(compiled(chain)):
            types = [tuple(v.type for v in op.inputs.get(slot, ())) for slot in ("X", "Like")]
            known = blocks.recipe(op.attrs["body"], *types)
            assert known is not None
            cut += len(known.blocks) > 4
    assert cut > 20


@pytest.mark.parametrize("seed", range(40))
def test_small_programs_agree_with_validation(seed):
    chain = random_chain(seed, "float64", (3, 1) if seed % 8 == 0 else (4, 6))
    program = CompiledProgram(chain.program, BuildStrategy(fuse_elementwise=True, verify="each_pass"))
    after = program.program_for(chain.fetches)
    for a, b in zip(run(chain.program, chain), run(after, chain), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-12 * np.abs(a).max(initial=1))
    assert "not validated" not in program.explain()


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_errs_at_most_twice_as_much(seed, dtype):
    """Against the program in float64 on the same rounded inputs; dropout and chains of casts included."""
    chain, exact = (random_chain(seed, d, (4, 40), smooth=True) for d in (dtype, "float64"))
    exact.feeds = {name: x.astype(float64) if x.dtype.kind in "fV" else x for name, x in chain.feeds.items()}
    right = run(exact.program, exact)
    for name, r, a, b in zip(chain.fetches, right, run(chain.program, chain), run(compiled(chain), chain), strict=True):
        if r.size < 40 or np.abs(r).max() < 1e-9:
            continue  # the largest of many errors tells something, one is luck; so is what is 0 but for rounding
        unit, smallest = (2.0**-8, 2.0**-133) if dtype == "bfloat16" else (2.0**-11, 2.0**-24)
        unfused, together = (np.abs(v.astype(float) - r).max(initial=0) for v in (a, b))
        assert together <= 2 * max(unfused, unit * np.abs(r).max(), smallest), name


@pytest.mark.parametrize("size", [1, 2, 3, 40])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_gradient_of_a_layer_norm_reads_the_numbers_of_which_it_has_the_statistics(size, dtype):
    """A value that is written in 16 bits is normalised as written: else few elements of a row give a wrong gradient."""
    x, w = (np.random.default_rng(seed).normal(size=(64, size)).astype(dtype) for seed in (1, 2))
    errors = []
    for kind, flag in (("float64", False), (dtype, False), (dtype, True)):
        main = Program()
        with static.program_guard(main, Program()):
            data = [static.data(name, [None, size], kind) for name in ("x", "w")]
            data[0].stop_gradient = False
            normal = mg.nn.functional.layer_norm(mg.nn.functional.silu(data[0]) * 1.5 + 4.0, size)
            loss = mg.sum(mg.cumsum(normal * data[1], axis=0))  # the running sum keeps forward and backward apart
            (grad,) = gradients([loss], [data[0]])
        program = CompiledProgram(main, BuildStrategy(fuse_elementwise=flag))
        feed = {"x": x.astype(kind), "w": w.astype(kind)}
        (found,) = Executor().run(program, feed, [grad], scope=Scope())
        errors.append(found.astype(float))
    assert any("layer_norm(" in line and "cast(" in lines[i - 1] for op in fused_ops(program.after)
               if (lines := op.attrs["body"]) for i, line in enumerate(lines) if i)  # fmt: skip
    right, unfused, together = errors
    assert np.abs(together - right).max() <= 2 * np.abs(unfused - right).max()


# generated kernels


def arrays_of(chain: Chain, program: Program) -> dict[str, np.ndarray]:
    """Every value of a program in float64."""
    names = [v.name for op in program.ops for v in op.output_vars]
    values = Executor().run(program, chain.feeds, names, scope=Scope())
    return chain.feeds | dict(zip(names, values, strict=True))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("shape", [(3, 40), (2, 3, 7), (5, 264)], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_generated_kernels_give_the_reference(seed, shape):
    chain = random_chain(seed, "float64", shape)
    after = compiled(chain)
    values = arrays_of(chain, after)
    for op in fused_ops(after):
        ins = {slot: [values[v.name] for v in op.inputs.get(slot, ())] for slot in ("X", "Like")}
        outs = {"Out": [v.type for v in op.outputs["Out"]]}
        made, _ = run_bind(FUSED.gpu_bind, ins, outs, op.attrs, unread={"Like"}, seed=chain.program.random_seed)
        for v, array in zip(op.outputs["Out"], made["Out"], strict=True):
            expected = values[v.name]
            np.testing.assert_allclose(
                array.astype(float), expected.astype(float), rtol=0, atol=1e-12 * np.abs(expected).max(initial=1)
            )


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
def test_masks_are_those_of_dropout(dtype):
    rng = np.random.default_rng(3)
    for shape in ((8, 24), (5, 7), (2, 3, 2)):
        x, n = rng.normal(size=shape).astype(dtype), len(shape) - 1
        for tail in ([], [f"y2 = softmax(X=t0) {{axis={n}}}"]):
            attrs = FUSED.bind_attrs({"body": ["t0, y0 = dropout(X=x0) {p=0.4} number 9", "y1 = scale(X=t0)", *tail]})
            expected = FUSED.reference([x], None, **attrs, rng=(11, 0, 5))
            types = FUSED.infer_types({"X": [tensor_type(shape, dtype)]}, attrs)
            made, _ = run_bind(FUSED.gpu_bind, {"X": [x]}, types, attrs, seed=11, step=5)
            np.testing.assert_array_equal(made["Out"][0], expected[0])
            np.testing.assert_array_equal(made["Out"][1] != 0, expected[0] != 0)


@pytest.mark.parametrize("own", [False, True], ids=["of the input's type", "of its own type"])
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_constants_of_16_bits_are_those_of_their_type(dtype, own):
    """Values inside a body are float32, in which no number of 16 bits is .3; -1e9 is none of float16."""
    program = Program()
    with static.program_guard(program):
        x = static.data("x", [None, 8], "float32" if own else dtype)
        fills = [mg.full_like(x, value, dtype=dtype if own else None) for value in (0.3, 0.7, -1e9)]
        same = [mg.cast(fill, x.dtype) if own else fill for fill in fills]
        outs = [mg.where(mg.equal(x, fill), x * 100.0, x) for fill in same]
    least = -np.inf if dtype == float16 else -1e9
    feeds = {"x": np.array([[0.3, 0.7, least, 1, 2, 3, 4, 5]] * 3).astype(dtype).astype(x.dtype)}
    chain = Chain(program, feeds, [v.name for v in outs])
    after = compiled(chain)
    assert [op.type for op in after.ops] == ["fused_elementwise"]
    for a, b in zip(run(program, chain), run(after, chain), strict=True):
        np.testing.assert_array_equal(a.astype(float), b.astype(float))
    if COMPILER is not None:
        (op,) = after.ops
        ins = {"X": [feeds["x"]], "Like": [feeds["x"] for _ in op.inputs.get("Like", ())]}
        given = {slot: [tensor_type(a.shape, a.dtype) for a in arrays] for slot, arrays in ins.items()}
        types = FUSED.infer_types(given, op.attrs)
        made, _ = run_bind(FUSED.gpu_bind, ins, types, op.attrs, unread={"Like"})
        for a, b in zip(run(program, chain), made["Out"], strict=True):
            np.testing.assert_array_equal(a.astype(float), b.astype(float))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, 2**63, 10**20, -(10**20), True], ids=str)
def test_constants_that_are_whole_numbers(value):
    body = [f"t0 = fill_any_like(X=s0) {{value={str(value).lower()}}}", "y0 = elementwise_add(X=x0, Y=t0)"]
    x, attrs = np.ones((4, 6)), FUSED.bind_attrs({"body": body})
    types = FUSED.infer_types({"X": [tensor_type((4, 6), float64)], "Like": [tensor_type((4, 6), float64)]}, attrs)
    made, _ = run_bind(FUSED.gpu_bind, {"X": [x], "Like": [x]}, types, attrs, unread={"Like"})
    np.testing.assert_array_equal(made["Out"][0], float(value) + 1.0)


@pytest.mark.parametrize(
    ("dtype", "shape", "arch"),
    checkered(
        ["float64", "float32", "bfloat16"], [(64, 1024), (64, 4096), (2, 32, 760), (64, 30)], ["sm_80", "sm_90a"]
    ),
    ids=str,
)
def test_generated_kernels_compile_without_spills(dtype, shape, arch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's Python bindings are not installed")
    made = 0
    for seed in range(4):
        for op in fused_ops(compiled(random_chain(seed, dtype, shape))):
            binder = Binder(Device(arch, 132 if seed % 2 else 1))  # of one, rows are fetched ahead
            binder.begin(0)
            ins = {slot: [Buffer(v.shape, v.dtype) for v in op.inputs.get(slot, ())] for slot in ("X", "Like")}
            outs = {"Out": [Buffer(v.shape, v.dtype) for v in op.outputs["Out"]]}
            FUSED.gpu_bind(binder, ins, outs, op.attrs)
            for call in binder.calls:
                if call.function in ("fused", "fused_rows", "totals"):
                    cubin = compile_source(call.source, arch)
                    assert cubin.spilled_bytes == 0, (op, call.function)
                    assert "0 bytes stack frame" in cubin.log, (op, call.function)
                    made += 1
    assert made > 4


# sizes that are known at run time


def row_means(x, y):
    """One number for each row is dropped or kept."""
    t = mg.nn.functional.dropout(mg.mean(x, axis=-1, keepdim=True), 0.4)
    return [mg.nn.functional.softmax(x) * t]


def one_row(x, y):
    """One row for all."""
    return [mg.tanh(mg.nn.functional.dropout(y, 0.4) + x)]


def one_row_normed(x, y):
    """Likewise, before rows are normed."""
    return [mg.nn.functional.layer_norm(mg.nn.functional.dropout(y, 0.4) + x, [24])]


DROPPED = row_means, one_row, one_row_normed


def test_a_size_of_one_at_run_time_broadcasts():
    text = """program p
  data x : f64[-1,8]
  data y : f64[-1,8]
forward
  t : f64[-1,8] = tanh(X=x)
  s : f64[-1,8] = elementwise_add(X=t, Y=y)
  u : f64[-1,8] = square(X=t)
fetch s
fetch u"""
    program = parse(text)
    after = CompiledProgram(program, BuildStrategy(fuse_elementwise=True)).program_for(["s", "u"])
    assert len(fused_ops(after)) == 1
    rng = np.random.default_rng(0)
    for rows in (1, 5):
        feed = {"x": rng.normal(size=(1, 8)), "y": rng.normal(size=(rows, 8))}
        a, b = (Executor().run(p, feed, ["s", "u"], scope=Scope()) for p in (program, after))
        for expected, found in zip(a, b, strict=True):
            np.testing.assert_array_equal(found, expected)
    types = tuple(tensor_type(s, float64) for s in ((1, 8), (5, 8)))
    layout = bodies.fused_body(fused_ops(after)[0].attrs["body"], types).layout
    assert isinstance(layout, str) and "has shape [1, 8], others [5, 8]" in layout  # member by member


@pytest.mark.parametrize("spelling", DROPPED, ids=lambda d: d.__name__)
@pytest.mark.parametrize("rows", [None, 40], ids=["any size", "known size"])
def test_dropout_of_a_smaller_shape_draws_for_its_own(spelling, rows, small_blocks):
    program = Program()
    program.random_seed = 5
    with static.program_guard(program):
        sizes = {"x": rows, "y": rows if rows is None else 1}
        x, y = (static.data(name, [size, 24], "float64") for name, size in sizes.items())
        outs = spelling(x, y)
    rng, names = np.random.default_rng(1), [v.name for v in outs]
    feeds = {"x": rng.normal(size=(40, 24)), "y": rng.normal(size=(1, 24))}
    chain = Chain(program, feeds, [*names, *(v.name for op in program.ops for v in op.outputs.get("Mask", ()))])
    for expected, found in zip(run(program, chain), run(compiled(chain), chain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    (op,) = fused_ops(compiled(chain))
    body = "\n".join(op.attrs["body"])
    if rows is None and spelling is not row_means:  # whose shape is known to be another one
        assert "dropout" in body
        types = tuple(tensor_type(feeds[v.name].shape, float64) for v in op.inputs["X"])
        layout = bodies.fused_body(op.attrs["body"], types).layout
        assert isinstance(layout, str) and layout.startswith("dropout draws for [1, 24], others compute"), layout
    else:
        assert "dropout" not in body


# text


def test_bodies_come_back_from_text():
    for seed in range(30):
        chain = random_chain(seed, "bfloat16", (4, 6))
        after = compiled(chain)
        assert dump(parse(dump(after))) == dump(after)
        for op in fused_ops(after):
            members = bodies.parse_body(op.attrs["body"])
            assert tuple(map(bodies.format_member, members)) == op.attrs["body"]


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("y0 = tanh", "expected `outputs = operator(Slot=name, ...)"),
        ("y0 = nothing(X=x0)", "operator type 'nothing' does not exist"),
        ("y0 = tanh(Z=x0)", "input slot of tanh 'Z' does not exist"),
        ("y0 = tanh()", "input X is missing"),
        ("y0 = tanh(X=t7)", "t7 has no value yet"),
        ("x0 = tanh(X=x0)", "x0 has a value already"),
        ("y0, y1 = tanh(X=x0)", "tanh has the outputs Out"),
        ("y0 = scale(X=x0) {scale=up}", "attribute scale must be a number"),
        ("y0 = scale(X=x0) {size=2}", "attribute of scale 'size' does not exist"),
        ("y0 = scale(X=x0) {scale=1, scale=2}", "one of the attributes is given twice"),
        ("y0 = tanh(X=x0, X=x0)", "one of the arguments is given twice"),
        ("y0 = tanh(X=__import__('os'))", "expected `outputs"),
        ("t0 = tanh(X=x0)", "writes y0, y1, ... without a gap"),
        ("y0 = tanh(X=x3)", "the body reads x3, there are 1 inputs"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_refused(line, fact):
    block = Program().global_block()
    x = block.create_var("x", type=tensor_type((2,), float32), is_data=True)
    with pytest.raises(MinigraphError) as error:
        Builder(block).fused_elementwise([x], body=[line])
    assert fact in str(error.value)


def test_there_is_no_gradient():
    block = Program().global_block()
    x = block.create_var("x", type=tensor_type((2,), float32), is_data=True, stop_gradient=False)
    (y,) = Builder(block).fused_elementwise([x], body=["y0 = tanh(X=x0)"])
    with pytest.raises(ProgramError, match="fused_elementwise"):
        gradients([y], [x])


def test_an_empty_body_is_refused():
    with pytest.raises(AttrError, match="body has no lines"):
        bodies.parse_body(())


# the pass


def test_report_shows_bytes():
    chain = random_chain(1, "float32", (256, 1024))
    text = CompiledProgram(chain.program, BuildStrategy(fuse_elementwise=True)).explain()
    assert "= fused_elementwise, saves " in text and "MiB of " in text


def test_work_is_linear_in_operators():
    def work(layers: int) -> int:
        block = Program().global_block()
        g, v = Builder(block), block.create_var("x", type=tensor_type((8, 8), float32), is_data=True)
        for _ in range(layers):
            v = g.matmul(v, g.elementwise_add(g.tanh(v), g.scale(v, scale=2.0)))
        graph = to_graph(block.program, [v.name])
        return lines(lambda: fusion.fuse_elementwise(graph, PassReport("fuse_elementwise")))

    check_proportion(work(50), work(300), factor=6)


# planted defects: what somebody could have written


def ignores_who_reads_in_between(patch):
    for module in (groups, fusion):
        patch.setattr(module, "span", lambda group: (groups.FIRST, groups.LAST))


def forgets_fetched_values(patch):
    original = groups.VarNode.pinned.fget
    patch.setattr(groups.VarNode, "pinned", property(lambda v: None if original(v) == "fetched" else original(v)))


def loses_numbers_of_random_members(patch):
    original = fusion.format_member
    patch.setattr(fusion, "format_member", lambda m: original(m._replace(number=0)))


def forgets_attributes(patch):
    original = fusion.format_member
    patch.setattr(fusion, "format_member", lambda m: original(m).split(" {scale")[0])


def swaps_inputs(patch):
    original = fusion._Emission._member

    def member(self, op):
        found = original(self, op)
        if op.type == "elementwise_sub":
            found.inputs["X"], found.inputs["Y"] = found.inputs["Y"], found.inputs["X"]
        return found

    patch.setattr(fusion._Emission, "_member", member)


def takes_a_sum_for_a_copy(patch):
    patch.setattr(groups.SameShapes, "same", lambda self, a, b: True)


def counts_elements_of_blocks_wrongly(patch):
    original = blocks.blocks_of
    patch.setattr(blocks, "blocks_of", lambda *args: [b._replace(first=b.cuts[-1].start) for b in original(*args)])


def shares_an_array_too_early(patch):
    original = blocks.scratch_of
    patch.setattr(blocks, "scratch_of", lambda found: dict.fromkeys(original(found), 0))


DEFECTS = [
    ignores_who_reads_in_between, forgets_fetched_values, loses_numbers_of_random_members, forgets_attributes,
    swaps_inputs, takes_a_sum_for_a_copy, counts_elements_of_blocks_wrongly,
    shares_an_array_too_early,
]  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.__name__)
def test_a_planted_defect_is_seen(defect, monkeypatch, small_blocks):
    defect(monkeypatch)
    for seed in range(60):
        chain = random_chain(seed, "float64", (40, 30))
        try:
            found = run(compiled(chain), chain)
        except (MinigraphError, KeyError, AssertionError, ValueError):
            return
        for a, b in zip(run(chain.program, chain), found, strict=True):
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e-10, atol=1e-10):
                return
    pytest.fail("no program shows it")


def test_what_is_kept_in_the_scope_is_written_by_the_fused_operator():
    program = Program()
    g = Builder(program.global_block())
    x = program.global_block().create_var("x", (4, 6), float64, is_data=True)
    kept, seen = g.tanh(g.exp(x)), g.sigmoid(x)
    kept.persistable = True
    total = g.elementwise_add(kept, seen)
    strategy = BuildStrategy(fuse_elementwise=True)
    after = CompiledProgram(program, strategy).program_for([total.name])
    assert [op.type for op in after.ops] == ["fused_elementwise"]
    scope, value = Scope(), np.random.default_rng(0).normal(size=(4, 6))
    Executor().run(after, {"x": value}, [total.name], scope=scope)
    np.testing.assert_array_equal(scope.read(kept.name), np.tanh(np.exp(value)))


def test_a_constant_that_stays_comes_after_the_value_that_lends_its_shape():
    """The member `f` is made once more for `m`, and must not ask for the shape of `s` before `s` is computed."""
    program = parse("""program p
  data x : f64[-1,4]
forward
  s : f64[-1,4] = scale(X=x) {scale=2.0}
  f : f64[-1,4] = fill_any_like(X=s) {value=0.5}
  t : f64[-1,4] = tanh(X=s)
  u : f64[-1,4] = elementwise_add(X=t, Y=f)
  m : f64[4,4] = matmul(X=f, Y=u) {trans_x=true}
fetch s
fetch m
""")
    feed, fetches = {"x": np.arange(12.0).reshape(3, 4)}, ["s", "m"]
    program = CompiledProgram(program, BuildStrategy(fuse_elementwise=True))
    s, m = Executor().run(program, feed, fetches, scope=Scope())
    assert [op.type for op in program.after.ops] == ["fused_elementwise", "fill_any_like", "matmul"]
    np.testing.assert_allclose(m, 0.5 * np.ones((4, 3)) @ (np.tanh(s) + 0.5), rtol=1e-14)


def test_what_was_read_before_it_is_overwritten_is_no_member():
    program = Program()
    block = program.global_block()
    g = Builder(block)
    state = block.create_var("state", (4, 6), float64, persistable=True)
    old = g.exp(state)
    g.tanh(g.scale(old, scale=0.5), out={"Out": state})
    compilation = CompiledProgram(program, BuildStrategy(fuse_elementwise=True))
    after = compilation.program_for(())
    assert "tanh" in [op.type for op in after.ops]
    assert "state is updated in place" in compilation.explain()
