"""Every name of Paddle's static API that is promised, called with all of Paddle's arguments in Paddle's order; and
what is promised of programs, compiled programs and executors."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as paddle
from minigraph import static

UNARY = ["exp", "log", "sqrt", "rsqrt", "square", "abs", "sign", "tanh", "sin", "cos"]
BINARY = ["add", "subtract", "multiply", "divide", "pow", "maximum", "minimum", "equal", "not_equal", "less_than",
          "less_equal", "greater_than", "greater_equal"]  # fmt: skip


class Names:
    """Variables to call functions with."""

    def __init__(self) -> None:
        self.x, self.y = static.data("x", [2, 3]), static.data("y", [2, 3])
        self.w, self.bias = static.create_parameter([3, 4]), static.create_parameter([4], is_bias=True)
        self.b, self.i = static.data("b", [2, 3], "bool"), static.data("i", [2], "int64")
        self.label = static.data("label", [2, 1], "int64")
        self.scale, self.shift = static.create_parameter([3]), static.create_parameter([3])
        self.loss = paddle.mean(paddle.matmul(self.x, self.w))


def calls(v: Names) -> dict[str, dict[str, Any]]:
    """Path -> all of Paddle's arguments, in Paddle's order."""
    x, y, n = v.x, v.y, None
    lr = {"learning_rate": 0.1}
    end = {"last_epoch": -1, "verbose": False}
    tail = {"parameters": n, "weight_decay": 0.1, "grad_clip": paddle.nn.ClipGradByGlobalNorm(1.0)}
    attrs = {"weight_attr": n, "bias_attr": n, "name": n}
    betas = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}
    reduce = {"x": x, "axis": [1], "keepdim": True, "name": n}
    table: dict[str, dict[str, Any]] = {name: {"x": x, "name": n} for name in UNARY}
    table |= {name: {"x": x, "y": y, "name": n} for name in BINARY}
    table |= {f"logical_{name}": {"x": v.b, "y": v.b, "out": n, "name": n} for name in ("and", "or", "xor")}
    table |= {f"nn.functional.{name}": {"x": x, "name": n} for name in ("relu", "silu", "tanh", "sigmoid")}
    table |= {f"nn.{name}": {"name": n} for name in ("ReLU", "SiLU", "Tanh", "Sigmoid")}
    table |= {
        f"nn.initializer.Xavier{k}": {"fan_in": 3, "fan_out": 4, "gain": 1.0, "name": n} for k in ("Normal", "Uniform")
    }
    table |= {
        f"nn.initializer.Kaiming{k}": {"fan_in": 3, "negative_slope": 0.0, "nonlinearity": "relu"}
        for k in ("Normal", "Uniform")
    }
    return table | {
        "logical_not": {"x": v.b, "out": n, "name": n},
        "enable_static": {}, "in_dynamic_mode": {}, "set_default_dtype": {"d": "float32"}, "get_default_dtype": {},
        "seed": {"seed": 7}, "CPUPlace": {},
        "ParamAttr": {"name": n, "initializer": n, "learning_rate": 1.0, "regularizer": n, "trainable": True,
                      "do_model_average": True, "need_clip": True},
        "matmul": {"x": x, "y": v.w, "transpose_x": False, "transpose_y": False, "name": n},
        "clip": {"x": x, "min": 0.0, "max": 1.0, "name": n},
        "where": {"condition": v.b, "x": x, "y": y, "name": n},
        "sum": {"x": x, "axis": -1, "dtype": "float64", "keepdim": True, "name": n},
        "mean": reduce, "max": reduce, "min": reduce,
        "argmax": {"x": x, "axis": 0, "keepdim": True, "dtype": "int32", "name": n},
        "reshape": {"x": x, "shape": [3, 2], "name": n}, "transpose": {"x": x, "perm": [1, 0], "name": n},
        "squeeze": {"x": v.label, "axis": 1, "name": n}, "unsqueeze": {"x": x, "axis": 0, "name": n},
        "flatten": {"x": x, "start_axis": 0, "stop_axis": 1, "name": n},
        "concat": {"x": [x, y], "axis": 1, "name": n}, "stack": {"x": [x, y], "axis": 1, "name": n},
        "split": {"x": x, "num_or_sections": [1, -1], "axis": 1, "name": n},
        "expand": {"x": v.label, "shape": [2, 3], "name": n}, "tile": {"x": x, "repeat_times": [2, 1], "name": n},
        "gather": {"x": x, "index": v.i, "axis": 0, "name": n}, "cast": {"x": x, "dtype": "float64"},
        "full": {"shape": [2], "fill_value": 1.5, "dtype": "float64", "name": n},
        "zeros": {"shape": [2], "dtype": "int64", "name": n}, "ones": {"shape": [2], "dtype": n, "name": n},
        "arange": {"start": 0, "end": 4, "step": 2, "dtype": "int64", "name": n},
        "tril": {"x": x, "diagonal": 0, "name": n}, "triu": {"x": x, "diagonal": 1, "name": n},
        "cumsum": {"x": x, "axis": 1, "dtype": n, "name": n},
        "static.Program": {}, "static.Scope": {}, "static.global_scope": {}, "static.default_main_program": {},
        "static.default_startup_program": {},
        "static.program_guard": {"main_program": static.Program(), "startup_program": static.Program()},
        "static.data": {"name": "new", "shape": [None, -1, 2], "dtype": "int64", "lod_level": 0},
        "static.InputSpec": {"shape": [None, 2], "dtype": "float32", "name": "spec"},
        "static.create_parameter": {"shape": [2], "dtype": "float32", "name": n, "attr": n, "is_bias": False,
                                    "default_initializer": n},
        "static.append_backward": {"loss": v.loss, "parameter_list": [v.w], "no_grad_set": {x}, "callbacks": n},
        "static.gradients": {"targets": [v.loss], "inputs": [v.w], "target_gradients": n, "no_grad_set": n},
        "static.Executor": {"place": paddle.CPUPlace()}, "static.BuildStrategy": {},
        "static.CompiledProgram": {"program_or_graph": static.Program(), "build_strategy": static.BuildStrategy()},
        "static.scope_guard": {"scope": static.Scope()}, "static.cpu_places": {"device_count": 2},
        "static.cuda_places": {"device_ids": [0]}, "static.name_scope": {"prefix": n},
        "static.Print": {"input": x, "first_n": 0, "message": "m", "summarize": 3, "print_tensor_name": True,
                         "print_tensor_type": True, "print_tensor_shape": True, "print_tensor_layout": True,
                         "print_tensor_lod": True, "print_phase": "both"},
        "static.nn.fc": {"x": x, "size": 3, "num_flatten_dims": 1, "weight_attr": n, "bias_attr": False,
                         "activation": "tanh", "name": n},
        "static.amp.fp16_guard": {}, "base.unique_name.guard": {"new_generator": "prefix_"},
        "nn.Linear": {"in_features": 3, "out_features": 2, **attrs}, "nn.GELU": {"approximate": True, "name": n},
        "nn.Softmax": {"axis": -1, "name": n},
        "nn.Dropout": {"p": 0.5, "axis": n, "mode": "upscale_in_train", "name": n},
        "nn.LayerNorm": {"normalized_shape": [3], "epsilon": 1e-5, **attrs},
        "nn.Embedding": {"num_embeddings": 3, "embedding_dim": 2, "padding_idx": n, "sparse": False, "weight_attr": n,
                         "name": n},
        "nn.LayerList": {"sublayers": [paddle.nn.ReLU()]}, "nn.MSELoss": {"reduction": "mean"},
        "nn.CrossEntropyLoss": {"weight": n, "ignore_index": -100, "reduction": "mean", "soft_label": False, "axis": -1,
                                "use_softmax": True, "label_smoothing": 0.0, "name": n},
        "nn.initializer.Constant": {"value": 1.0}, "nn.initializer.Assign": {"value": [1.0], "name": n},
        "nn.initializer.Normal": {"mean": 0.0, "std": 1.0, "name": n},
        "nn.initializer.TruncatedNormal": {"mean": 0.0, "std": 1.0, "a": -2.0, "b": 2.0, "name": n},
        "nn.initializer.Uniform": {"low": -1.0, "high": 1.0, "name": n},
        "nn.ClipGradByGlobalNorm": {"clip_norm": 1.0, "group_name": "default_group", "auto_skip_clip": False},
        "nn.ClipGradByNorm": {"clip_norm": 1.0}, "nn.ClipGradByValue": {"max": 1.0, "min": -1.0},
        "nn.functional.gelu": {"x": x, "approximate": True, "name": n},
        "nn.functional.softmax": {"x": x, "axis": -1, "dtype": "float64", "name": n},
        "nn.functional.log_softmax": {"x": x, "axis": -1, "dtype": n, "name": n},
        "nn.functional.dropout": {"x": x, "p": 0.5, "axis": n, "training": True, "mode": "upscale_in_train", "name": n},
        "nn.functional.layer_norm": {"x": x, "normalized_shape": [3], "weight": v.scale, "bias": v.shift,
                                     "epsilon": 1e-5, "name": n},
        "nn.functional.embedding": {"x": v.i, "weight": v.w, "padding_idx": 0, "sparse": False, "name": n},
        "nn.functional.cross_entropy": {
            "input": x, "label": v.label, "weight": v.scale, "ignore_index": -1, "reduction": "sum",
            "soft_label": False, "axis": -1, "use_softmax": True, "label_smoothing": 0.1, "name": n},
        "nn.functional.softmax_with_cross_entropy": {
            "logits": x, "label": v.label, "soft_label": False, "ignore_index": -100, "numeric_stable_mode": True,
            "return_softmax": True, "axis": -1},
        "nn.functional.mse_loss": {"input": x, "label": y, "reduction": "sum", "name": n},
        "nn.functional.square_error_cost": {"input": x, "label": y},
        "nn.functional.linear": {"x": x, "weight": v.w, "bias": v.bias, "name": n},
        "optimizer.SGD": lr | tail | {"multi_precision": False, "name": n},
        "optimizer.Momentum": lr | {"momentum": 0.9, "parameters": n, "use_nesterov": True, "weight_decay": n,
                                    "grad_clip": n, "multi_precision": False, "rescale_grad": 1.0,
                                    "use_multi_tensor": False, "name": n},
        "optimizer.Adam": lr | betas | tail | {"lazy_mode": False, "multi_precision": False, "use_multi_tensor": False,
                                               "name": n},
        "optimizer.AdamW": lr | betas | {"parameters": n, "weight_decay": 0.1, "lr_ratio": n,
                                         "apply_decay_param_fun": n, "grad_clip": n, "lazy_mode": False,
                                         "multi_precision": False, "name": n},
        "optimizer.lr.NoamDecay": {"d_model": 8, "warmup_steps": 2, **lr, **end},
        "optimizer.lr.StepDecay": {**lr, "step_size": 2, "gamma": 0.5, **end},
        "optimizer.lr.MultiStepDecay": {**lr, "milestones": [2, 3], "gamma": 0.5, **end},
        "optimizer.lr.ExponentialDecay": {**lr, "gamma": 0.5, **end},
        "optimizer.lr.PolynomialDecay": {**lr, "decay_steps": 3, "end_lr": 0.0, "power": 2.0, "cycle": True, **end},
        "optimizer.lr.CosineAnnealingDecay": {**lr, "T_max": 3, "eta_min": 0.0, **end},
        "optimizer.lr.LinearWarmup": {**lr, "warmup_steps": 3, "start_lr": 0.0, "end_lr": 0.1, **end},
        "regularizer.L1Decay": {"coeff": 0.1}, "regularizer.L2Decay": {"coeff": 0.1},
    }  # fmt: skip


def test_every_name_takes_the_arguments_of_paddle() -> None:
    names, wrong = Names(), []
    for path, arguments in calls(names).items():
        found: Any = paddle
        for part in path.split("."):
            found = getattr(found, part)
        try:
            found(**arguments)
            taken = list(inspect.signature(found).parameters)[: len(arguments)]
            if taken != list(arguments):
                wrong.append(f"{path} takes {taken}, Paddle {list(arguments)}")
        except Exception as problem:
            wrong.append(f"{path}: {type(problem).__name__} {problem}")
    assert not wrong, "\n".join(wrong)


# programs, compiled programs, executors


class Mlp:
    """fc relu -> fc, trained; with dropout where asked for."""

    def __init__(self, dropout: float = 0.0, weight_attr: Any = None, bias_attr: Any = None) -> None:
        self.main, self.startup = static.Program(), static.Program()
        self.main.random_seed = self.startup.random_seed = 11
        with paddle.base.unique_name.guard(), static.program_guard(self.main, self.startup):
            x, y = static.data("x", [None, 8]), static.data("y", [None, 1], "int64")
            self.hidden = static.nn.fc(x, 16, activation="relu", weight_attr=weight_attr, bias_attr=bias_attr)
            self.logits = static.nn.fc(paddle.nn.functional.dropout(self.hidden, dropout), 4)
            self.loss = paddle.nn.functional.cross_entropy(self.logits, y)
            self.test = self.main.clone(for_test=True)
            self.optimizer = paddle.optimizer.AdamW(0.01)
            self.optimizer.minimize(self.loss)
        rng = np.random.default_rng(2)
        self.feed = {"x": rng.normal(size=(6, 8)).astype("f4"), "y": rng.integers(0, 4, (6, 1))}

    def compiled(self, **flags: Any) -> static.CompiledProgram:
        return static.CompiledProgram(self.main, static.BuildStrategy(fuse_gemm_epilogue=True, **flags))


def counts(program: static.Program) -> dict[str, int]:
    types = [op.type for op in program.global_block().ops]
    return {t: types.count(t) for t in types if t.startswith(("fused", "matmul"))}


def test_fc_is_fused_and_everything_is_shown(tmp_path: Path) -> None:
    net = Mlp()
    compiled = net.compiled(debug_graphviz_path=str(tmp_path / "mlp.dot"))
    assert counts(compiled.after) == {"fused_gemm_epilogue": 2, "fused_gemm_epilogue_grad": 2}
    assert counts(compiled.before) == {"matmul": 2, "matmul_grad": 2}
    assert str(compiled.before) == str(net.main)
    assert "fused_gemm_epilogue(X=x, Y=fc_0.w_0, Bias=fc_0.b_0)" in str(compiled.after)
    assert len(str(compiled.after).splitlines()) >= len(compiled.after.ops)
    assert "\n- " in compiled.diff() and "\n+ " in compiled.diff()
    assert "2 applied" in compiled.explain() and f"{Path(__file__).name}:" in compiled.explain()
    assert all("digraph" in (tmp_path / f"mlp_{when}.dot").read_text() for when in ("before", "after"))


def test_dot_files_are_written_although_no_flag_is_on(tmp_path: Path) -> None:
    net = Mlp()
    compiled = static.CompiledProgram(net.main, static.BuildStrategy(debug_graphviz_path=str(tmp_path / "none.dot")))
    static.Executor().run(net.startup)
    static.Executor().run(compiled, net.feed, [net.loss])
    assert (tmp_path / "none_before.dot").exists() and (tmp_path / "none_after.dot").exists()
    assert "fuse_gemm_epilogue             off" in compiled.explain()


def test_explain_names_the_nearest_miss_and_refusals_and_idle_flags() -> None:
    x = static.data("x", [2, 3])
    total = paddle.matmul(x, static.create_parameter([3, 3])) + static.data("residual", [2, 3])
    strategy = static.BuildStrategy(fuse_gemm_epilogue=True, fuse_all_optimizer_ops=True)
    compiled = static.CompiledProgram(static.default_main_program(), strategy)
    said = compiled.explain()
    assert "0 applied" in said and "Bias must be 1-D" in said and Path(__file__).name in said
    assert "fuse_all_optimizer_ops" in said and "no pass" in said
    lonely = static.Program()
    with static.program_guard(lonely, static.Program()):
        paddle.nn.functional.relu(static.data("x", [2, 3])) + static.data("y", [3])
    assert "nearest miss" in static.CompiledProgram(lonely, static.BuildStrategy(fuse_gemm_epilogue=True)).explain()
    assert total.shape == (2, 3)


@pytest.mark.parametrize("frozen", ["weight_attr", "bias_attr"])
def test_a_frozen_weight_or_bias_still_fuses(frozen: str) -> None:
    results = []
    for fuse in (False, True):
        net, scope = Mlp(**{frozen: paddle.ParamAttr(trainable=False)}), static.Scope()
        exe = static.Executor()
        program = net.compiled() if fuse else net.main
        exe.run(net.startup, scope=scope)
        results += [[exe.run(program, net.feed, [net.loss], scope=scope)[0].item() for _ in range(4)]]
        if fuse:
            assert counts(net.compiled().after)["fused_gemm_epilogue"] == 2
    assert results[0] == pytest.approx(results[1], rel=1e-6)
    assert results[0][3] < results[0][0]


def test_a_fetched_inner_value_survives_fusion() -> None:
    net, exe = Mlp(), static.Executor()
    exe.run(net.startup)
    inner = net.main.ops[0].output("Out")[0]
    compiled = net.compiled()
    product, _ = exe.run(compiled, net.feed, [inner, net.loss])
    weight = np.array(static.global_scope().find_var("fc_0.w_0").get_tensor())
    assert counts(compiled.after)["fused_gemm_epilogue"] == 1
    assert f"{inner} is fetched" in compiled.explain()
    assert product.shape == (6, 16) and weight.shape == (8, 16)


def test_fetching_by_name_and_variable_and_without_a_list() -> None:
    net, exe = Mlp(), static.Executor()
    exe.run(net.startup)
    names = [net.loss.name, "fc_0.w_0@GRAD", net.logits]
    loss, grad, logits = exe.run(net.main, net.feed, names, return_numpy=True)
    assert (loss.shape, grad.shape, logits.shape) == ((), (8, 16), (6, 4))
    assert [type(v) for v in exe.run(net.test, net.feed, net.loss, return_numpy=False)] == [np.ndarray]
    assert exe.run(net.main, net.feed) == []


def test_pruning_trains_nothing() -> None:
    net, exe = Mlp(), static.Executor()
    exe.run(net.startup)
    before = net.main.state_dict()
    pruned = [exe.run(net.main, net.feed, [net.loss], use_prune=True)[0] for _ in range(2)]
    assert pruned[0] == pruned[1] == exe.run(net.test, net.feed, [net.loss])[0]
    assert all((before[name] == value).all() for name, value in net.main.state_dict().items())
    exe.run(net.main, {"x": net.feed["x"]}, [net.logits], use_prune=True)  # needs no label


def test_a_test_clone_has_no_dropout_and_no_updates() -> None:
    net, exe = Mlp(dropout=0.5), static.Executor()
    exe.run(net.startup)
    first, second = (exe.run(net.test, net.feed, [net.loss])[0] for _ in range(2))
    assert first == second
    assert {op.role for op in net.test.ops} == {"forward"}
    drawn = {exe.run(net.main, net.feed, [net.hidden, net.loss])[1].item() for _ in range(3)}
    assert len(drawn) == 3


def test_state_dict_holds_copies_and_modes_part_it() -> None:
    net, exe = Mlp(), static.Executor()
    exe.run(net.startup)
    state, param, opt = (net.main.state_dict(mode) for mode in ("all", "param", "opt"))
    assert set(param) == {p.name for p in net.main.all_parameters()}
    assert set(opt) == set(state) - set(param) and "learning_rate_0" in opt
    state["fc_0.w_0"][...] = 0
    assert np.array(static.global_scope().find_var("fc_0.w_0").get_tensor()).any()
    net.main.set_state_dict(state)
    assert not np.array(static.global_scope().find_var("fc_0.w_0").get_tensor()).any()


def test_plans_are_kept_for_eight_signatures() -> None:
    net, exe = Mlp(), static.Executor()
    exe.run(net.startup)

    def run(rows: int) -> Any:
        feed = {name: value[:1].repeat(rows, axis=0) for name, value in net.feed.items()}
        exe.run(net.test, feed, [net.loss])
        return next(reversed(exe._plans.values()))

    first = run(1)
    assert run(1) is first
    kept = [run(rows) for rows in range(2, 9)]
    assert run(1) is first and run(2) is kept[0]
    run(9)  # one too many: the plan that was not used for longest goes
    assert len(exe._plans) == 8
    assert run(1) is first and run(2) is kept[0] and run(3) is not kept[1]


def test_two_executors_share_a_scope() -> None:
    net, first, second = Mlp(), static.Executor(), static.Executor(paddle.CPUPlace())
    twin, alone = static.Scope(), static.Executor()
    first.run(net.startup)
    alone.run(net.startup, scope=twin)
    taken = [exe.run(net.main, net.feed, [net.loss])[0].item() for exe in (first, second, first, second)]
    assert taken == [alone.run(net.main, net.feed, [net.loss], scope=twin)[0].item() for _ in range(4)]


def test_fetched_arrays_are_not_overwritten_by_later_runs() -> None:
    net, exe = Mlp(dropout=0.3), static.Executor()
    exe.run(net.startup)
    fetches = [net.loss, net.hidden, "fc_0.w_0", "fc_0.w_0@GRAD", "x", "fc_0.b_0_moment1_0"]
    fetched = exe.run(net.main, net.feed, fetches)
    copies = [a.copy() for a in fetched]
    for _ in range(3):
        exe.run(net.main, {**net.feed, "x": net.feed["x"] * 2}, fetches)
    assert all((a == b).all() for a, b in zip(fetched, copies, strict=True))
    for a in fetched:
        a[...] = 0
    assert exe.run(net.main, net.feed, fetches)[2].any(), "fetched arrays belong to the caller"


def test_a_seed_decides_all_random_numbers_and_names_count_from_zero_in_a_guard() -> None:
    runs = []
    for _ in range(2):
        net, exe, scope = Mlp(dropout=0.4), static.Executor(), static.Scope()
        exe.run(net.startup, scope=scope)
        runs += [[exe.run(net.main, net.feed, [net.loss], scope=scope)[0].item() for _ in range(3)]]
        assert net.main.all_parameters()[0].name == "fc_0.w_0"
    assert runs[0] == runs[1]
    paddle.seed(3)
    other = Mlp(dropout=0.4)
    other.main.random_seed = other.startup.random_seed = 12
    exe = static.Executor()
    exe.run(other.startup)
    assert exe.run(other.main, other.feed, [other.loss])[0].item() != runs[0][0]


def test_learning_rates_are_read_and_set() -> None:
    net, exe = Mlp(), static.Executor()
    exe.run(net.startup)
    net.optimizer.set_lr(0.0)
    before = net.main.state_dict("param")
    exe.run(net.main, net.feed)
    assert net.optimizer.get_lr() == 0.0
    assert all((before[name] == value).all() for name, value in net.main.state_dict("param").items())


def test_the_usage_example_keeps_its_guard() -> None:
    with static.amp.fp16_guard(), static.name_scope("block"):
        x = static.data("x", [2, 2])
        paddle.matmul(x, x)
    assert "in block/" in str(static.default_main_program())
