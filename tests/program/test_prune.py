"""`use_prune`, and updates in a fetch_list: values and states as Paddle 2.6.2 leaves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import FeedError, FetchError, MinigraphError
from tests.program.test_gradients import place  # noqa: F401 (a fixture)
from tests.support.pruned_runs import LOSS, RUNS, Targets, X, net, with_passes


@pytest.mark.parametrize("passes", [False, True], ids=["plain", "passes"])
@pytest.mark.parametrize("name", RUNS)
def test_values_and_states_are_those_of_paddle(name: str, passes: bool, place: Any) -> None:  # noqa: F811
    targets, prune, expected, states = RUNS[name]
    n, exe, scope = net(), static.Executor(place), static.Scope()
    exe.run(n.startup, scope=scope)
    source = with_passes(n.main) if passes else n.main
    found = exe.run(source, {"x": X}, targets(n), scope=scope, use_prune=prune)
    np.testing.assert_allclose([np.ravel(a)[0] for a in found], expected, rtol=1e-12)
    np.testing.assert_allclose([scope.read("w")[0, 0], scope.read("b")[0]], states, rtol=1e-12)


@pytest.mark.parametrize("passes", [False, True], ids=["plain", "passes"])
def test_choices_of_updates_take_turns(passes: bool) -> None:
    """Each has a plan of its own, and none runs with that of another."""
    n, exe, scope = net(), static.Executor(), static.Scope()
    exe.run(n.startup, scope=scope)
    source = with_passes(n.main) if passes else n.main
    for chosen in ([0], [1], [], [0, 1], [0], [1]):
        w, b = scope.read("w").copy(), scope.read("b").copy()
        exe.run(source, {"x": X}, [n.loss, [n.ops[i] for i in chosen]], scope=scope)
        changed = [(scope.read("b") != b).any(), (scope.read("w") != w).any()]
        assert changed == [not chosen or i in chosen for i in (0, 1)]


def test_training_with_what_minimize_returned() -> None:
    n, exe = net(), static.Executor()
    exe.run(n.startup)
    losses = [float(exe.run(n.main, {"x": X / 10}, [n.loss, n.minimized], use_prune=True)[0]) for _ in range(20)]
    assert losses[-1] < 0.1 * losses[0]


def test_clipping_runs_where_its_update_does() -> None:
    n, exe, scope = net(grad_clip=mg.nn.ClipGradByGlobalNorm(0.1)), static.Executor(), static.Scope()
    exe.run(n.startup, scope=scope)
    w, b = scope.read("w").copy(), scope.read("b").copy()
    exe.run(n.main, {"x": X}, [n.loss, [n.ops[1]]], scope=scope)
    assert 0 < np.linalg.norm(scope.read("w") - w) < 0.01 and (scope.read("b") == b).all()


def test_a_fed_inner_value_takes_the_place_of_what_computes_it() -> None:
    n, exe, scope = net(), static.Executor(), static.Scope()
    exe.run(n.startup, scope=scope)
    (loss,) = exe.run(n.main, {"x": X, n.h.name: np.ones((2, 2))}, [n.loss], scope=scope, use_prune=True)
    assert loss == 1.0
    np.testing.assert_allclose([scope.read("w")[0, 0], scope.read("b")[0]], [0.35, 0.0], rtol=1e-12, atol=1e-15)


def test_feeds_of_updates_are_asked_for() -> None:
    n, exe = net(), static.Executor()
    exe.run(n.startup)
    with pytest.raises(FeedError, match=r"feed 'x' is missing(.|\n)*updates run too(.|\n)*clone\(for_test=True\)"):
        exe.run(n.main, {n.h.name: np.ones((2, 2))}, [n.loss], use_prune=True)


def test_other_states_are_written_only_where_somebody_needs_them() -> None:
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [2, 3], "float64")
        count = static.create_parameter([1], "float64", "count", default_initializer=mg.nn.initializer.Constant(2.0))
        loss = mg.mean(x)
        mg.assign(count + 1.0, output=count)
    exe = static.Executor()
    exe.run(startup)
    exe.run(main, {"x": X}, [loss], use_prune=True)
    assert exe.run(main, {"x": X}, ["count"], use_prune=True)[0] == 3.0


def doubled(x: Any, c: Any, pred: Any) -> Any:
    """A branch that writes a state."""

    def branch() -> Any:
        mg.assign(c * 2.0, output=c)
        return mg.tanh(x)

    return static.nn.cond(pred, branch, lambda: x * 2.0)


def counted(x: Any, c: Any, body: Callable[[Any, Any], list[Any]], first: Any) -> Any:
    """What three rounds make of `first`."""
    n, i = mg.full([1], 3, "int64"), mg.full([1], 0, "int64")
    return static.nn.while_loop(lambda i, z: i < n, body, [i, first])[1]


def incremented(i: Any, z: Any, c: Any) -> list[Any]:
    mg.increment(c)
    return [i + 1, z * 0.5]


def assigned(x: Any, c: Any, pred: Any) -> Any:
    """The user's own assign of what a branch gives, which nobody needs: no run with pruning makes it."""
    mg.assign(static.nn.cond(pred, lambda: c + 1.0, lambda: c * 1.0), output=c)
    return x


