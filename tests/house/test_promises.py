"""What is promised of programs, compiled programs, executors and scopes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as paddle
from minigraph import static
from minigraph.kernels import host_memory
from minigraph.runtime import executor
from tests.support.in_threads import in_threads


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
    assert "3 applied" in compiled.explain() and f"{Path(__file__).name}:" in compiled.explain()
    assert all("digraph" in (tmp_path / f"mlp_{when}.dot").read_text() for when in ("before", "after"))


def test_dot_files_are_written_although_no_flag_is_on(tmp_path: Path) -> None:
    net = Mlp()
    compiled = static.CompiledProgram(net.main, static.BuildStrategy(debug_graphviz_path=str(tmp_path / "none.dot")))
    static.Executor().run(net.startup)
    static.Executor().run(compiled, net.feed, [net.loss])
    assert (tmp_path / "none_before.dot").exists() and (tmp_path / "none_after.dot").exists()
    assert re.search(r"^off .* fuse_gemm_epilogue,", compiled.explain(), re.MULTILINE)


def test_explain_names_the_nearest_miss_and_refusals_and_idle_flags() -> None:
    x = static.data("x", [2, 3])
    total = paddle.matmul(x, static.create_parameter([3, 3])) + static.data("residual", [2, 3])
    strategy = static.BuildStrategy(fuse_gemm_epilogue=True, fuse_bn_act_ops=True)
    compiled = static.CompiledProgram(static.default_main_program(), strategy)
    said = compiled.explain()
    assert "0 applied" in said and "Bias must be [N] or [1, N]" in said and Path(__file__).name in said
    assert "fuse_bn_act_ops" in said and "no pass" in said
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
    (tensor,) = exe.run(net.test, net.feed, net.loss, return_numpy=False)
    assert isinstance(tensor, np.ndarray)
    assert (tensor.shape, tensor.shape(), tensor.lod()) == ((), [], [])  # as Paddle's tensors answer, too
    assert exe.run(net.main, net.feed) == []


def test_pruning_trains_as_in_paddle_and_a_test_clone_does_not() -> None:
    net, exe = Mlp(), static.Executor()
    exe.run(net.startup)
    before = net.main.state_dict()
    tested = [exe.run(net.test, net.feed, [net.loss])[0] for _ in range(2)]
    assert all((before[name] == value).all() for name, value in net.main.state_dict().items())
    pruned = [exe.run(net.main, net.feed, [net.loss], use_prune=True)[0] for _ in range(2)]
    assert tested[0] == tested[1] == pruned[0] > pruned[1]
    exe.run(net.test, {"x": net.feed["x"]}, [net.logits], use_prune=True)  # needs no label


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


COST = r"[1-9]\d*(\.\d+)? (us|ms|s) on average and [1-9]\d*(\.\d+)? (us|ms|s) at the most"


def runs_of_rows() -> Any:
    """A function that runs a program on so many rows and returns its plan, and the executor."""
    net, exe = Mlp(), static.Executor()
    exe.run(net.startup)

    def run(rows: int) -> Any:
        feed = {name: value[:1].repeat(rows, axis=0) for name, value in net.feed.items()}
        exe.run(net.test, feed, [net.loss])
        return next(reversed(exe._plans.values()))

    return run


def test_plans_are_kept_for_all_shapes() -> None:
    run = runs_of_rows()
    with warnings.catch_warnings(action="error"):
        first = [run(rows) for rows in range(1, 51)]
        assert [run(rows) for rows in range(50, 0, -1)] == first[::-1]


@pytest.mark.parametrize("left", [None, executor.SPARE])
def test_plans_of_many_shapes_make_room_one_by_one(left: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "PLANS_KEPT", 10)
    monkeypatch.setattr(host_memory, "available", lambda: left)
    run = runs_of_rows()
    first = [run(rows) for rows in range(1, 12)]
    assert run(2) is first[1] and run(1) is not first[0]


def test_on_a_full_host_few_plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available", lambda: executor.SPARE - 1)
    run = runs_of_rows()
    first = [run(rows) for rows in range(1, executor.LEAST_KEPT + 1)]
    assert [run(rows) for rows in range(1, executor.LEAST_KEPT + 1)] == first
    run(99)
    assert run(2) is first[1] and run(1) is not first[0]


class Turns:
    """Programs of one fixed shape that run in turn in one executor."""

    def __init__(self, count: int) -> None:
        self.exe, self.nets = static.Executor(), []
        for _ in range(count):
            main = static.Program("net")
            with static.program_guard(main, static.Program()):
                self.nets.append((main, paddle.tanh(static.data("x", [2, 3]))))

    def run(self) -> list[Any]:
        plans = []
        for main, out in self.nets:
            self.exe.run(main, {"x": np.ones((2, 3), np.float32)}, [out])
            plans.append(next(reversed(self.exe._plans.values())))
        return plans


def test_programs_of_one_shape_do_not_take_each_others_plans() -> None:
    turns = Turns(9)
    with warnings.catch_warnings(action="error"):
        first = turns.run()
        assert all(turns.run() == first for _ in range(9))


def test_a_program_that_changes_is_not_said_to_have_feeds_that_change() -> None:
    turns = Turns(1)
    with warnings.catch_warnings(action="error"):
        for seed in range(40):
            turns.nets[0][0].random_seed = seed
            turns.run()


def test_a_default_program_in_which_nothing_runs_is_said_to_be_so() -> None:
    exe = static.Executor()
    with pytest.warns(UserWarning, match="the default main program has no operators: nothing runs; pass") as warned:
        assert exe.run() == []
    assert len(warned) == 1 and warned[0].filename == __file__
    assert exe.run(static.Program()) == []  # which was passed: nothing is said
    w = static.create_parameter([2], "float32")
    exe.run(static.default_startup_program())
    assert exe.run(fetch_list=w)[0].shape == (2,)  # a value is asked for; it need not stand in a list


def test_more_programs_than_plans_are_kept_are_said_to_be_so_once() -> None:
    turns = Turns(17)
    with warnings.catch_warnings(action="error"):
        turns.run()
    said = r"more programs .* take turns than the 16 of which one executor keeps plans: 8 plans were made again, "
    with pytest.warns(UserWarning, match=said + COST) as warned:
        turns.run()
    with warnings.catch_warnings(action="error"):
        turns.run()
    assert len(warned) == 1 and warned[0].filename == __file__ and len(turns.exe._plans) == 16


def test_feeds_in_another_order_have_the_same_plan() -> None:
    net, exe = Mlp(), static.Executor()
    exe.run(net.startup)
    for feed in (net.feed, dict(reversed(net.feed.items()))):
        exe.run(net.test, feed, [net.loss])
    assert len(exe._plans) == 2


def test_two_executors_share_a_scope() -> None:
    net, first, second = Mlp(), static.Executor(), static.Executor(paddle.CPUPlace())
    twin, alone = static.Scope(), static.Executor()
    first.run(net.startup)
    alone.run(net.startup, scope=twin)
    taken = [exe.run(net.main, net.feed, [net.loss])[0].item() for exe in (first, second, first, second)]
    assert taken == [alone.run(net.main, net.feed, [net.loss], scope=twin)[0].item() for _ in range(4)]


def larger(net: Mlp, factor: float = 1.0) -> dict[str, np.ndarray]:
    return {"x": net.feed["x"].repeat(50, axis=0) * np.float32(factor), "y": net.feed["y"].repeat(50, axis=0)}


def test_threads_may_share_an_executor() -> None:
    net, exe, scope = Mlp(), static.Executor(), static.Scope()
    exe.run(net.startup, scope=scope)
    feeds = [larger(net, 1), larger(net, 2)]
    expected = [exe.run(net.test, feed, [net.logits], scope=scope)[0] for feed in feeds]
    wrong = []

    def work(i: int) -> None:
        for _ in range(100):
            (got,) = exe.run(net.test, feeds[i], [net.logits], scope=scope)
            wrong.extend([i] * (not np.array_equal(got, expected[i])))

    in_threads(work, (0, 1))
    assert not wrong


def test_threads_may_share_a_scope() -> None:
    net, scope, alone = Mlp(), static.Scope(), static.Scope()
    executors = [static.Executor(), static.Executor()]
    for s in (scope, alone):
        executors[0].run(net.startup, scope=s)
    feed = larger(net)
    in_threads(lambda i: [executors[i].run(net.main, feed, scope=scope) for _ in range(50)], (0, 1))
    for _ in range(100):
        executors[0].run(net.main, feed, scope=alone)
    assert all((alone.read(name) == scope.read(name)).all() for name in alone.list_names())


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
    assert "in __use_fp16__/block/" in str(static.default_main_program())
