"""The `static` namespace: programs, data, running, saving, and what their misuse says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import AttrError, MinigraphError, ProgramError, ShapeError, UninitializedError
from minigraph.nn import functional as F
from minigraph.nn.activated import FUNCTIONS, OPERATORS
from minigraph.opdef import get_op
from tests.support.scripts import run_script

X = np.arange(6.0, dtype=np.float32).reshape(2, 3)

NAMES = {
    "": "enable_static in_dynamic_mode set_default_dtype get_default_dtype seed CPUPlace CUDAPlace "
        "ParamAttr matmul add subtract multiply divide pow exp log sqrt rsqrt square abs sign tanh sin cos "
        "maximum minimum clip where equal not_equal less_than less_equal greater_than greater_equal "
        "logical_and logical_or logical_xor logical_not sum mean max min argmax reshape transpose squeeze "
        "unsqueeze flatten concat split stack expand tile gather cast full zeros ones arange tril triu "
        "cumsum float32 float64 float16 bfloat16 int64 int32 bool ",
    "static": "Program Block Operator Variable program_guard default_main_program default_startup_program data "
        "InputSpec create_parameter append_backward gradients Executor CompiledProgram BuildStrategy Scope "
        "global_scope scope_guard cpu_places cuda_places name_scope Print save load nn.fc amp.fp16_guard ",
    "nn": "Layer Linear ReLU GELU SiLU Tanh Sigmoid Softmax Dropout LayerNorm Embedding Sequential LayerList "
        "CrossEntropyLoss MSELoss ClipGradByGlobalNorm ClipGradByNorm ClipGradByValue ",
    "nn.initializer": "Constant Assign Normal TruncatedNormal Uniform XavierNormal XavierUniform KaimingNormal "
        "KaimingUniform ",
    "nn.functional": "relu gelu silu tanh sigmoid softmax dropout layer_norm embedding cross_entropy mse_loss linear "
        "softmax_with_cross_entropy square_error_cost log_softmax ",
    "optimizer": "SGD Momentum Adam AdamW lr.LRScheduler lr.StepDecay lr.MultiStepDecay lr.ExponentialDecay "
        "lr.PolynomialDecay lr.NoamDecay lr.CosineAnnealingDecay lr.LinearWarmup ",
    "regularizer": "L1Decay L2Decay ",
    "base.unique_name": "guard generate ",
}  # fmt: skip


@pytest.mark.parametrize("namespace", NAMES)
def test_promised_names_exist_and_are_documented(namespace: str) -> None:
    for name in NAMES[namespace].split():
        found: Any = mg
        for part in f"{namespace}.{name}".strip(".").split("."):
            found = getattr(found, part)
        assert found is not None
        if callable(found):
            assert found.__doc__, f"{namespace}.{name} has no docstring"


def test_modes_and_default_type() -> None:
    mg.enable_static()
    assert mg.in_dynamic_mode() is False
    mg.set_default_dtype(mg.float64)
    assert mg.get_default_dtype() == "float64"
    assert static.data("x", [1]).dtype == mg.float64
    with pytest.raises(MinigraphError, match="must be a float"):
        mg.set_default_dtype("int64")


# data


def test_data() -> None:
    x = static.data("x", [None, 3])
    assert (x.name, x.shape, x.dtype, x.stop_gradient, x.is_data) == ("x", (-1, 3), "float32", True, True)
    assert static.data("n", shape=[-1], dtype="int64").dtype == "int64"
    assert static.data("s", []).shape == ()


def test_data_of_one_name() -> None:
    x = static.data("x", [None, 3])
    assert static.data("x", [-1, 3], "float32") is x
    for shape, dtype, asked in (([2, 3], "float32", r"f32\[2,3\]"), ([-1, 3], "int64", r"i64\[-1,3\]")):
        with pytest.raises(ProgramError, match=r"variable x: f32\[-1,3\] exists already") as info:
            static.data("x", shape, dtype)
        info.match(asked)
        info.match(r"test_static_api.py:\d+: x = static.data")
    (x + 1).name = "y"
    with pytest.raises(ProgramError, match="exists already"):
        static.data("y", [None, 3])


def test_errors_of_data() -> None:
    with pytest.raises(ProgramError, match="name must be a str"):
        static.data(3, [1])
    with pytest.raises(MinigraphError, match="size -2 is negative"):
        static.data("x", [-2])
    with pytest.raises(MinigraphError, match="a size is an int, None or -1"):
        static.data("x", [1.5])
    with pytest.raises(MinigraphError, match="'flot32' is not a data type"):
        static.data("x", [1], "flot32")
    with pytest.raises(ProgramError, match="lod_level 1 is not supported"):
        static.data("x", [1], lod_level=1)
    assert not static.default_main_program().vars


def test_input_spec() -> None:
    spec = static.InputSpec([None, 3], "float32", "x")
    assert repr(spec) == "InputSpec(shape=(-1, 3), dtype=float32, name=x)"
    assert spec == static.InputSpec.from_tensor(static.data("x", [-1, 3]))
    assert static.InputSpec.from_numpy(X, "x") != spec
    assert spec.unbatch().shape == (3,)
    assert spec.batch(5).shape == (5, 3)
    assert len({spec, static.InputSpec([5, 3], "float32", "x")}) == 1
    with pytest.raises(ProgramError, match="no batch axis"):
        static.InputSpec([]).unbatch()


def test_create_parameter() -> None:
    w = static.create_parameter([2, 3], "float64", name="w")
    b = static.create_parameter([3], is_bias=True)
    assert (w.name, b.name) == ("w", "create_parameter_1.b_0")
    exe = static.Executor()
    exe.run(static.default_startup_program())
    values = exe.run(fetch_list=[w, b])
    assert values[0].any()
    assert (values[1] == 0).all()
    with pytest.raises(ProgramError, match="name and attr are both given"):
        static.create_parameter([2], name="v", attr=mg.ParamAttr())
    with pytest.raises(ProgramError, match="attr=False makes no parameter"):
        static.create_parameter([2], attr=False)
    with pytest.raises(ShapeError, match="every size of a parameter must be known"):
        static.create_parameter([None, 2])


# fc


def test_fc() -> None:
    x = static.data("x", [None, 2, 3])
    out = static.nn.fc(x, 4, activation="relu")
    main, startup = static.default_main_program(), static.default_startup_program()
    assert [op.type for op in main.ops] == ["flatten", "matmul", "elementwise_add", "relu"]
    assert [p.name for p in main.all_parameters()] == ["fc_0.w_0", "fc_0.b_0"]
    assert (out.shape, out.name) == ((-1, 4), "fc_0.tmp_2")
    exe = static.Executor()
    exe.run(startup)
    feed = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)
    actual, w = exe.run(main, feed={"x": feed}, fetch_list=[out, "fc_0.w_0"])
    np.testing.assert_allclose(actual, np.maximum(feed.reshape(5, 6) @ w, 0), rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "num_flatten_dims", "weight", "out"),
    [
        ([None, 3], 1, (3, 4), (-1, 4)),
        ([None, None, 3], 2, (3, 4), (-1, -1, 4)),
        ([None, 2, 3], -1, (3, 4), (-1, 2, 4)),
        ([5, 2, 3, 4], 2, (12, 4), (5, 2, 4)),
    ],
)
def test_shapes_of_fc(shape: list[Any], num_flatten_dims: int, weight: tuple[int, ...], out: tuple[int, ...]) -> None:
    assert static.nn.fc(static.data("x", shape), 4, num_flatten_dims, bias_attr=False).shape == out
    parameters = static.default_main_program().all_parameters()
    assert [p.shape for p in parameters] == [weight]
    types = [op.type for op in static.default_main_program().ops]
    assert types == (["flatten", "matmul"] if len(shape) == 4 else ["matmul"])


def test_fc_of_several_inputs() -> None:
    mg.set_default_dtype("float64")
    a, b = static.data("a", [None, 3]), static.data("b", [None, 2])
    out = static.nn.fc([a, b], 4, bias_attr=False, name="both")
    exe = static.Executor()
    exe.run(static.default_startup_program())
    feed = {"a": np.ones((2, 3)), "b": np.full((2, 2), 3.0)}
    value, w, v = exe.run(feed=feed, fetch_list=[out, "both.w_0", "both.w_1"])
    np.testing.assert_allclose(value, feed["a"] @ w + feed["b"] @ v, rtol=1e-13)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_fc_takes_each_activation_that_is_several_operators(name: str) -> None:
    x = static.data("x", [None, 3])
    attr = mg.ParamAttr(name="w")
    pair = [static.nn.fc(x, 4, weight_attr=attr, bias_attr=False, activation=act) for act in (None, name)]
    exe = static.Executor()
    exe.run(static.default_startup_program())
    plain, got = exe.run(feed={"x": np.float32([[1, -2, 3]])}, fetch_list=[FUNCTIONS[name](pair[0]), pair[1]])
    np.testing.assert_array_equal(got, plain)


@pytest.mark.parametrize("name", OPERATORS)
def test_fc_takes_each_activation(name: str) -> None:
    """By the operator of that name and its defaults, as in Paddle: leaky_relu's slope is 0.02 here."""
    x = static.data("x", [None, 3])
    out = static.nn.fc(x, 4, activation=name)
    op = static.default_main_program().global_block().ops[-1]
    assert (op.type, op.outputs["Out"]) == (name, [out])
    exe = static.Executor()
    exe.run(static.default_startup_program())
    got, z = exe.run(feed={"x": np.float32([[1, -2, 3]])}, fetch_list=[out, op.inputs["X"][0]])
    expected = get_op(name)(z.astype(float), **op.attrs)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_errors_of_fc() -> None:
    x = static.data("x", [None, 2, None])
    with pytest.raises(AttrError, match="activation of fc 'rellu' does not exist") as info:
        static.nn.fc(x, 4, activation="rellu")
    info.match("did you mean 'relu'")
    with pytest.raises(ShapeError, match=r"fc: the sizes of x: f32\[-1,2,-1\] from axis 1 on must be known"):
        static.nn.fc(x, 4)
    with pytest.raises(ShapeError, match="num_flatten_dims 3 leaves no axes"):
        static.nn.fc(x, 4, num_flatten_dims=3)
    with pytest.raises(ProgramError, match="fc: x must be a Variable"):
        static.nn.fc(X, 4)
    with pytest.raises(ProgramError, match="empty list"):
        static.nn.fc([], 4)
    assert not static.default_startup_program().ops


