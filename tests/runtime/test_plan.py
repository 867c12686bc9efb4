"""Buffer reuse, views and updates in place: random programs against one operator after the other."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import minigraph as mg
from minigraph.kernels.one_piece import rounded
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.cpu import plan as plan_module
from minigraph.runtime.executor import Executor
from minigraph.runtime.schedule import Schedule
from tests.support import opcheck
from tests.support.grades import graded

SIZE = 4
VIEWS = ("reshape", "transpose", "split", "slice", "flatten")
UNARY = ("relu", "tanh", "sigmoid", "gelu", "softplus", "square", "scale", "silu", "cumsum")
BINARY = ("elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_max", "matmul",
          "tanh_grad", "relu_grad", "gelu_grad", "sigmoid_grad")  # fmt: skip


def copied(values):
    return {name: x.copy() for name, x in values.items()}


def interpret(program, values):
    """All values after the run: each operator's reference on copies, nothing shared, nothing in place.

    A persistable has its last value, as in the Scope. `values` holds feeds and persistables.
    """
    values = copied(values)
    for op in program.ops:
        inputs = {slot: [values[v.name].copy() for v in vs] for slot, vs in op.inputs.items()}
        outputs = opcheck.reference(opcheck.Call(op.opdef, 0, inputs, op.attrs))
        for slot, vs in op.outputs.items():
            for v, x in zip(vs, outputs[slot], strict=True):
                values[v.name] = np.array(x)
    return values


class RandomProgram:
    """A chain of operators on matrices of one size, so that many of them may share memory."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.program = Program()
        self.block = self.program.global_block()
        self.g = Builder(self.block)
        self.feeds = [self.block.create_var(f"feed{i}", [SIZE, SIZE], "float64", is_data=True) for i in range(2)]
        self.states = [
            self.block.create_var(f"state{i}", [SIZE, SIZE], "float64", persistable=True) for i in range(2)
        ]
        self.live = [*self.feeds, *self.states]
        for _ in range(self.rng.integers(3, 25)):
            self.add()
        number = min(len(self.live), int(self.rng.integers(1, 5)))
        self.fetches = [self.live[i] for i in self.rng.choice(len(self.live), number)]

    def pick(self):
        """Rather a recent value than an old one."""
        back = min(int(self.rng.geometric(0.3)), len(self.live))
        return self.live[-back]

    def add(self):
        kind = self.rng.choice(["view", "unary", "binary", "wide", "state"], p=[0.25, 0.25, 0.3, 0.1, 0.1])
        self.live += getattr(self, f"_{kind}")()

    def bounded(self, v):
        """Keeps chains of products finite."""
        return self.g.tanh(v) if self.rng.random() < 0.3 else v

    def _view(self):
        v, g = self.pick(), self.g
        match self.rng.choice(VIEWS):
            case "reshape":
                return [g.reshape(g.reshape(v, shape=[2, -1]), shape=[SIZE, SIZE])]
            case "transpose":
                return [g.transpose(v, perm=[1, 0])]
            case "flatten":
                return [g.reshape(g.flatten(v), shape=[SIZE, SIZE])]
            case "split":
                upper, lower = g.split(v, num=2, axis=int(self.rng.integers(2)))
                by_rows = upper.shape[0] < SIZE
                return [g.matmul(upper, lower, trans_x=True) if by_rows else g.concat([lower, upper], axis=1)]
            case _:
                rows = g.slice(v, axes=[0], starts=[1], ends=[3], steps=[1], decrease_axes=[])
                return [g.concat([rows, rows], axis=0)]

    def _unary(self):
        name = str(self.rng.choice(UNARY))
        attrs = {"scale": {"scale": 0.5, "bias": 0.1}, "cumsum": {"axis": 0}}.get(name, {})
        return [self.bounded(self.g.emit(name, self.pick(), **attrs))]

    def _binary(self):
        x, y = self.pick(), self.pick()
        return [self.bounded(self.g.emit(str(self.rng.choice(BINARY)), x, y))]

    def _wide(self):
        v = self.pick()
        if self.rng.random() < 0.5:
            return [self.g.sum([v, self.pick(), v])]
        x_grad, y_grad = self.g.elementwise_mul_grad(v, self.pick(), self.pick(), needs=["X_grad", "Y_grad"])
        return [x_grad, self.bounded(y_grad), self.g.elementwise_sub(v, self.g.reduce_mean(v))]

    def _state(self):
        """An update, mostly from the state's own value."""
        state = self.states[self.rng.integers(len(self.states))]
        match self.rng.integers(6):
            case 0:
                self.g.scale(state, scale=0.5, out={"Out": state})
            case 1:
                self.g.elementwise_sub(state, self.g.tanh(self.pick()), out={"Out": state})
            case 2:
                self.g.tanh_grad(state, self.pick(), out={"X_grad": state})
            case 3:
                self.g.assign(self.g.tanh(self.pick()), out={"Out": state})
            case 4:
                self.g.transpose(self.pick(), perm=[1, 0], out={"Out": state})
                return []
            case _:
                self.g.elementwise_mul_grad(
                    self.pick(), self.pick(), state, out={"X_grad": state}, needs=["Y_grad"]
                )
        self.g.tanh(state, out={"Out": state})  # bounded from run to run
        return []