IN_BLOCKS: dict[str, tuple[Callable[[Any, Any, Any], Any], float]] = {  # the state after two runs, 1 at first
    "branch": (doubled, 4.0),
    "branch in a branch": (lambda x, c, p: static.nn.cond(p, lambda: doubled(x, c, p), lambda: x), 4.0),
    "loop": (lambda x, c, p: counted(x, c, lambda i, z: incremented(i, z, c), x * 1.0), 7.0),
    "loop variable": (lambda x, c, p: x + counted(x, c, lambda i, z: [i + 1, z + 1.0], c), 7.0),
    "branch that nobody needs": (lambda x, c, p: (doubled(x, c, p), x)[1], 1.0),
    "assign that nobody needs": (assigned, 1.0),
}


@pytest.mark.parametrize("passes", [False, True], ids=["plain", "passes"])
@pytest.mark.parametrize("name", IN_BLOCKS)
def test_states_that_branches_and_loops_write(name: str, passes: bool) -> None:
    """They are written where the branch or loop runs, as Paddle 2.6.2 does it."""
    build, expected = IN_BLOCKS[name]
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup):
        x = static.data("x", [2, 3], "float64")
        c = static.create_global_var([1], 1.0, "float64", persistable=True, name="c")
        loss = mg.mean(build(x, c, mg.mean(x) > -9.0))
    exe = static.Executor()
    exe.run(startup, scope=scope)
    for _ in range(2):
        exe.run(with_passes(main) if passes else main, {"x": X}, [loss], scope=scope, use_prune=True)
    assert scope.read("c")[0] == expected


def test_two_optimizers_of_one_program() -> None:
    """An update that another one's gradients read stays with it."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        one = mg.nn.initializer.Constant(1.0)
        w, v = (static.create_parameter([1], "float64", n, default_initializer=one) for n in "wv")
        first = mg.optimizer.SGD(0.25, parameters=[w]).minimize(mg.sum(w * w))
        second = mg.optimizer.SGD(0.25, parameters=[v]).minimize(mg.sum(w * v))
    for chosen, states in ((first, [0.5, 1.0]), (second, [0.5, 0.875])):
        exe, scope = static.Executor(), static.Scope()
        exe.run(startup, scope=scope)
        exe.run(main, fetch_list=[chosen], scope=scope)
        assert [float(scope.read(n)[0]) for n in "wv"] == states


REFUSED: dict[str, tuple[Targets, type[MinigraphError], str]] = {
    "bare update": (lambda n: [n.loss, n.ops[0]], FetchError, r"an Operator(.|\n)*fetch_list=\[loss, \[op\]\]"),
    "opened minimized": (lambda n: [n.loss, *n.minimized], FetchError, r"lists in lists(.|\n)*as one entry"),
    "minimized alone": (lambda n: n.minimized, FetchError, r"lists in lists(.|\n)*as one entry"),
    "updates alone": (lambda n: n.ops, FetchError, "an Operator"),
    "pairs": (lambda n: [n.pairs], FetchError, "lists in lists"),
    "three deep": (lambda n: [[n.loss, [n.h]]], FetchError, "lists in lists"),
    "forward operator": (lambda n: [n.loss, [n.main.ops[0]]], FetchError, "matmul, which belongs to forward"),
    "gradient operator": (lambda n: [[n.main.ops[-3]]], FetchError, "which belongs to backward and updates nothing"),
    "number": (lambda n: [[n.loss, 3]], FetchError, "fetch_list holds 3; it takes"),
    "another program": (lambda n: [net().minimized], FetchError, "of program program_.* runs and does not have it"),
}


@pytest.mark.parametrize("passes", [False, True], ids=["plain", "passes"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_target_is_refused(name: str, passes: bool) -> None:
    targets, error, said = REFUSED[name]
    n, exe = net(), static.Executor()
    exe.run(n.startup)
    before = n.main.state_dict()
    source = with_passes(n.main) if passes else n.main
    with pytest.raises(error, match=said):
        exe.run(source, {"x": X}, targets(n))
    assert all((before[name] == value).all() for name, value in n.main.state_dict().items())
    assert exe.run(source, {"x": X}, [n.loss])[0] == pytest.approx(LOSS)


def test_an_update_of_a_clone_is_another_one() -> None:
    n, exe = net(), static.Executor()
    exe.run(n.startup)
    with pytest.raises(FetchError, match="does not have it"):
        exe.run(n.main.clone(), {"x": X}, [n.loss, n.minimized])


def test_an_update_that_was_taken_out_is_refused() -> None:
    n, exe = net(), static.Executor()
    exe.run(n.startup)
    n.main.ops.remove(n.ops[0])
    n.main.version += 1
    with pytest.raises(FetchError, match="does not have it"):
        exe.run(n.main, {"x": X}, [n.loss, n.minimized])


def test_memory_of_a_run_with_some_updates() -> None:
    n = net()
    compiled = with_passes(n.main)
    few, most = (compiled.memory_report({"x": X}, [n.loss, ops], mg.CPUPlace()) for ops in ([n.ops[0]], n.ops))
    assert few.planned <= most.planned
    with pytest.raises(FetchError, match="nope"):
        compiled.memory_report({"x": X}, ["nope"], mg.CPUPlace())