# Print


def printed(capsys: pytest.CaptureFixture[str], runs: int = 1, **options: Any) -> str:
    main = static.Program()
    with static.program_guard(main, static.Program()), mg.base.unique_name.guard():
        x = static.data("x", [None, 3])
        x.stop_gradient = False
        y = static.Print(x * 2, **options)
        (grad,) = static.gradients(mg.sum(y * 3), x)
    exe = static.Executor()
    for _ in range(runs):
        value, slope = exe.run(main, feed={"x": X}, fetch_list=[y, grad])
        assert (value == 2 * X).all()
        assert (slope == 6).all()
    return capsys.readouterr().out


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, message="here:") == (
        "here:  tmp_0  type float32  shape [2, 3]  [0.0 2.0 4.0 6.0 8.0 10.0]\n"
        "here:  tmp_0@GRAD  type float32  shape [2, 3]  [3.0 3.0 3.0 3.0 3.0 3.0]\n"
    )
    assert printed(capsys, print_phase="forward", summarize=2, print_tensor_name=False) == (
        "type float32  shape [2, 3]  [0.0 2.0 ...]\n"
    )
    assert printed(
        capsys, print_phase="backward", print_tensor_type=False, print_tensor_shape=False, summarize=-1
    ) == "tmp_0@GRAD  [3.0 3.0 3.0 3.0 3.0 3.0]\n"
    assert printed(capsys, runs=5, first_n=2).count("\n") == 4
    assert printed(capsys, runs=3).count("\n") == 6