def check(seed: int) -> int:
    """Three runs of a random program equal the interpreter's; returns the number of buffers."""
    random = RandomProgram(seed)
    program, rng = random.program, random.rng
    exe, scope = Executor(), Scope()
    state = {v.name: rng.normal(size=v.shape) for v in random.states}
    for name, x in state.items():
        scope.write(name, x.copy())
    fetched_before = []
    for run in range(3):
        feed = {v.name: rng.normal(size=v.shape) for v in random.feeds}
        given = copied(feed)
        for x in given.values():
            x.flags.writeable = run != 1
        if run == 2:
            given = {name: np.asfortranarray(x) for name, x in given.items()}
        fetched = exe.run(program, given, random.fetches, scope=scope)
        expected = interpret(program, {**state, **feed})
        found = [(v.name, x) for v, x in zip(random.fetches, fetched, strict=True)]
        found += [(name, scope.read(name)) for name in state]
        for name, x in found:
            message = f"seed {seed}, run {run}: {name} of\n{program}"
            np.testing.assert_allclose(x, expected[name], rtol=1e-12, atol=1e-12, err_msg=message)
        state = {name: expected[name] for name in state}
        for name, x in feed.items():
            np.testing.assert_array_equal(given[name], x, err_msg=f"{seed}: a feed was written")
        for x, copy in fetched_before:
            np.testing.assert_array_equal(x, copy, err_msg=f"{seed}: a fetched value was overwritten")
        (plan,) = exe._plans.values()
        for x in fetched:
            assert x.flags.writeable
            for other in (*plan.buffers, *scope.arrays.values(), *given.values()):
                assert not np.may_share_memory(x, other), f"{seed}: a fetched value is somebody's memory"
        fetched_before += [(x, x.copy()) for x in fetched]
        for buffer in plan.buffers:  # nothing may be left there for the next run
            buffer[...] = 255
    return len(plan.buffers)


def check_all(seeds):
    for seed in seeds:
        check(seed)


@pytest.mark.parametrize("seeds", graded([range(70), range(70, 200)], now=lambda seeds: 0 in seeds), ids=str)
def test_random_programs_equal_one_operator_after_the_other(seeds):
    check_all(seeds)


def test_the_comparison_notices_a_buffer_that_is_freed_too_early(monkeypatch):
    """With every value's life cut by one step, as an off-by-one in assign_buffers would, it fails."""
    assign = plan_module.assign_buffers

    def too_early(values, steps, *others):
        kept = [v.last_use for v in values]
        for v in values:
            v.last_use = max(v.producer, v.last_use - 1)
        try:
            return assign(values, steps, *others)
        finally:
            for v, last_use in zip(values, kept, strict=True):
                v.last_use = last_use

    monkeypatch.setattr(plan_module, "assign_buffers", too_early)
    with pytest.raises(AssertionError, match="seed"):
        check_all(range(20))


def test_a_chain_needs_room_for_two_values_and_in_place_operators_for_none():
    program = Program()
    g = Builder(program.global_block())
    x = program.global_block().create_var("x", [SIZE], "float64", is_data=True)
    v = g.silu(x)
    for _ in range(10):
        v = g.silu(v)  # cannot work in place
    plan = plan_module.Plan(program, {"x": x.type}, [])
    assert (len(plan.buffers), plan.nbytes) == (11, 2 * rounded(8 * SIZE))
    for _ in range(10):
        v = g.relu(v)
    plan = plan_module.Plan(program, {"x": x.type}, [])
    assert (len(plan.buffers), plan.nbytes) == (11, 2 * rounded(8 * SIZE))


def run_with_state(build, state):
    """(fetched, state afterwards) of a program on one persistable `w`."""
    block = Program().global_block()
    w = block.create_var("w", state.shape, "float64", persistable=True)
    target = build(Builder(block), w)
    scope = Scope()
    scope.write("w", state.copy())
    (fetched,) = Executor().run(block.program, {}, [target], scope=scope)
    return fetched, scope.read("w")


STATE = np.array([[1.0, 2.0], [3.0, 4.0]])


def test_a_view_of_a_state_keeps_the_old_value():
    def build(g, w):
        view = g.transpose(w, perm=[1, 0])
        g.scale(w, scale=10.0, out={"Out": w})
        return g.scale(view, scale=1.0)

    fetched, state = run_with_state(build, STATE)
    np.testing.assert_array_equal(fetched, STATE.T)
    np.testing.assert_array_equal(state, STATE * 10)


