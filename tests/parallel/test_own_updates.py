"""Updates that a user writes, on several ranks: they read the gradients of the whole batch, as an optimizer's do."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import ProgramError
from minigraph.program import unique_name
from minigraph.program.scope import Scope

ROWS = 8


def plain(pairs):
    for p, grad in pairs:
        mg.assign(p - 0.1 * grad, output=p)


def clipped(pairs):
    norm = mg.sqrt(mg.add_n([mg.sum(mg.square(grad)) for _, grad in pairs]))
    plain([(p, grad / mg.clip(norm * 10, 1.0, 1e6)) for p, grad in pairs])


def with_momentum(late):
    """late: a step uses the velocity that the run before has made."""

    def update(pairs):
        for p, grad in pairs:
            v = static.create_global_var(p.shape, 0.0, "float64", persistable=True)
            step = lambda p=p, v=v: mg.assign(p - 0.1 * v, output=p)  # noqa: E731
            if late:
                step()
            mg.assign(0.9 * v + grad, output=v)
            if not late:
                step()

    return update


RULES = {"plain": plain, "clipped": clipped, "momentum": with_momentum(False), "late momentum": with_momentum(True)}


def trained(rule, ranks, gradients=static.append_backward, flags=None):
    """Parameters and states after four runs."""
    main, startup, scope = static.Program(), static.Program(), Scope()
    main.random_seed = startup.random_seed = 5
    mg.set_default_dtype("float64")
    try:
        with static.program_guard(main, startup), unique_name.guard():
            x = static.data("x", [None, 3], "float64")
            h = mg.tanh(nn.Linear(3, 3)(x))
            loss = mg.mean(mg.square(nn.Linear(3, 1)(h) - 1.0))
            rule(gradients(loss))
    finally:
        mg.set_default_dtype("float32")
    exe = static.Executor()
    exe.run(startup, scope=scope)
    program = static.CompiledProgram(main).with_data_parallel(
        loss.name, static.BuildStrategy(**flags or {}), places=static.cpu_places(ranks)
    )
    for i in range(4):
        exe.run(program, {"x": np.random.default_rng(i).normal(size=(ROWS, 3))}, [loss], scope=scope)
    exe.close()
    return {n: np.array(a) for n, a in main.state_dict(scope=scope).items()}


@pytest.mark.parametrize("every", [False, True], ids=["alone", "all"])
@pytest.mark.parametrize("rule", RULES)
def test_ranks_are_one_rank_with_the_whole_batch(rule, every):
    flags = {n: v for n, v in vars(static.BuildStrategy.all()).items() if v is True} if every else {}
    alone = trained(RULES[rule], 1)
    for ranks in (2, 4):
        together = trained(RULES[rule], ranks, flags=flags)
        for name, value in alone.items():
            np.testing.assert_allclose(together[name], value, rtol=1e-11, atol=1e-13, err_msg=name)


def test_gradients_without_a_loss_that_ranks_know_are_refused():
    def of_all(loss):
        params = loss.block.program.all_parameters()
        return list(zip(params, static.gradients(loss, params), strict=True))

    with pytest.raises(ProgramError, match="is not the loss of which program"):
        trained(plain, 2, of_all)
    assert trained(plain, 1, of_all)