def test_print_runs_although_nobody_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    x = static.data("x", [2, 3])
    static.Print(x, message="alone")
    static.Executor().run(feed={"x": X})
    assert capsys.readouterr().out.startswith("alone")
    with pytest.raises(AttrError, match="print_phase 'always' is none of forward, backward, both"):
        static.Print(x, print_phase="always")


# scopes, guards and places


def test_guards_and_places() -> None:
    with static.amp.fp16_guard(), static.name_scope("block"):
        y = static.data("x", [2]) + 1
    assert static.default_main_program().ops[-1].scope_name == "__use_fp16__/block/"
    assert y.dtype == "float32"
    assert static.cpu_places(2) == [mg.CPUPlace(), mg.CPUPlace()]
    assert static.cuda_places([1]) == [mg.CUDAPlace(1)]
    with pytest.raises(ProgramError, match="program_guard takes Programs"), static.program_guard(3):
        pass


def test_scope() -> None:
    static.create_parameter([2], "float32", name="w", default_initializer=nn.initializer.Constant(3.0))
    scope = static.Scope()
    with static.scope_guard(scope):
        static.Executor().run(static.default_startup_program())
        tensor = static.global_scope().find_var("w").get_tensor()
        assert np.array(tensor).tolist() == [3.0, 3.0]
        tensor.set(np.array([1.0, 2.0], np.float32), mg.CPUPlace())
        assert static.Executor().run(fetch_list=["w"])[0].tolist() == [1.0, 2.0]
    assert static.global_scope().find_var("w") is None


