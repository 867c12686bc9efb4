"""py_func, static_pylayer and Assert: what the host computes or checks, and gradients of the user's own."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import DTypeError, KernelError, MinigraphError, ProgramError
from minigraph.ir.diff import first_difference
from minigraph.ir.text import parse
from minigraph.program import unique_name
from minigraph.program.scope import Scope, scope_guard
from minigraph.runtime.executor import Executor
from minigraph.static import Program, data, gradients, program_guard, py_func
from minigraph.static.nn import static_pylayer
from minigraph.static.nn.control_flow import Assert
from tests.support import gpu_stub

X = np.array([[-1.5, 0.5, 2.0], [0.25, -0.75, 1.0]])


@pytest.fixture(autouse=True)
def fresh():
    mg.set_default_dtype("float64")
    with unique_name.guard(), program_guard(Program("main"), Program("startup")), scope_guard(Scope()):
        yield


@pytest.fixture
def stub(monkeypatch):
    if gpu_stub.cuda_host.COMPILER is None:
        pytest.skip("kernels on a CPU need g++")
    return gpu_stub.installed(monkeypatch)


def main() -> Program:
    return mg.static.default_main_program()


def run(fetches, feed=None, program=None, place=None):
    return Executor(place).run(program or main(), feed={"x": X} if feed is None else feed, fetch_list=fetches)


def live(shape=(2, 3)):
    x = data("x", list(shape))
    x.stop_gradient = False
    return x


def made(name, shape=(2, 3), dtype="float64"):
    return main().global_block().create_var(name, shape, dtype)


def tanh(x):
    return np.tanh(x)


def tanh_slope(x, y, dy):
    return dy * (1 - y * y)


def test_a_function_of_python_has_the_gradient_of_another():
    x = live()
    h = x * 2.0
    out = py_func(tanh, h, made("out"), tanh_slope)
    grads = gradients([mg.sum(out * out)], [x])
    value, grad = run([out, *grads])
    np.testing.assert_allclose(value, np.tanh(2 * X), rtol=1e-15)
    np.testing.assert_allclose(grad, 4 * np.tanh(2 * X) * (1 - np.tanh(2 * X) ** 2), rtol=1e-14)


def test_some_of_its_inputs_and_no_results():
    x, y, seen = live(), data("y", [3]), []

    def forward(a, b):
        return a * b, a.sum()

    def backward(b, da, ds):
        return da * b + ds, None

    outs = [made("a"), made("b", [])]
    py_func(forward, [x, y], outs, backward, skip_vars_in_backward_input=[x, *outs])
    py_func(seen.append, x, None)
    grads = gradients([mg.sum(outs[0]) + outs[1] * 2.0], [x])
    feed = {"x": X, "y": np.array([1.0, 2.0, 3.0])}
    a, b, grad = run([*outs, *grads], feed)
    np.testing.assert_allclose(a, X * feed["y"])
    np.testing.assert_allclose(b, X.sum())
    np.testing.assert_allclose(grad, np.broadcast_to(feed["y"], (2, 3)) + 2.0)
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], X)


def test_a_text_has_the_name_of_a_function_and_does_not_run():
    py_func(tanh, live(), made("out"), tanh_slope)
    again = parse(str(main()))
    assert str(again) == str(main())
    assert first_difference(main(), again) is None
    assert "test_host_functions.tanh" in str(main())
    with pytest.raises(ProgramError, match="the text of a program has only the name"):
        run(["out"], program=again)
    assert run(["out"], program=main().clone())[0].shape == (2, 3)


WRONG = {
    "shape": (lambda x: x[:1], "is float64.1, 3., not f64.2,3."),
    "type": (lambda x: x.astype("float32"), "is float32.2, 3., not f64"),
    "number": (lambda x: (x, x), "returned 2 values, not 1"),
    "None": (lambda x: None, "is None, wanted is f64"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_it_returns_must_be_what_was_declared(what):
    function, fact = WRONG[what]
    py_func(function, live(), made("out"))
    with pytest.raises(MinigraphError, match=fact) as caught:
        run(["out"])
    assert "test_host_functions.py" in str(caught.value)


def counter(value=0.0):
    """A state of one element."""
    state = main().global_block().create_var("count", [1], "float64", persistable=True)
    mg.static.global_scope().write("count", np.full(1, value))
    return state


WRITERS = {
    "a function": lambda count: py_func(lambda a: a + 1, count, count),
    "a function in a branch": lambda count: mg.static.nn.cond(
        mg.sum(count) >= 0, lambda: py_func(lambda a: a + 1, count, count), lambda: count * 1.0
    ),
    "a branch": lambda count: mg.static.nn.cond(
        mg.sum(count) >= 0, lambda: count + 1, lambda: count
    ).block.ops[-1]._rename_output(main().ops[-1].output("Out")[0], "count"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:program .* calls")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_state_that_the_host_decides_stays(writer, on_gpu, compiled, request):
    place = mg.CUDAPlace(0) if on_gpu and request.getfixturevalue("stub") else None
    count = counter()
    WRITERS[writer](count)
    later = count * 10.0
    mg.assign(count * 2.0, output=count)
    program = mg.static.CompiledProgram(main(), mg.static.BuildStrategy.all()) if compiled else None
    expected = 0.0
    for _ in range(3):
        found = run([later, count], {}, program, place)
        np.testing.assert_array_equal(found, [[(expected + 1) * 10], [(expected + 1) * 2]])
        expected = (expected + 1) * 2
        assert mg.static.global_scope().read("count") == expected


@pytest.mark.filterwarnings("ignore:program .* calls")
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_state_that_a_function_wrote_is_as_before_where_a_later_one_fails(on_gpu, request):
    place, failing = mg.CUDAPlace(0) if on_gpu and request.getfixturevalue("stub") else None, [False]

    def may_fail(a):
        if failing[0]:
            raise ValueError("it fails")
        return a

    count = counter()
    py_func(lambda a: a + 1, count, count)
    py_func(may_fail, count, made("late", [1]))
    for wanted in (1, 1, 2):
        if failing[0]:
            with pytest.raises(ValueError, match="it fails"):
                run([count], {}, place=place)
        else:
            run([count], {}, place=place)
        assert mg.static.global_scope().read("count") == wanted
        failing[0] = not failing[0]


def test_a_function_may_fill_its_array_anew():
    own = np.zeros(1)

    def tenfold(a):
        own[...] = a * 10
        return own

    one, two = (py_func(tenfold, mg.full([1], k), made(f"out{k}", [1])) for k in (1.0, 2.0))
    count = counter()
    py_func(tenfold, mg.full([1], 3.0), count)
    np.testing.assert_array_equal(run([one + two, one, two, count], {}), [[30], [10], [20], [30]])
    own[...] = -1
    assert mg.static.global_scope().read("count") == 30


def test_wrong_arguments_are_refused():
    x = live()
    for call, fact in (
        (lambda: py_func(3, x, made("a")), "func is no function"),
        (lambda: py_func(tanh, x, made("b"), 3), "backward_func is no function"),
        (lambda: py_func(tanh, 3, made("c")), r"x\[0\] must be a Variable"),
        (lambda: py_func(tanh, x, made("d"), tanh_slope, [x * 1.0]), "neither of x nor"),
        (lambda: gradients([py_func(tanh, x, made("e"))], [x]), "has no backward_func"),
    ):
        with pytest.raises(MinigraphError, match=fact):
            call()


def test_on_a_gpu_a_warning_tells_that_it_waits(stub):
    x = live()
    out = py_func(tanh, x * 2.0, made("out"), tanh_slope) + 1.0
    with pytest.warns(UserWarning, match=r"calls .*tanh in each run"):
        (value,) = run([out], place=mg.CUDAPlace(0))
    np.testing.assert_allclose(value, np.tanh(2 * X) + 1.0, rtol=1e-12)


# static_pylayer


def test_a_gradient_of_its_own_is_taken():
    x, w = live(), data("w", [3])
    two = x * 2.0
    a, b = static_pylayer(lambda u, v: (mg.exp(u) + w, u * v), [two, x], lambda da, db: (da * 3.0 + w, db * two))
    grads = gradients([mg.sum(a) + mg.sum(b * 5.0)], [x])
    values = np.array([1.0, 2.0, 3.0])
    found = run([a, b, *grads], {"x": X, "w": values})
    np.testing.assert_allclose(found[0], np.exp(2 * X) + values)
    np.testing.assert_allclose(found[1], 2 * X * X)
    np.testing.assert_allclose(found[2], 2 * (3.0 + values) + 5 * 2 * X)


def test_a_gradient_of_its_own_has_a_gradient():
    x = live()
    out = static_pylayer(lambda v: v * v, [x], lambda d: d * d * 2.0)
    seed = x * 3.0
    (first,) = gradients([out], [x], target_gradients=[seed])
    (second,) = gradients([first], [x])
    np.testing.assert_allclose(run([first])[0], 18 * X * X)
    np.testing.assert_allclose(run([second])[0], 36 * X)


def test_without_a_backward_function_inputs_get_no_gradient():
    x = live()
    with pytest.raises(ProgramError, match="may get a gradient"):
        static_pylayer(mg.exp, [x])
    x.stop_gradient = True
    np.testing.assert_allclose(run([static_pylayer(mg.exp, [x])])[0], np.exp(X))


def test_wrong_gradients_are_refused():
    x = live()
    for backward, fact in (
        (lambda d: (d, d), "2 gradients for 1 inputs"),
        (lambda d: d[:1], "the gradient of x"),
        (lambda d: None, "0 gradients for 1 inputs"),
        (3, "backward_fn is no function"),
    ):
        with pytest.raises(MinigraphError, match=fact):
            static_pylayer(lambda v: v * 2.0, [x], backward)


# Assert


def test_an_assertion_that_fails_shows_values_and_changes_nothing():
    x = data("x", [2, 3])
    count = mg.static.create_global_var([1], 0.0, "float64", persistable=True)
    mg.assign(count + 1.0, count)
    Assert(mg.sum(x) > 0, [x, count], summarize=2, name="the sum is positive")
    Executor().run(mg.static.default_startup_program())
    run([count])
    with pytest.raises(KernelError, match=r"the sum is positive: float64\[2, 3\] \[1.5 -0.5 \.\.\.\]; float64\[1\]"):
        run([count], {"x": -X})
    assert main().state_dict()[count.name] == 1.0
    with pytest.raises(DTypeError, match="must be bool"):
        Assert(x)


def test_an_assertion_in_a_branch_is_looked_at_where_it_runs():
    x = data("x", [2, 3])

    def checked():
        Assert(mg.max(x) < 1.0, [x])
        return x * 2.0

    out = mg.static.nn.cond(mg.sum(x) > 0, checked, lambda: x)
    np.testing.assert_array_equal(run([out], {"x": -X})[0], -X)
    with pytest.raises(KernelError, match="an assertion does not hold"):
        run([out])


def test_an_assertion_on_a_gpu(stub):
    x = data("x", [2, 3])
    Assert(mg.sum(x) > 0, [x])
    out = x * 2.0
    np.testing.assert_array_equal(run([out], place=mg.CUDAPlace(0))[0], 2 * X)
    with pytest.raises(KernelError, match="an assertion does not hold"):
        run([out], {"x": -X}, place=mg.CUDAPlace(0))