def test_a_fetched_view_of_a_state_keeps_the_old_value():
    def build(g, w):
        view = g.reshape(w, shape=[-1])
        g.scale(w, scale=10.0, out={"Out": w})
        return view

    np.testing.assert_array_equal(run_with_state(build, STATE)[0], STATE.reshape(-1))


def test_an_update_may_read_a_view_of_what_it_updates():
    def build(g, w):
        g.tanh_grad(w, g.transpose(w, perm=[1, 0]), out={"X_grad": w})
        return w

    fetched, state = run_with_state(build, STATE)
    np.testing.assert_array_equal(fetched, STATE.T * (1 - STATE * STATE))
    np.testing.assert_array_equal(state, fetched)


def test_an_operator_in_place_may_read_its_input_twice():
    def build(g, w):
        y = g.scale(w, scale=1.0)
        return g.tanh_grad(y, y)

    np.testing.assert_array_equal(run_with_state(build, STATE)[0], STATE * (1 - STATE * STATE))


def test_scalars_stay_arrays():
    block = Program().global_block()
    x = block.create_var("x", [3], "float32", is_data=True)
    w = block.create_var("w", [], "float32", persistable=True)
    g = Builder(block)
    g.assign(g.reduce_mean(x), out={"Out": w})
    exe, scope = Executor(), Scope()
    scope.write("w", np.zeros((), "float32"))
    for _ in range(3):
        (fetched,) = exe.run(block.program, {"x": np.ones(3, "float32")}, [w], scope=scope)
        assert isinstance(fetched, np.ndarray)
        assert isinstance(scope.arrays["w"], np.ndarray)
        scope.arrays["w"][...] = 7
        assert fetched == 1


def test_a_gradient_reads_only_what_its_outputs_are_computed_from():
    program = Program()
    with mg.static.program_guard(program, Program()):
        x, frozen = mg.static.data("x", [4, 3]), mg.static.data("frozen", [3, 2])
        x.stop_gradient = False
        h = mg.exp(x)  # as large as it is, nobody needs it after the product: frozen has no gradient
        (x_grad,) = mg.static.gradients([mg.matmul(h, frozen)], [h])
    feeds = {v.name: v.type for v in (x, frozen)}
    schedule = Schedule(program, feeds, [x_grad.name])
    grad = next(s for s in schedule.steps if s.op.type == "matmul_grad")
    assert grad.inputs[0] == h.type
    assert schedule.values[schedule.current[h.name]].last_use < schedule.steps.index(grad)
    x, frozen = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    fed = {"x": np.concatenate([x, x])[:4], "frozen": frozen[:, :2]}
    (found,) = Executor().run(program, fed, [x_grad.name])
    np.testing.assert_allclose(found, np.ones((4, 2), np.float32) @ fed["frozen"].T, rtol=1e-6)


# steps whose arrays stay


def training(fed=False):
    """A program that updates w by sgd with 2 w for its gradient, or with what is fed as x."""
    program = Program()
    block = program.global_block()
    g = Builder(block)
    w = block.create_var("w", (8, 8), "float64", persistable=True)
    rate = block.create_var("rate", (1,), "float64", persistable=True)
    grad = block.create_var("x", (8, 8), "float64", is_data=True) if fed else g.scale(w, scale=2.0)
    g.sgd(w, grad, rate, out={"ParamOut": w})
    return program


def state(lr, value=1.0):
    scope = Scope()
    scope.write("w", np.full((8, 8), value))
    scope.write("rate", np.array([lr]))
    return scope


def test_a_step_whose_arrays_stay_is_prepared_once(monkeypatch):
    program = training()
    kernel, made = program.ops[-1].opdef.cpu_kernel, []
    prepare = kernel.for_arrays
    monkeypatch.setattr(kernel, "for_arrays", lambda *a, **k: made.append(prepare(*a, **k)) or made[-1])
    exe, scope = Executor(mg.CPUPlace()), state(0.25)
    for _ in range(5):
        exe.run(program, {}, [], scope=scope)
    assert len(made) == 1
    np.testing.assert_array_equal(scope.read("w"), np.full((8, 8), 0.5**5))
    scope.arrays["rate"][...] = 0.0  # numbers are read in each run
    exe.run(program, {}, [], scope=scope)
    np.testing.assert_array_equal(scope.read("w"), np.full((8, 8), 0.5**5))