def test_nothing_inside_compares_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """`==` on variables appends an operator: package code uses `is`, in lists and as keys, too."""

    def refuse(self: Any, other: Any) -> Any:
        raise AssertionError(f"{self} is compared")

    monkeypatch.setattr(static.Variable, "__eq__", refuse)
    monkeypatch.setattr(static.Variable, "__ne__", refuse)
    x, y = static.data("x", [None, 3]), static.data("y", [None], "int64")
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.1), nn.LayerNorm(4), nn.Linear(4, 2))
    loss = F.cross_entropy(net(x), y, ignore_index=-1)
    optimizer = mg.optimizer.AdamW(0.01, grad_clip=nn.ClipGradByGlobalNorm(1.0), parameters=net.parameters())
    optimizer.minimize(loss, no_grad_set=[x])
    main, strategy, exe = static.default_main_program(), static.BuildStrategy(), static.Executor()
    strategy.fuse_gemm_epilogue = True
    exe.run(static.default_startup_program())
    feed = {"x": X, "y": np.array([1, -1])}
    for program in (main, main.clone(), main.clone(for_test=True), static.CompiledProgram(main, strategy)):
        exe.run(program, feed=feed, fetch_list=[loss, loss])
    exe.run(main, feed=feed, fetch_list=[loss], use_prune=True)
    assert str(main)


# saving and loading


def trained(optimizer: Callable[[], Any] | None = mg.optimizer.Adam) -> tuple[static.Program, Any]:
    """A program in the default scope after one step, and what it predicts."""
    main, startup = static.Program(), static.Program()
    startup.random_seed = 1
    with static.program_guard(main, startup), mg.base.unique_name.guard():
        x = static.data("x", [None, 3])
        out = nn.Linear(3, 2)(x)
        if optimizer is not None:
            optimizer().minimize(mg.mean(out))
    exe = static.Executor()
    exe.run(startup)
    exe.run(main, feed={"x": X})
    return main, out


