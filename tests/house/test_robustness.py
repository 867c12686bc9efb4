"""Bad input where programs are compiled, run, trained and saved; memory layouts of feeds; long programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.ir.dot import to_dot
from minigraph.ir.text import parse
from tests.support.counted_work import check_proportion, lines
from tests.support.grades import graded
from tests.support.world import World, check_refused, line_of

SGD, Adam, AdamW, lr = mg.optimizer.SGD, mg.optimizer.Adam, mg.optimizer.AdamW, mg.optimizer.lr
Strategy, NAN = static.BuildStrategy, float("nan")
ONES = np.ones((2, 4))
DATA, LOSS, TABLE, RUN = "static.data(", "self.loss = ", "table(self.ids)", "return self.exe.run("  # lines of world.py

# (class, what the message says, the call, what its line shows: None for the call itself)
CALLS = [
    # feeds
    ("feed", "run: feed x must be f32[-1,4], has shape [2, 5]", lambda w: w.run(x=np.ones((2, 5), "f4")), DATA),
    ("feed", "feed x must be f32[-1,4], has shape [4]", lambda w: w.run(x=np.ones(4, "f4")), DATA),
    ("feed", "feed x must be f32[-1,4], has shape []", lambda w: w.run(x=np.float32(3)), DATA),
    ("feed", "hint: feed x.astype('float32')", lambda w: w.run(x=ONES), DATA),
    ("feed", "feed x must be float32, is int64", lambda w: w.run(x=ONES.astype("i8")), DATA),
    ("feed", "feed x must be float32, is float16", lambda w: w.run(x=ONES.astype("f2")), DATA),
    ("feed", "feed x must be float32, is >f8", lambda w: w.run(x=ONES.astype(">f8")), DATA),
    ("feed", "feed x must be float32, is an array of complex64", lambda w: w.run(x=ONES.astype("c8")), DATA),
    ("feed", "feed x must be float32, is an array of object", lambda w: w.run(x=ONES.astype("O")), DATA),
    ("feed", "feed x must be float32, is an array of str32", lambda w: w.run(x=ONES.astype("U1")), DATA),
    ("feed", "feed x must be float32, is an array of datetime64[s]", lambda w: w.run(x=ONES.astype("M8[s]")), DATA),
    ("feed", "feed x must be float32, is an array of records", lambda w: w.run(x=np.ones((2, 4), [("a", "f4")])), DATA),
    ("feed", "feed x must be float32, is None", lambda w: w.run(x=None), DATA),
    ("feed", "feed x must be float32, is 'abc'", lambda w: w.run(x="abc"), DATA),
    ("feed", "feed x must be float32, is {1: 2}", lambda w: w.run(x={1: 2}), DATA),
    ("feed", "feed x is the variable x: f32[-1,4]", lambda w: w.run(x=w.x), DATA),
    ("feed", "lists in it differ in length", lambda w: w.run(x=[[1, 2, 3, 4], [5, 6]]), DATA),
    ("feed", "has values that float32 cannot hold", lambda w: w.run(x=[[1e300, 2, 3, 4]] * 2), DATA),
    ("feed", "feed x must be float32, is an array of object", lambda w: w.run(x=[[10**30, 2, 3, 4]] * 2), DATA),
    ("feed", "is a masked array", lambda w: w.run(x=np.ma.masked_array(np.ones((2, 4), "f4"), np.eye(2, 4))), DATA),
    ("feed", "feed label must be int64, is bool", lambda w: w.run(label=np.array([[True], [False]])), DATA),
    ("feed", "feed label must be int64, is float64", lambda w: w.run(label=[[0.0], [1.0]]), DATA),
    ("feed", "feed label must be int64, is uint64", lambda w: w.run(label=np.array([[0], [1]], "u8")), DATA),
    ("feed", "feed 'x' is missing", lambda w: w.exe.run(w.main, {"ids": w.feed["ids"]}, [w.loss]), DATA),
    ("feed", "feed 'm' is missing: the program reads m: f32[2,3]", lambda w: w.run([w.m]), DATA),
    ("feed", "feed 'labels' is not a data variable of program main", lambda w: w.run(labels=1), RUN),
    ("feed", "did you mean 'label'?", lambda w: w.run(labels=1), RUN),
    ("feed", "feed 'fc_0.w_0' is not a data variable", lambda w: w.run(**{"fc_0.w_0": np.ones((4, 5), "f4")}), RUN),
    ("feed", "would have no effect", lambda w: w.run(**{w.hidden.name: np.ones((2, 5), "f4")}), "self.hidden = "),
    ("feed", "feed is a dict {name: array}, not a int", lambda w: w.exe.run(w.main, [1], [w.loss]), None),
    ("feed", "feed 3 is not a data variable", lambda w: w.exe.run(w.main, {3: 1}, [w.loss]), None),
    # values, known when they arrive
    ("kernel", "Label=label: i64[2,1]): label 3 of row 1 is not a class", lambda w: w.run(label=[[0], [3]]), LOSS),
    ("kernel", "label -1 of row 0", lambda w: w.run(label=[[-1], [0]]), LOSS),
    ("kernel", "label 1099511627776 of row 1", lambda w: w.run(label=[[0], [2**40]]), LOSS),
    ("shape", "i64[3,1]): Label must have Logits' shape [2, 3]", lambda w: w.run(label=[[0], [1], [2]]), LOSS),
    ("kernel", "embedding(Ids=ids: i64[2], W=embedding_0.w_0: f32[6,4]): id 6", lambda w: w.run(ids=[0, 6]), TABLE),
    ("kernel", "id -1 is out of range [0, 6)", lambda w: w.run(ids=[0, -1]), TABLE),
    ("kernel", "id -9223372036854775808", lambda w: w.run(ids=[0, -(2**63)]), TABLE),
    ("kernel", "index 6 is out of range [-6, 6)", lambda w: w.run(pick=[0, 6]), "picked = "),
    ("kernel", "index -7 is out of range [-6, 6)", lambda w: w.run(pick=[0, -7]), "picked = "),
    # fetches, programs, scopes
    ("fetch", "fetch target 'fc_0.w0' is not in program main", lambda w: w.run(["fc_0.w0"]), RUN),
    ("fetch", "did you mean 'fc_0.w_0'?", lambda w: w.run(["fc_0.w0"]), RUN),
    ("fetch", "mean 'fc_0.w_0'?", lambda w: w.exe.run(static.CompiledProgram(w.main), w.feed, ["fc_0.w0"]), None),
    ("fetch", "fetch_list holds 3; it takes Variables and names", lambda w: w.run([3]), RUN),
    ("fetch", "fetch_list holds an Operator", lambda w: w.run([w.main.ops[0]]), RUN),
    ("fetch", "fetch_list holds None", lambda w: w.run([None]), RUN),
    ("fetch", "'fc_0.w_0@GRAD' is", lambda w: w.exe.run(w.main.clone(True), w.feed, ["fc_0.w_0@GRAD"]), None),
    ("program", "run takes a Program or CompiledProgram, not 'main'", lambda w: w.exe.run("main"), None),
    ("program", "scope must be a Scope, is 3", lambda w: w.run(scope=3), RUN),
    ("scope", "embedding_0.w_0: f32[6,4] has no value", lambda w: w.run(scope=static.Scope()), "nn.Embedding"),
    ("scope", "hint: run the startup program first", lambda w: w.run(scope=static.Scope()), "nn.Embedding"),
    ("program", "a place is CPUPlace() or CUDAPlace(n), not 'cpu'", lambda w: static.Executor("cpu"), None),
    ("attr", "device_id must be an int >= 0, is -1", lambda w: mg.CUDAPlace(-1), None),
    ("shape", "fc_0.w_0 has shape [4, 5], not [2]", lambda w: w.tensor("fc_0.w_0").set(np.ones(2)), None),
    ("dtype", "cannot hold these values of complex128", lambda w: w.tensor("fc_0.w_0").set(np.full((4, 5), 1j)), None),
    ("dtype", "cannot hold these values of float64", lambda w: w.tensor("fc_0.w_0").set(np.full((4, 5), 1e300)), None),
    # compiling
    ("program", "CompiledProgram takes a Program", lambda w: static.CompiledProgram(w.loss), None),
    ("program", "build_strategy is True, not a BuildStrategy", lambda w: static.CompiledProgram(w.main, True), None),
    ("attr", "did you mean 'fuse_gemm_epilogue'?", lambda w: Strategy(fuse_gem_epilogue=True), None),
    ("attr", "did you mean 'fuse_gemm_epilogue'?", lambda w: setattr(Strategy(), "fuse_gemm", True), None),
    ("attr", "fuse_gemm_epilogue must be a bool, is 'yes'", lambda w: Strategy(fuse_gemm_epilogue="yes"), None),
    ("attr", "fuse_gemm_epilogue must be a bool, is 2", lambda w: Strategy(fuse_gemm_epilogue=2), None),
    ("attr", "verify must be off, structure or each_pass", lambda w: Strategy(verify="always"), None),
    ("attr", "debug_graphviz_path must be a str, is 3", lambda w: Strategy(debug_graphviz_path=3), None),
    # differentiating and training
    ("program", "loss must have one element, m: f32[2,3] does not", lambda w: static.append_backward(w.m), None),
    ("program", "reduce it first", lambda w: SGD(0.1).minimize(w.x), None),
    ("program", "loss must be a variable, is 3", lambda w: SGD(0.1).minimize(3), None),
    ("program", "loss must be a float, is ", lambda w: static.append_backward(w.total), None),
    ("program", "depends on no trainable parameter", lambda w: SGD(0.1).minimize(w.constant), None),
    ("program", "depends on no trainable parameter", lambda w: SGD(0.1, parameters=[]).minimize(w.loss), None),
    ("program", "this Adam updates program main already", lambda w: w.adam.minimize(w.loss), None),
    ("program", "is overwritten by adam after gather used it", lambda w: SGD(0.1).minimize(w.loss), "picked = "),
    ("program", "did you mean 'fc_0.w_0'?", lambda w: static.append_backward(w.loss, parameter_list=["fc_0.w"]), None),
    ("program", "which has no gradient", lambda w: static.append_backward(w.loss, parameter_list=[w.label]), None),
    ("program", "parameter_list must be a list", lambda w: static.append_backward(w.loss, parameter_list=3), None),
    ("program", "no_grad_set must be a list", lambda w: static.append_backward(w.loss, no_grad_set=3), None),
    ("program", "'hiden' does not exist", lambda w: static.append_backward(w.loss, no_grad_set={"hiden"}), None),
    ("program", "gradients needs targets and inputs", lambda w: static.gradients([], []), None),
    ("program", "gradients takes variables, not 'x'", lambda w: static.gradients(w.loss, ["x"]), None),
    ("program", "1 targets, but 2 target_gradients", lambda w: static.gradients(w.m, w.m, [w.m, w.m]), None),
    ("shape", "gradient v: f32[3] of target m: f32[2,3]", lambda w: static.gradients(w.m, w.m, w.v), None),
    ("program", "gradient 3 of target m: f32[2,3] is no variable", lambda w: static.gradients(w.m, w.m, 3), None),
    # hyperparameters
    ("attr", "SGD: learning_rate must be a number >= 0 and finite, is -0.1", lambda w: SGD(-0.1), None),
    ("attr", "learning_rate must be a number >= 0 and finite, is nan", lambda w: SGD(NAN), None),
    ("attr", "is '0.1'", lambda w: SGD("0.1"), None),
    ("attr", "weight_decay must be a number >= 0 and finite, is -0.1", lambda w: SGD(0.1, weight_decay=-0.1), None),
    ("attr", "grad_clip must be a ClipGradBy... object, is 1.0", lambda w: SGD(0.1, grad_clip=1.0), None),
    ("attr", "parameters must be a list", lambda w: SGD(0.1, parameters="fc_0.w_0"), None),
    ("attr", "momentum must be a number in [0, 1), is 1.0", lambda w: mg.optimizer.Momentum(0.1, momentum=1.0), None),
    ("attr", "beta1 must be a number in [0, 1), is 1", lambda w: Adam(0.1, beta1=1), None),
    ("attr", "beta2 must be a number in [0, 1), is nan", lambda w: Adam(0.1, beta2=NAN), None),
    ("attr", "epsilon must be > 0, is 0", lambda w: Adam(0.1, epsilon=0), None),
    ("attr", "weight_decay must be a number", lambda w: AdamW(0.1, weight_decay=-1), None),
    ("attr", "apply_decay_param_fun must be a function", lambda w: AdamW(0.1, apply_decay_param_fun="bias"), None),
    ("attr", "learning_rate must be a number >= 0 and finite, is inf", lambda w: w.adam.set_lr(float("inf")), None),
    ("attr", "StepDecay: step_size must be an int > 0, is 0", lambda w: lr.StepDecay(0.1, 0), None),
    ("attr", "milestones must be a list of rising ints, is 3", lambda w: lr.MultiStepDecay(0.1, 3), None),
    ("attr", "milestones must be a list of rising ints, is [3, 2]", lambda w: lr.MultiStepDecay(0.1, [3, 2]), None),
    ("attr", "T_max must be an int > 0, is 0", lambda w: lr.CosineAnnealingDecay(0.1, 0), None),
    ("attr", "clip_norm must be a number > 0, is -1.0", lambda w: nn.ClipGradByGlobalNorm(-1.0), None),
    ("attr", "min 2.0 is greater than max 1.0", lambda w: nn.ClipGradByValue(max=1.0, min=2.0), None),
    ("attr", "coeff must be a number >= 0, is -1", lambda w: mg.regularizer.L2Decay(-1), None),
    ("program", "initializer 'xavier' is none of", lambda w: mg.ParamAttr(initializer="xavier"), None),
    # files
    ("program", "save: '' names no file", lambda w: static.save(w.main, ""), None),
    ("program", r"'a\x00b' names no file", lambda w: static.save(w.main, "a\0b"), None),
    ("program", "save: cannot make /proc/none", lambda w: static.save(w.main, "/proc/none/m"), None),
    ("program", "load: cannot read /tmp/none.pdparams: No such file", lambda w: static.load(w.main, "/tmp/none"), None),
    ("program", "model_path must be a path, is 3", lambda w: static.load(w.main, 3), None),
    ("program", "report: path must be a path, is 3", lambda w: static.CompiledProgram(w.main).report(3), None),
    ("program", "write_trace: path must be a path, is None", lambda w: mg.profiler.Profiler().write_trace(None), None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "phrase", "misuse", "shown"), CALLS, ids=[f"{i}: {c[1][:60]}" for i, c in enumerate(CALLS)]
)
def test_calling(kind: str, phrase: str, misuse: Callable[[World], Any], shown: str | None) -> None:
    check_refused(kind, phrase, misuse, shown or line_of(misuse))


# feeds that must work

VALUES = np.random.default_rng(3).normal(size=(2, 4)).astype(np.float32)


def unaligned(a: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape)


def read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


LAYOUTS: dict[str, Callable[[], Any]] = {
    "lists": lambda: VALUES.tolist(),
    "tuples of scalars": lambda: tuple(tuple(np.float32(v) for v in row) for row in VALUES.tolist()),
    "ints": lambda: [[1, -2, 3, 4], [0, 5, 2**24, 7]],
    "bools": lambda: [[True, False, True, True]],
    "zero rows": lambda: np.ones((0, 4), "f4"),
    "one row": lambda: VALUES[:1],
    "every second row": lambda: np.repeat(VALUES, 2, axis=0)[::2],
    "every second column": lambda: np.repeat(VALUES, 2, axis=1)[:, 1::2],
    "negative strides": lambda: VALUES[::-1, ::-1],
    "Fortran order": lambda: np.asfortranarray(VALUES),
    "transposed": lambda: np.ascontiguousarray(VALUES.T).T,
    "other byte order": lambda: VALUES.astype(">f4"),
    "other byte order, strided": lambda: np.repeat(VALUES, 2, axis=0).astype(">f4")[::2],
    "read-only": lambda: read_only(VALUES),
    "unaligned": lambda: unaligned(VALUES),
    "repeated by stride 0": lambda: np.broadcast_to(VALUES[0], (3, 4)),
    "overlapping rows": lambda: np.lib.stride_tricks.sliding_window_view(VALUES.reshape(-1), 4),
    "matrix": lambda: VALUES.view(np.matrix),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_feeds(layout: str) -> None:
    x = static.data("x", [None, 4])
    x.stop_gradient = False
    w = mg.assign(np.arange(12, dtype="f4").reshape(4, 3) / 8)
    hidden = nn.functional.relu(mg.matmul(x, w))
    results = [hidden, mg.transpose(x, [1, 0]), x[:, 1:3], mg.sum(x), mg.concat([x, x * x], axis=1), x]
    results += static.gradients(mg.sum(hidden), [x])
    exe, fed = static.Executor(), LAYOUTS[layout]()
    plain = np.array(fed, np.float32, order="C")
    fetched = exe.run(feed={"x": fed}, fetch_list=results)
    again = exe.run(feed={"x": plain}, fetch_list=results)
    for got, expected in zip(fetched, again, strict=True):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, expected)
    weight = (np.arange(12.0) / 8).reshape(4, 3)
    product = plain.astype(float) @ weight
    formulas = [
        np.maximum(product, 0), plain.T, plain[:, 1:3], plain.sum(), np.concatenate([plain, plain * plain], 1), plain,
        (product > 0) @ weight.T,
    ]  # fmt: skip
    for got, expected in zip(fetched, formulas, strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    before = np.array(fed, copy=True)
    for got in fetched:
        got[...] = 7
    np.testing.assert_array_equal(fed, before, "what is fetched is no part of what was fed")


@pytest.mark.parametrize(
    ("dtype", "fed"),
    [("float32", 2), ("float32", np.float32(2)), ("float32", np.array(2, ">f4")), ("int64", 2), ("int64", True),
     ("int64", np.int64(2)), ("int8", 2), ("bool", 1), ("bool", np.True_), ("float64", np.float64(2)), ("float16", 2.0),
     ("bfloat16", 2.0)],
)  # fmt: skip
def test_scalar_feeds(dtype: str, fed: Any) -> None:
    x = static.data("x", [], dtype)
    (out,) = static.Executor().run(feed={"x": fed}, fetch_list=[mg.stack([x, x])])
    assert out.dtype == x.dtype
    assert out.tolist() == [float(fed)] * 2


def test_squeeze_drops_what_is_known_to_be_one() -> None:
    x = static.data("x", [None, 1, 3, 1])
    y = mg.squeeze(x)
    assert y.shape == (-1, 3)
    assert mg.squeeze(static.data("s", [1, 1])).shape == ()
    for rows in (2, 1, 0):
        (out,) = static.Executor().run(feed={"x": np.ones((rows, 1, 3, 1), "f4"), "s": [[1]]}, fetch_list=[y])
        assert out.shape == (rows, 3)


def test_a_computed_value_is_fed_where_what_computes_it_is_pruned() -> None:
    x = static.data("x", [2])
    y = x * 2
    z = y + 1
    exe = static.Executor()
    assert exe.run(feed={y.name: [5, 6]}, fetch_list=[z], use_prune=True)[0].tolist() == [6, 7]
    assert exe.run(feed={"x": [5, 6]}, fetch_list=[z], use_prune=True)[0].tolist() == [11, 13]
    mg.assign(y + 1, output=y)
    u = y * 10
    feed, fetches = {y.name: [5, 6]}, [y, z, u]
    assert [a.tolist() for a in exe.run(feed=feed, fetch_list=fetches, use_prune=True)] == [[6, 7], [6, 7], [60, 70]]


def test_a_computed_value_is_not_fed_past_passes():
    """Two transposes cancel each other: nobody would read what is fed for the first one."""
    program = mg.static.Program()
    with mg.static.program_guard(program, mg.static.Program()):
        x = mg.static.data("x", [2, 3])
        h = mg.transpose(x, [1, 0])
        z = mg.transpose(h, [1, 0]) * 1.0
    compiled = static.CompiledProgram(program, static.BuildStrategy(remove_redundant_transpose=True))
    feed, exe = {"x": np.ones((2, 3), "float32"), h: np.zeros((3, 2), "float32")}, mg.static.Executor()
    assert not exe.run(program, feed, [z], use_prune=True)[0].any()
    said = r"is computed by transpose, and passes may read past it(.|\n)*hint: run the Program itself"
    with pytest.raises(mg.errors.FeedError, match=said):
        exe.run(compiled, feed, [z], use_prune=True)
    assert exe.run(compiled, {"x": feed["x"]}, [z], use_prune=True)[0].all()


@pytest.mark.parametrize("verify", ["structure", "each_pass"])
def test_what_is_pruned_is_in_no_kernel_with_what_runs(verify):
    """A value that the Scope keeps stays as it was where the fetched one does not depend on it."""
    program = static.Program()
    with static.program_guard(program, static.Program()):
        h = mg.tanh(static.data("x", [2, 3], "float64"))
        kept, y = mg.nn.functional.sigmoid(h), mg.exp(h)
        kept.persistable = True
    compiled = static.CompiledProgram(program, static.BuildStrategy.all(verify=verify))
    found = []
    for runs in (program, compiled):
        exe, scope = static.Executor(), static.Scope()
        for x, prune in ((0.0, False), (1.0, True), (2.0, True)):
            (value,) = exe.run(runs, {"x": np.full((2, 3), x)}, [y], scope=scope, use_prune=prune)
            found.append([value.tolist(), scope.read(kept.name).tolist()])
    np.testing.assert_allclose(found[3:], found[:3], rtol=1e-12)
    assert (np.array(found)[:, 1] == 0.5).all()


# names

NAMES = ["../../evil", "a/b", "/etc/passwd", "<script>alert(1)</script>", 'a"b\\', "<b>&amp;", "{x|y}",
         "CON", "name with spaces", "é漢", "%s%n", "a" * 256, "data", "w: f32[3]", "#", "-1"]  # fmt: skip


def test_any_printable_name_is_only_a_name(tmp_path: Path) -> None:
    x = static.data("x", [2])
    total = x
    for name in NAMES:
        total = total + static.create_parameter([2], name=name)
    main = static.default_main_program()
    exe = static.Executor()
    exe.run(static.default_startup_program())
    (expected,) = exe.run(feed={"x": [1, 2]}, fetch_list=[total])
    assert str(parse(str(main))) == str(main)
    assert all(drawn in to_dot(main) for drawn in (r"a\"b\\", "../../evil"))
    folder = tmp_path / "inner"
    static.save(main, str(folder / "model"))
    assert sorted(f.name for f in tmp_path.rglob("*")) == [
        "inner", "model.manifest", "model.pdmodel", "model.pdparams",
    ]  # fmt: skip
    with static.scope_guard(static.Scope()):
        static.load(main, str(folder / "model"))
        assert exe.run(feed={"x": [1, 2]}, fetch_list=[total])[0].tolist() == expected.tolist()
        assert set(main.state_dict()) == set(NAMES)


# long programs


def chain(length: int) -> tuple[static.Program, list[Any]]:
    """A chain of cheap operators and its gradient."""
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x = static.data("x", [2])
        x.stop_gradient = False
        y = x
        for i in range(length):
            y = nn.functional.relu(y) if i % 2 else y * 1.0
        return main, [y, *static.gradients(mg.sum(y), [x])]


def linears(length: int) -> tuple[static.Program, static.Program, list[Any]]:
    """A chain of `length` products and biases with their gradients; eight layers repeat."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        y = static.data("x", [1, 2])
        layers = [nn.Linear(2, 2) for _ in range(8)]
        for i in range(length // 2):
            y = layers[i % 8](y)
        loss = mg.mean(y)
        static.append_backward(loss)
    return main, startup, [loss]


def run_fused(main: static.Program, startup: static.Program, fetches: list[Any]) -> static.Program:
    compiled = static.CompiledProgram(main, Strategy(fuse_gemm_epilogue=True))
    exe = static.Executor()
    exe.run(startup)
    exe.run(compiled, {"x": np.ones((1, 2), "f4")}, fetches)
    return compiled.after


@pytest.mark.parametrize("operators", graded([10_000, 100_000], now=lambda operators: operators == 10_000))
def test_many_operators_are_built_differentiated_and_run(operators: int) -> None:
    """Nothing recurses; that work grows no faster than programs is the next test's."""
    main, fetches = chain(operators // 2)
    assert len(main.ops) > operators
    results = static.Executor().run(main, {"x": np.ones(2, "f4")}, fetches)
    assert [r.tolist() for r in results] == [[1, 1], [1, 1]]


def test_work_grows_with_the_number_of_operators_and_no_faster() -> None:
    def build_and_run(length: int) -> None:
        main, fetches = chain(length)
        static.Executor().run(main, {"x": np.ones(2, "f4")}, fetches)
        str(main)
        main.clone(for_test=True)

    check_proportion(*(lines(lambda n=n: build_and_run(n)) for n in (250, 1_000)), factor=4)


def test_fusing_a_chain_of_linears_is_work_in_proportion() -> None:
    check_proportion(*(lines(lambda n=n: run_fused(*linears(n))) for n in (100, 400)), factor=4)
    types = [op.type for op in run_fused(*linears(1_000)).ops]
    assert types.count("fused_gemm_epilogue") == types.count("fused_gemm_epilogue_grad") == 500
    assert "matmul" not in types