def test_a_prepared_step_follows_new_arrays():
    program = training()
    exe, scopes = Executor(mg.CPUPlace()), [state(0.25, value) for value in (1.0, 16.0)]
    for _ in range(3):
        for scope in scopes:
            exe.run(program, {}, [], scope=scope)
    old = scopes[0].arrays["w"]
    scopes[0].write("w", np.full((8, 8), 32.0))
    kept = old.copy()
    for _ in range(3):
        for scope in scopes:
            exe.run(program, {}, [], scope=scope)
    np.testing.assert_array_equal(scopes[0].read("w"), np.full((8, 8), 4.0))
    np.testing.assert_array_equal(scopes[1].read("w"), np.full((8, 8), 0.25))
    np.testing.assert_array_equal(old, kept)


def test_a_step_on_fed_arrays_is_not_prepared():
    program = training(fed=True)
    exe, scope = Executor(mg.CPUPlace()), state(1.0)
    for value in (1.0, 2.0, 3.0):
        exe.run(program, {"x": np.full((8, 8), value)}, [], scope=scope)
    np.testing.assert_array_equal(scope.read("w"), np.full((8, 8), -5.0))


def test_a_prepared_step_is_not_run_on_an_array_that_another_step_has_replaced():
    """The kernel before it may give another array than the planned one."""
    program = training()
    exe, scope = Executor(mg.CPUPlace()), state(0.25)
    for _ in range(3):
        exe.run(program, {}, [], scope=scope)
    (plan,) = exe._plans.values()
    first = plan.steps[0].kernel
    plan.steps[0].kernel = lambda *args, **attrs: first(*args, **{**attrs, "out": (None,)})
    exe.run(program, {}, [], scope=scope)
    np.testing.assert_array_equal(scope.read("w"), np.full((8, 8), 0.5**4))


def test_a_prepared_step_reports_where_it_fails(monkeypatch):
    program = training()
    exe, scope = Executor(mg.CPUPlace()), state(0.25)
    for _ in range(2):
        exe.run(program, {}, [], scope=scope)
    (plan,) = exe._plans.values()

    def fail():
        raise ValueError("no")

    found = plan.facts_in[scope]
    assert found.lasting[1] is not None
    found.lasting[1] = fail, *found.lasting[1][1:]
    with pytest.raises(mg.errors.KernelError, match="ValueError: no") as caught:
        exe.run(program, {}, [], scope=scope)
    assert "sgd(Param=w" in str(caught.value)


def test_a_plan_keeps_no_array_of_a_scope_that_is_gone(frozen):
    program = training()
    exe, scope = Executor(mg.CPUPlace()), state(0.25)
    for _ in range(3):
        exe.run(program, {}, [], scope=scope)
    kept = weakref.ref(scope.arrays["w"])
    del scope
    gc.collect()
    assert kept() is None


def test_large_arrays_that_are_updated_begin_at_a_page():
    program = Program()
    block = program.global_block()
    w, grad = (block.create_var(n, (200, 100), "float32", persistable=True) for n in "wg")
    rate = block.create_var("rate", (1,), "float32", persistable=True)
    Builder(block).sgd(w, grad, rate, out={"ParamOut": w})
    scope, room = Scope(), np.zeros(20_001, np.float32)
    scope.write("w", room[1:].reshape(200, 100))
    scope.write("g", np.ones((200, 100), np.float32))
    scope.write("rate", np.ones(1, np.float32))
    given = scope.arrays["g"]
    exe = Executor(mg.CPUPlace())
    for _ in range(3):
        exe.run(program, {}, [], scope=scope)
    assert scope.arrays["w"].ctypes.data % plan_module.PAGE == 0
    assert scope.arrays["g"] is given
    np.testing.assert_array_equal(scope.read("w"), np.full((200, 100), -3.0))
    version = scope.version
    exe.run(program, {}, [], scope=scope)
    assert scope.version == version


def entered(monkeypatch, program, feed, scope=None):
    """How often a run asks for one thread in BLAS."""
    seen = []
    guard = plan_module.one_thread_in_blas
    monkeypatch.setattr(plan_module, "one_thread_in_blas", lambda: seen.append(1) or guard())
    Executor(mg.CPUPlace()).run(program, feed, [], scope=scope)
    return len(seen)


def test_updates_alone_leave_the_threads_of_blas_as_they_are(monkeypatch):
    program = Program()
    block = program.global_block()
    w, grad = (block.create_var(n, (200, 100), "float32", persistable=True) for n in "wg")
    rate = block.create_var("rate", (1,), "float32", persistable=True)
    Builder(block).sgd(w, grad, rate, out={"ParamOut": w})
    scope = Scope()
    for v in (w, grad, rate):
        scope.write(v.name, np.ones(v.shape, np.float32))
    assert entered(monkeypatch, program, {}, scope) == 0
    assert scope.read("w").sum() == 0
    Builder(block).matmul(w, grad, trans_y=True)
    assert entered(monkeypatch, program, {}, scope) == 1