def test_save_and_load(tmp_path: Path) -> None:
    main, out = trained()
    path = str(tmp_path / "new" / "mlp")
    static.save(main, path)
    names = ["mlp.manifest", "mlp.pdmodel", "mlp.pdopt", "mlp.pdparams"]
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == names
    assert Path(path + ".pdmodel").read_text() == str(main)
    before = main.state_dict()
    assert {"linear_0.w_0", "linear_0.w_0_moment1_0", "learning_rate_0"} <= before.keys()
    with static.scope_guard(static.Scope()):
        again, _ = trained()
        static.Executor().run(again, feed={"x": X})
        assert any((again.state_dict()[name] != value).any() for name, value in before.items())
        static.load(again, path + ".pdparams")
        for name, value in again.state_dict().items():
            assert value.dtype == before[name].dtype
            assert (value == before[name]).all()
    state = static.load_program_state(path)
    assert state.keys() == before.keys()
    assert list(static.load_program_state(path, [main.vars["linear_0.b_0"]])) == ["linear_0.b_0"]
    with pytest.raises(ProgramError, match=r"holds no linear_0.b_1"):
        static.load_program_state(path, ["linear_0.b_1"])
    state["linear_0.b_0"] = np.array([7.0, 8.0], np.float32)
    static.set_program_state(main, state)
    (value,) = static.Executor().run(main.clone(for_test=True), feed={"x": 0 * X}, fetch_list=[out.name])
    assert value.tolist() == [[7.0, 8.0]] * 2


def test_load_into_a_program_without_optimizer(tmp_path: Path) -> None:
    main, _ = trained()
    static.save(main, str(tmp_path / "mlp"))
    before = main.state_dict("param")
    with static.scope_guard(static.Scope()):
        test = main.clone(for_test=True)
        static.load(test, str(tmp_path / "mlp"))
        assert {k: v.tolist() for k, v in test.state_dict().items()} == {k: v.tolist() for k, v in before.items()}


def test_every_type_survives(tmp_path: Path) -> None:
    block = static.default_main_program().global_block()
    values = {}
    for dtype in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"):
        v = block.create_var(f"v_{dtype}", [2, 2], dtype, persistable=True)
        values[v.name] = np.array([[0, 1], [2, 3]]).astype(v.dtype)
    values["scalar"], values["empty"] = np.float32(2.5), np.zeros((0, 3), np.float32)
    block.create_var("scalar", [], persistable=True)
    block.create_var("empty", [0, 3], persistable=True)
    static.set_program_state(static.default_main_program(), values)
    static.save(static.default_main_program(), str(tmp_path / "all"))
    with static.scope_guard(static.Scope()):
        static.load(static.default_main_program(), str(tmp_path / "all"))
        for name, value in static.default_main_program().state_dict().items():
            assert value.dtype == values[name].dtype
            assert value.shape == values[name].shape
            assert (value == values[name]).all()


