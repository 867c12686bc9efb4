"""check_nan_inf beside rewrites: the operator and the line of the user's program are found through what passes made."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.base import unique_name
from minigraph.errors import NonFiniteError
from minigraph.program.scope import Scope
from minigraph.static import BuildStrategy, CompiledProgram


def refused(build: Any, strategy: BuildStrategy, feed: dict[str, np.ndarray], place: Any = None) -> NonFiniteError:
    """The error of a program that trains what `build` returns."""
    main, startup = static.Program("main"), static.Program("startup")
    main.random_seed = startup.random_seed = 3
    with static.program_guard(main, startup), unique_name.guard():
        loss = build()
        mg.optimizer.SGD(0.1).minimize(loss)
    scope, exe = Scope(), static.Executor(place or mg.CPUPlace())
    exe.run(startup, scope=scope)
    strategy.check_nan_inf = True
    with pytest.raises(NonFiniteError) as problem:
        exe.run(CompiledProgram(main, strategy), feed, [loss], scope=scope)
    return problem.value


def line_of(problem: NonFiniteError) -> str:
    """The user's line that is named."""
    assert problem.site is not None
    return linecache.getline(problem.site.filename, problem.site.line).strip()


def gradient_of_a_square() -> Any:
    """It is 0 * inf; in one kernel behind it stand operators that need only the types of what that does not have."""
    x = static.data("x", [4, 4])
    moved = x + 0.1 * static.create_parameter([4, 4], "float32")
    doubled = moved + moved
    squared = mg.tanh(mg.square(doubled))
    return mg.mean(mg.nn.functional.softmax(squared) * static.data("k", [4, 4]))


def computed_again() -> Any:
    """The kernel that fails reads a value that backward computes a second time."""
    moved = static.data("x", [4, 4]) + 0.1 * static.create_parameter([4, 4], "float32")
    turned = mg.reshape(mg.transpose(moved, [1, 0]), [4, 4])
    scaled = mg.nn.functional.gelu(turned) * 0.5 + 0.1
    logged = scaled * mg.log(static.data("k", [4, 4])) + scaled
    return mg.mean(mg.nn.functional.cross_entropy(logged, static.data("y", [4, 1], "int64")))


def kept_for_backward() -> Any:
    """Of what the kernel that fails writes, it reads some itself, and kernels behind it do."""
    moved = static.data("x", [4, 4]) + 0.1 * static.create_parameter([4, 4], "float32")
    turned = mg.reshape(mg.transpose(moved, [1, 0]), [4, 4])
    divided = turned / static.data("k", [4, 4])
    normed = static.nn.layer_norm(mg.nn.functional.relu(divided))
    return mg.mean(mg.matmul(normed, static.create_parameter([4, 4], "float32")))


CASES: dict[str, tuple[Any, dict[str, float], str, str]] = {
    "types": (gradient_of_a_square, {"x": np.inf}, "elementwise_mul", "squared = "),
    "again": (computed_again, {"k": 0.0}, "log", "logged = "),
    "behind": (kept_for_backward, {"x": np.inf}, "layer_norm", "normed = "),
}


def feed_of(case: str) -> dict[str, np.ndarray]:
    feed = {"x": np.full((4, 4), 0.5, "float32"), "k": np.full((4, 4), 2.0, "float32")}
    for name, value in CASES[case][1].items():
        feed[name][3, 0] = value
    return feed | ({"y": np.zeros((4, 1), "int64")} if case == "again" else {})


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_first_member_that_fails_is_named(case: str, recompute: bool):
    build, _, op_type, line = CASES[case]
    problem = refused(build, BuildStrategy.all(recompute=recompute), feed_of(case))
    assert problem.operator == "fused_elementwise"
    assert f"; of these the first that fails is {op_type}(" in problem.fact, problem
    assert line_of(problem).startswith(line), problem


def test_members_whose_values_are_read_behind_the_kernel_are_listed():
    problem = refused(kept_for_backward, BuildStrategy.all(), feed_of("behind"))
    made_of = problem.fact.partition("; made of ")[2].partition("; of these")[0]
    assert [word.split()[0] for word in made_of.split(", ")] == ["elementwise_div", "relu", "layer_norm"]


def test_what_is_to_be_fetched_has_the_name_that_the_user_knows(stub: Any):
    """The kernel reads a second copy."""
    problem = refused(computed_again, BuildStrategy.all(recompute=True), feed_of("again"), mg.CUDAPlace(0))
    assert problem.call is not None and "reshape_0.tmp_0.again: " in problem.call, problem
    assert problem.hint is not None and "fetch reshape_0.tmp_0, k, " in problem.hint, problem


@pytest.mark.parametrize("strategy", [BuildStrategy, BuildStrategy.all])
def test_an_infinity_from_outside_a_block_is_not_said_to_be_fed(strategy: Any):
    """It is computed: exp gives what it was given; in the block, and behind it, it becomes NaN."""
    for inside in (True, False):

        def build(inside: bool = inside) -> Any:
            power = mg.exp(static.data("x", [4, 4]))
            w = static.create_parameter([4, 4], "float32")
            made = static.nn.cond(mg.mean(w) < 1e9, lambda: w * (power - power if inside else 2.0), lambda: w)
            return mg.mean(made) if inside else mg.mean(made * (power - power))

        problem = refused(build, strategy(), {"x": np.full((4, 4), np.inf, "float32")})
        where = "is not finite where it is handed to cond_0.true" if inside else "is computed from an infinity"
        assert problem.hint is not None and f"exp_0.tmp_0 {where}" in problem.hint, problem
