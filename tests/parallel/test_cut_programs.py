"""Programs that the host cuts into plans, on several ranks: branches and Python functions beside buckets and pieces."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import ProgramError
from minigraph.kernels.groups import present
from tests.support import cuda_host, gpu_stub

REDUCE = {"reduce_strategy": static.BuildStrategy.ReduceStrategy.Reduce}
FLAGS = {"buckets": {}, "small buckets": {"fuse_grad_size_in_MB": 2e-4}, "pieces": REDUCE}
RNG = np.random.default_rng(4)
X = RNG.normal(size=(3, 8, 4)) + np.array([1.0, -1.0])[:, None].repeat(4, 0)  # ranks take other branches


def program(seen, fails=lambda: False):
    """A branch and a Python function in the middle of forward, another function behind the updates."""
    main, startup = static.Program("cut"), static.Program()
    main.random_seed = startup.random_seed = 3
    before = mg.get_default_dtype()
    mg.set_default_dtype("float64")
    with static.program_guard(main, startup), mg.utils.unique_name.guard():
        x = static.data("x", [None, 4])
        h = mg.nn.Linear(4, 8)(x)
        h = static.nn.cond(mg.mean(x) > 0, lambda: mg.tanh(h), lambda: mg.nn.functional.relu(h))
        copy = main.current_block().create_var(name="copy", dtype="float64", shape=[-1, 8])
        copy.stop_gradient = True
        static.py_func(lambda a: seen.append(np.asarray(a).shape) or np.asarray(a) * 2, h, copy)
        loss = mg.mean(mg.nn.Linear(8, 4)(h) ** 2) + 0 * mg.mean(copy)
        mg.optimizer.Adam(0.05).minimize(loss)
        end = main.current_block().create_var(name="end", dtype="float64", shape=[])
        end.stop_gradient = True

        def last(a):
            if fails():
                raise ValueError("enough")
            return np.asarray(a)

        static.py_func(last, main.all_parameters()[0].sum(), end)
    mg.set_default_dtype(before)
    return main, startup, loss


def trained(places, ranks, **flags):
    seen = []
    main, startup, loss = program(seen)
    exe, scope = static.Executor(places[0]), static.Scope()
    exe.run(startup, scope=scope)
    strategy = static.BuildStrategy.all(verify="each_pass", **flags)
    one = static.CompiledProgram(main, strategy)
    compiled = one.with_data_parallel(loss.name, strategy, places=places) if ranks > 1 else main
    for rows in X:
        exe.run(compiled, {"x": rows}, [loss], scope=scope)
    exe.close()
    assert seen.count((4, 8)) == ranks * len(X)
    return main.state_dict("param", scope)


def on_one_rank():
    """Each half of the batch by itself, as ranks see it: branches decide by their own rows."""
    main, startup, _ = program([])
    exe, scope = static.Executor(mg.CPUPlace()), static.Scope()
    exe.run(startup, scope=scope)
    names = [p.name for p in main.all_parameters()]
    values = {n: scope.read(n) for n in names}
    moments = {n: (0.0, 0.0) for n in names}
    forward = main.clone()
    for step, rows in enumerate(X, 1):
        found = []
        for half in np.split(rows, 2):
            for n in names:
                scope.write(n, values[n])
            found.append(exe.run(forward, {"x": half}, [n + "@GRAD" for n in names], scope=scope))
        for n, *grads in zip(names, *found, strict=True):
            g = np.mean(grads, 0)
            a, b = (k * m + (1 - k) * g**p for k, m, p in zip((0.9, 0.999), moments[n], (1, 2), strict=True))
            moments[n] = a, b
            rate = 0.05 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            values[n] = values[n] - rate * a / (np.sqrt(b) + 1e-8 * np.sqrt(1 - 0.999**step))
    return values


@pytest.mark.filterwarnings("ignore:program cut calls")
@pytest.mark.parametrize("title", list(FLAGS))
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_ranks_of_a_cut_program_are_one_rank(title, device, monkeypatch):
    places = static.cpu_places(2)
    if device == "gpu":
        if cuda_host.COMPILER is None:
            pytest.skip("kernels on a CPU need g++")
        gpu_stub.installed(monkeypatch, 2)
        places = [mg.CUDAPlace(0), mg.CUDAPlace(1)]
    found = trained(places, 2, **FLAGS[title])
    for name, value in on_one_rank().items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


def test_states_of_which_ranks_have_pieces_of_other_steps_are_not_read():
    """Rank 1 fails behind its updates, rank 0 does not: their pieces are of two steps until a checkpoint is loaded."""
    fail, passed = [], threading.Event()  # rank 0 waits for nobody any more

    def fails() -> bool:
        if fail and present().rank == 0:
            passed.set()
        return bool(fail) and present().rank == 1 and passed.wait(60)

    main, startup, loss = program([], fails)
    exe, scope = static.Executor(mg.CPUPlace()), static.Scope()
    exe.run(startup, scope=scope)
    compiled = static.CompiledProgram(main).with_data_parallel(
        loss.name, static.BuildStrategy(**REDUCE), places=static.cpu_places(2)
    )
    exe.run(compiled, {"x": X[0]}, [loss], scope=scope)
    good = main.state_dict(scope=scope)
    fail.append(1)
    with pytest.raises(ValueError, match="enough"):
        exe.run(compiled, {"x": X[1]}, [loss], scope=scope)
    fail.clear()
    with pytest.raises(ProgramError, match="a step failed on some ranks only"):
        main.state_dict(scope=scope)
    with pytest.raises(ProgramError, match="a step failed on some ranks only"):
        exe.run(compiled, {"x": X[1]}, [loss], scope=scope)
    main.set_state_dict(good, scope=scope)
    exe.run(compiled, {"x": X[1]}, [loss], scope=scope)
    again = main.state_dict("param", scope)
    whole = trained(static.cpu_places(2), 2, **REDUCE)
    assert set(again) == set(whole)