def test_load_refuses_what_does_not_fit_and_changes_nothing(tmp_path: Path) -> None:
    main, _ = trained()
    path = str(tmp_path / "mlp")
    static.save(main, path)

    def refused(program: static.Program, match: str, where: str = path, **options: Any) -> None:
        before = program.state_dict()
        with pytest.raises(MinigraphError, match=match) as info:
            static.load(program, where, **options)
        info.match(r"test_static_api.py:\d+")
        assert all((value == before[name]).all() for name, value in program.state_dict().items())

    def other(width: int, name: str | None = None, more: bool = False, dtype: str = "float32") -> static.Program:
        program, startup = static.Program(), static.Program()
        with static.program_guard(program, startup), mg.base.unique_name.guard():
            mg.set_default_dtype(dtype)
            nn.Linear(3, width, weight_attr=name)
            if more:
                nn.Linear(2, 2)
            mg.set_default_dtype("float32")
        static.Executor().run(startup)
        return program

    with static.scope_guard(static.Scope()):
        refused(other(5), r"holds linear_0.w_0 as float32\[3, 2\], the program has linear_0.w_0: f32\[3,5\]")
        refused(other(2, dtype="float64"), r"the program has linear_0.w_0: f64\[3,2\]")
        refused(other(2, more=True), r"mlp.pdparams lacks linear_1.w_0, linear_1.b_0")
        refused(other(2, name="linear_0.w"), r"lacks linear_0.w\n")
        refused(other(2), r"var_list holds nothing, no persistable variable", var_list=["nothing"])
        refused(other(2), "cannot read .*nowhere.pdparams: No such file", str(tmp_path / "nowhere"))
        refused(main, "cannot read .*nowhere.pdparams", str(tmp_path / "nowhere"))
        fewer = static.Program()
        with static.program_guard(fewer, static.Program()):
            static.create_parameter([2], name="linear_0.b_0")
        refused(fewer, "holds, unknown to the program, linear_0.w_0")
        static.load(fewer, path, var_list=[fewer.vars["linear_0.b_0"]])
        assert fewer.state_dict().keys() == {"linear_0.b_0"}


def test_load_refuses_damaged_and_mixed_files(tmp_path: Path) -> None:
    main, _ = trained()
    path = tmp_path / "mlp"
    static.save(main, path)
    weights, optimizer = (tmp_path / f"mlp.{e}" for e in ("pdparams", "pdopt"))
    content, old_optimizer = weights.read_bytes(), optimizer.read_bytes()
    for damaged in (b"", content[:-1], content[: len(content) // 2], b"\xff" * 64, json.dumps({}).encode()):
        weights.write_bytes(damaged)
        with pytest.raises(ProgramError, match=rf"mlp\.pdparams has {len(damaged)} bytes, the manifest says"):
            static.load(main, path)
        with pytest.raises(ProgramError, match=r"mlp\.pdparams is no file of weights"):
            static.load(main, path, verify=False)
    static.save(main, path)
    static.load(main, path)
    optimizer.write_bytes(old_optimizer)
    with pytest.raises(ProgramError, match=r"the header of .*mlp\.pdopt is not the one that was saved"):
        static.load(main, path)
    (tmp_path / "mlp.manifest").unlink()
    with pytest.raises(ProgramError, match=r"mlp\.pdparams and .*mlp\.pdopt come from different saves"):
        static.load(main, path)
    static.load(main, path, verify=False)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main, _ = trained(None)
    path = tmp_path / "mlp"
    static.save(main, path)
    old = (tmp_path / "mlp.pdparams").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(ProgramError, match=r"cannot write .*mlp.pdparams: No space left on device"):
            static.save(main, path)
    assert (tmp_path / "mlp.pdparams").read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mlp.manifest", "mlp.pdmodel", "mlp.pdparams"]


def test_errors_of_save() -> None:
    with pytest.raises(ProgramError, match="save: program must be a Program, is 'mlp'"):
        static.save("mlp", static.default_main_program())
    with pytest.raises(ProgramError, match="names no file"):
        static.save(static.default_main_program(), "/tmp/")
    static.create_parameter([2], name="w")
    with pytest.raises(UninitializedError, match=r"w: f32\[2\] has no value in the scope") as info:
        static.save(static.default_main_program(), "never")
    info.match("run the startup program first")


def test_seed_decides_and_zero_is_a_seed(tmp_path: Path) -> None:
    script = tmp_path / "seeded.py"
    script.write_text("\n".join([
        "import sys",
        "import minigraph as mg",
        "mg.seed(int(sys.argv[1]))",
        "w = mg.static.create_parameter([4])",
        "print(mg.static.Executor().run(mg.static.default_startup_program(), fetch_list=[w.name])[0].tolist())",
    ]))  # fmt: skip
    results = [run_script(tmp_path, script, seed) for seed in (0, 0, 1)]
    assert results[0] == results[1]
    assert results[0] != results[2]
