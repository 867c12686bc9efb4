"""check_nan_inf: on a CPU, and on a stub of the GPU; the flag in its three spellings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import AttrError, KernelError, NonFiniteError
from minigraph.program import Program, program_guard
from minigraph.program.scope import Scope
from minigraph.runtime import flags
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from tests.gpu import nan
from tests.gpu.nan import Trained, checking, kept, refused
from tests.support import gpu_stub
from tests.support.grades import graded, shortened

needs_compiler = pytest.mark.skipif(gpu_stub.cuda_host.COMPILER is None, reason="kernels on a CPU need g++")
ON_STUB = "relu", "layer_norm", "reshape", "transpose", "concat", "softmax", "memory_efficient_attention", "adamw"


@pytest.fixture(autouse=True)
def flags_as_they_were(monkeypatch):
    monkeypatch.setattr(flags, "values", flags.values)


FIRST = 3  # samples of an operator
SAMPLES = [("float32", FIRST), *((dtype, None) for dtype in nan.DTYPES)]


@pytest.mark.parametrize(("dtype", "most"), graded(SAMPLES, now=lambda _, most: most == FIRST))
@pytest.mark.parametrize("op_type", nan.op_types())
def test_what_an_operator_is_given_shows(op_type, dtype, most):
    nan.planted(op_type, Executor, [dtype], most)


@pytest.mark.parametrize("run", nan.PROGRAMS, ids=lambda run: run.__name__)
def test_programs(run):
    run(Executor)


@needs_compiler
@pytest.mark.parametrize(("dtype", "most"), graded(SAMPLES, now=lambda _, most: most == FIRST))
@pytest.mark.parametrize("op_type", ON_STUB)
def test_what_an_operator_is_given_shows_on_the_stub(stub, op_type, dtype, most):
    nan.planted(op_type, nan.GpuExecutor, [dtype], most)


def on_stub(run):
    return partial(run, partial(Executor, nan.PLACE))


@needs_compiler
@pytest.mark.parametrize(
    "run", shortened({run.__name__: on_stub(run) for run in nan.PROGRAMS}, {"states": ["SGD", "AdamW", "Lamb"]})
)
def test_programs_on_the_stub(stub, run):
    run()


@needs_compiler
def test_off_is_free_on_the_stub(stub):
    nan.off_is_free()


@needs_compiler
@pytest.mark.parametrize("mode", ["table", "struct4k", "arena", "unified"])
def test_however_kernels_learn_their_addresses_on_the_stub(stub, mode):
    made = Trained()
    strategies = [BuildStrategy(multi_tensor_mode=mode, fuse_all_optimizer_ops=True)]
    nan.nothing_changes(partial(Executor, nan.PLACE), made, strategies)


@needs_compiler
def test_without_a_graph_and_with_views_on_the_stub(stub):
    strategies = [BuildStrategy(allow_cuda_graph_capture=False), BuildStrategy(memory_optimize=False)]
    nan.nothing_changes(partial(Executor, nan.PLACE), Trained(), strategies)


def lines_of(build):
    """(fetch, program) of a program built by `build` in a scope of its names."""
    main, startup = Program("main"), Program("startup")
    main.random_seed = startup.random_seed = 3
    with program_guard(main, startup):
        out = build()
    return main, startup, out


def attention():
    q, k, v = (mg.static.data(n, [2, 4, 8]) for n in "qkv")
    scores = mg.matmul(q, mg.transpose(k, [0, 2, 1]))
    return mg.mean(mg.matmul(mg.nn.functional.softmax(scores * 0.3), v))


def epilogue():
    x = mg.static.data("q", [2, 4, 8])
    return mg.mean(mg.nn.functional.gelu(mg.nn.Linear(8, 8)(x)))


def last_layer():
    scores = mg.nn.Linear(8, 64)(mg.static.data("q", [8, 8]))
    loss = mg.nn.functional.cross_entropy(scores, mg.static.data("label", [8, 1], "int64"))
    mg.optimizer.SGD(0.1).minimize(loss)
    return loss


def elementwise():
    x = mg.static.data("q", [2, 4, 8])
    return mg.mean(mg.exp(mg.square(x)) * 2.0)


FUSED = {  # program -> the fused operator, the member and the line that are named for q = 3e38, or inf
    attention: ("memory_efficient_attention", "matmul", "scores = mg.matmul"),
    epilogue: ("fused_gemm_epilogue", "matmul", "mg.nn.Linear(8, 8)"),
    last_layer: ("fused_linear_cross_entropy", "matmul", "mg.nn.Linear(8, 64)"),
    elementwise: ("fused_elementwise", "square", "mg.exp(mg.square(x))"),
}


@pytest.mark.parametrize("build", FUSED, ids=lambda build: build.__name__)
def test_of_a_fused_operator_the_member_is_named(build):
    fused, member, line = FUSED[build]
    main, startup, out = lines_of(build)
    program = CompiledProgram(main, BuildStrategy.all(check_nan_inf=True))
    exe, scope = Executor(), Scope()
    exe.run(startup, scope=scope)
    shape = (8, 8) if build is last_layer else (2, 4, 8)
    value = np.inf if build is last_layer else 3e38
    feed = {n: np.full(shape, value, "float32") for n in "qkv" if n in main.vars}
    feed |= {"label": np.zeros((8, 1), "int64")} if build is last_layer else {}
    problem = refused(exe, program, feed, [out], scope)
    said = str(problem)
    assert problem.operator == fused, said
    assert line in said.splitlines()[1], said
    assert "; made of " in problem.fact, said
    assert f"the first that fails is {member}(" in problem.fact, said


def test_a_fused_operator_whose_members_are_finite_says_so(monkeypatch):
    main, _, out = lines_of(elementwise)
    program = CompiledProgram(main, BuildStrategy.all(check_nan_inf=True))
    feed = {"q": np.zeros((2, 4, 8), "float32")}
    opdef = program.program_for([out.name]).ops[0].opdef
    kernel = opdef.cpu_kernel
    monkeypatch.setitem(vars(opdef), "cpu_kernel", lambda *a, **k: [x + np.inf for x in kernel(*a, **k)])
    problem = refused(Executor(), program, feed, [out], Scope())
    assert problem.operator == "fused_elementwise"
    assert "computed one by one they are finite" in problem.fact


# the flag


def small():
    main = Program("main")
    with program_guard(main, Program()):
        out = mg.log(mg.static.data("x", [2]))
    return main, out, {"x": np.zeros(2, "float32")}


def test_by_set_flags_from_the_next_run_on():
    main, out, feed = small()
    exe, scope = Executor(), Scope()
    for _ in range(2):
        exe.run(main, feed, [out], scope=scope)
        mg.set_flags({"FLAGS_check_nan_inf": 1})
        assert mg.get_flags("FLAGS_check_nan_inf") == {"FLAGS_check_nan_inf": True}
        assert refused(exe, main, feed, [out], scope).step in (1, 2)
        mg.base.set_flags({"FLAGS_check_nan_inf": np.bool_(False)})
        assert mg.base.get_flags(["FLAGS_check_nan_inf"]) == {"FLAGS_check_nan_inf": False}
    assert len(exe._plans) == 2  # one with, one without


def test_by_a_strategy():
    main, out, feed = small()
    with pytest.raises(NonFiniteError):
        Executor().run(CompiledProgram(main, BuildStrategy(check_nan_inf=True)), feed, [out])
    program = CompiledProgram(main, BuildStrategy())
    Executor().run(program, feed, [out])
    assert "check_nan_inf" in program.explain().splitlines()[-1]
    with checking(), pytest.raises(NonFiniteError):
        Executor().run(program, feed, [out])


@pytest.mark.parametrize(("word", "on"), [("1", True), ("true", True), ("0", False), ("False", False)])
def test_words_of_the_environment(word, on, monkeypatch):
    monkeypatch.setenv("FLAGS_check_nan_inf", word)
    assert flags._from_environment() == {"FLAGS_check_nan_inf": on}


@pytest.mark.parametrize(("word", "said"), [("1", "True"), ("", "must be 0, 1")])
def test_by_the_environment(word, said):
    code = "import minigraph as mg; print(mg.get_flags(['FLAGS_check_nan_inf'])['FLAGS_check_nan_inf'])"
    root = Path(__file__).parents[2]
    env = {**os.environ, "FLAGS_check_nan_inf": word, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"FLAGS_check_nan": 1}, "did you mean 'FLAGS_check_nan_inf'?"), ({"check_nan_inf": 1}, "FLAGS_check_nan_inf"),
        ({"FLAGS_check_nan_inf": "yes"}, "must be 0, 1, False or True, is 'yes'"),
        ({"FLAGS_check_nan_inf": 2}, "is 2"), ({"FLAGS_check_nan_inf": None}, "is None"),
        ({"FLAGS_check_nan_inf": 1, "FLAGS_other": 1}, "there is no flag 'FLAGS_other'"), ([1], "not a list"),
        ({1: 1}, "there is no flag 1"),
    ],
)  # fmt: skip
def test_what_is_no_flag_is_refused_and_changes_none(given, said):
    with pytest.raises(AttrError) as problem:
        mg.set_flags(given)
    assert said in str(problem.value)
    assert mg.get_flags("FLAGS_check_nan_inf") == {"FLAGS_check_nan_inf": False}
    for names in ("FLAGS_check", ["FLAGS_check"], 3):
        with pytest.raises(AttrError):
            mg.get_flags(names)


def test_off_a_run_calls_nothing_of_it():
    """Not a single function more, in a steady run; and the plan is the ordinary one."""
    main, out, feed = small()
    exe, scope = Executor(), Scope()
    for _ in range(3):
        exe.run(main, feed, [out], scope=scope)
    files = set()

    def note(frame, event, arg):
        files.add(Path(frame.f_code.co_filename).name)

    sys.setprofile(note)
    try:
        exe.run(main, feed, [out], scope=scope)
    finally:
        sys.setprofile(None)
    assert "plan.py" in files
    assert not files & {"flags.py", "nonfinite.py", "runtime/cpu/checked.py"}


@pytest.mark.parametrize("nested", [False, True])
def test_of_a_loop_step_and_round_are_named(nested):
    """What draws random numbers of a round apart is no step that a user knows."""

    def loop(x, body):
        start = [mg.full([1], 0, "int64"), mg.assign(x)]
        return mg.static.nn.while_loop(lambda i, x: i < 4, lambda i, x: [i + 1, body(x)], start)[1]

    main = Program("main")
    with program_guard(main, Program()):
        x = mg.static.data("x", [2])
        out = loop(x, (lambda x: loop(x, mg.log)) if nested else mg.log)
    exe, scope = Executor(), Scope()
    for _ in range(2):
        exe.run(main, {"x": np.full(2, 2.0, "float32")}, [], scope=scope)
    with checking():
        problem = refused(exe, main, {"x": np.full(2, 2.0, "float32")}, [out], scope)
    assert (problem.operator, problem.step) == ("log", 2)
    rounds = " in round 2 of while_loop_0.body" + " in round 0 of while_loop_0.body" * nested
    said, wanted = (re.sub(r"loop_\d+", "loop", s) for s in (str(problem), f"{rounds} in step 2, counted from 0;"))
    assert wanted in said, said
    assert re.search(r"hint: call static\.Print\(\S+\) to see what it was given$", said, re.M), said


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_a_python_function_gives_is_looked_at(value):
    """The host computes it between two plans; an infinity that it was given may go on."""
    main = Program("main")
    with program_guard(main, Program()):
        x = mg.static.data("x", [2])
        kept = mg.static.create_global_var([1], 1.0, "float32", persistable=True, name="kept")
        mg.assign(mg.sum(x, keepdim=True), kept)
        out = main.global_block().create_var(name="out", dtype="float32", shape=[2])
        mg.static.py_func(lambda x: np.where(np.asarray(x) > 0, np.float32(value), x), x, out)
    exe, scope = Executor(), Scope()
    scope.write("kept", np.ones(1, "float32"))
    feed = {"x": np.array([-1, 1], "float32")}
    with checking():
        problem = refused(exe, main, feed, [out], scope)
        assert (problem.operator, problem.variable, problem.index, problem.step) == ("py_func", "out", (1,), 0)
        assert scope.read("kept") == 1 and not scope.steps[main.origin]
        given = {"x": np.array([-np.inf, 0], "float32")}
        np.testing.assert_array_equal(exe.run(main, given, [out], scope=Scope())[0], given["x"])
    np.testing.assert_array_equal(exe.run(main, feed, [out], scope=scope)[0], np.array([-1, value], "float32"))


def test_a_kernel_that_fails_undoes_the_run_too():
    made = nan.Net(nan.OPTIMIZERS["AdamW"]())
    program, exe, scope = CompiledProgram(made.main, BuildStrategy(check_nan_inf=True)), Executor(), Scope()
    block = made.main.global_block()
    with program_guard(made.main, made.startup):
        mg.nn.functional.one_hot(block.var("label"), 3)  # after the update
    exe.run(made.startup, scope=scope)
    before = kept(scope)
    with pytest.raises(KernelError) as problem:
        exe.run(program, made.feed(1) | {"label": np.full((gpu_nan_rows(made), 1), 3)}, [made.loss], scope=scope)
    assert not isinstance(problem.value, NonFiniteError)
    assert kept(scope) == before


def gpu_nan_rows(made):
    return made.feed(0)["label"].shape[0]


def test_constants_are_what_their_user_wrote_but_nan():
    for value, fine in ((float("-inf"), True), (float("inf"), True), (float("nan"), False)):
        main = Program("main")
        with program_guard(main, Program()):
            out = mg.full([2], value)
        with checking():
            if fine:
                Executor().run(main, {}, [out])
            else:
                assert refused(Executor(), main, {}, [out], Scope()).operator == "fill_constant"


@pytest.mark.parametrize("place", ["", "cond"])
@pytest.mark.parametrize("make", [
    lambda: mg.log(mg.full([3], 0.0)), lambda: mg.full([3], 1.0) / mg.full([3], 0.0),
    lambda: mg.sqrt(mg.full([3], -1.0)), lambda: mg.cast(mg.cast(mg.full([3], 1e6), "float16"), "float32"),
], ids=["log", "division", "sqrt", "cast"])  # fmt: skip
def test_what_is_made_of_constants_is_refused_with_rewrites_too(make, place):
    main = Program("main")
    with program_guard(main, Program()):
        x = mg.static.data("x", [3])
        out = mg.static.nn.cond(mg.mean(x) > 0, lambda: x + make(), lambda: x) if place else x + make()
    compiled = CompiledProgram(main, build_strategy=BuildStrategy.all(check_nan_inf=True))
    refused(Executor(), compiled, {"x": np.ones(3, "float32")}, [out], Scope())


def test_masks_made_of_constants_pass_and_are_folded():
    main = Program("main")
    with program_guard(main, Program()):
        x = mg.static.data("x", [4, 4])
        out = mg.nn.functional.softmax(x + mg.triu(mg.full([4, 4], float("-inf")), 1))
    compiled = CompiledProgram(main, build_strategy=BuildStrategy.all(check_nan_inf=True))
    (row, *_), = Executor().run(compiled, {"x": np.ones((4, 4), "float32")}, [out], scope=Scope())
    assert row.tolist() == [1, 0, 0, 0]
    folded = CompiledProgram(main, build_strategy=BuildStrategy(constant_folding=True)).program_for([out.name])
    assert "triu" not in {op.type for op in folded.ops}


def test_infinity_of_the_other_sign_is_made():
    """A label that is masked: the scores' -inf is meant, the loss's inf is not."""
    main = Program("main")
    with program_guard(main, Program()):
        x, label = mg.static.data("x", [2, 3]), mg.static.data("label", [2, 1], "int64")
        out = mg.nn.functional.cross_entropy(x, label)
    feed = {"x": np.array([[0, 1, 2], [0, -np.inf, 1]], "float32"), "label": np.array([[1], [0]])}
    with checking():
        Executor().run(main, feed, [out])
        feed["label"][1] = 1
        problem = refused(Executor(), main, feed, [out], Scope())
    assert problem.operator == "softmax_with_cross_entropy"
    assert "is inf" in problem.fact
    assert "Logits=x is -inf at [1, 1]" in problem.fact


def test_memory_is_reported_with_what_it_needs():
    made = Trained()
    plain, checked = (
        CompiledProgram(made.main, BuildStrategy(check_nan_inf=on)).memory_report(place=place).planned
        for on, place in ((False, None), (True, None))
    )
    assert checked > plain


def test_the_page_about_it_prints_what_it_says(tmp_path):
    root = Path(__file__).parents[2]
    page = (root / "docs" / "check_nan_inf.md").read_text(encoding="utf-8")
    (code,), (said,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "text"))
    (tmp_path / "train.py").write_text(code)
    env = {**os.environ, "PYTHONPATH": str(root)}
    run = [sys.executable, "train.py"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == said
