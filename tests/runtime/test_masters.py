"""Float32 copies of 16-bit parameters: a value that is set for the parameter is not gone after the next step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.base import unique_name
from minigraph.errors import MinigraphError, ProgramError
from minigraph.program.whole import masters
from minigraph.program.whole.masters import bring_up, checked_masters
from minigraph.static import io as static_io
from tests.support import cuda_host, gpu_stub

X = {"x": np.ones((2, 4), "float32")}
EIGHT = np.full((4, 2), 8, ml_dtypes.bfloat16)


class World:
    """mean(x @ w), whose gradient is .5 for each of w, trained by SGD with copies."""

    def __init__(self, wrap: Callable[[Any], Any] = lambda o: o, extra: Callable[[Any], Any] = lambda w: None) -> None:
        self.main, self.startup, self.scope = static.Program("main"), static.Program("startup"), static.Scope()
        with static.program_guard(self.main, self.startup), unique_name.guard():
            w = static.create_parameter([4, 2], "float32", name="w", default_initializer=mg.nn.initializer.Constant(1))
            self.loss = loss = mg.mean(mg.matmul(static.data("x", [None, 4]), w))
            optimizer = mg.optimizer.SGD(0.01, multi_precision=True)
            wrap(static.amp.decorate(optimizer, level="O2", dtype="bfloat16")).minimize(loss)
            extra(w)
        self.master = next(name for name in self.main.vars if "master" in name)
        self.exe = static.Executor()
        self.exe.run(self.startup, scope=self.scope)

    def step(self, program: Any = None, exe: Any = None) -> float:
        """The copy of w after a step."""
        (exe or self.exe).run(program or self.main, X, scope=self.scope)
        value, master = self.scope.read("w"), self.scope.read(self.master)
        assert value.tobytes() == master.astype(value.dtype).tobytes()
        return float(master[0, 0])


def by_load(world: World, folder: Path, whole: bool) -> None:
    other = World()
    with static.scope_guard(other.scope):
        other.main.vars["w"].set_value(EIGHT)
        if whole:
            static_io.save_vars(other.exe, folder, other.main, vars=other.main.all_parameters())
        else:
            static.save(other.main, str(folder / "net"))
    if whole:
        static_io.load_vars(world.exe, folder, world.main, vars=world.main.all_parameters())
    else:
        static.load(world.main, str(folder / "net"), var_list=world.main.all_parameters())


WAYS: dict[str, Callable[[World, Path], Any]] = {
    "set_state_dict": lambda world, _: world.main.set_state_dict({"w": EIGHT}),
    "set_program_state": lambda world, _: static.set_program_state(world.main, {"w": EIGHT}),
    "tensor.set": lambda world, _: world.scope.find_var("w").get_tensor().set(EIGHT),
    "state.set": lambda world, _: world.main.state_dict()["w"].set(EIGHT),
    "set_value": lambda world, _: world.main.vars["w"].set_value(EIGHT),
    "write": lambda world, _: world.scope.write("w", EIGHT),
    "load_vars": lambda world, folder: by_load(world, folder, whole=True),
    "load": lambda world, folder: by_load(world, folder, whole=False),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ran", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_parameter_that_is_set_stays_set(way: str, ran: bool, compiled: bool, tmp_path: Path):
    world = World()
    program = static.CompiledProgram(world.main, static.BuildStrategy.all()) if compiled else world.main
    if ran:
        world.step(program)
    with static.scope_guard(world.scope):
        WAYS[way](world, tmp_path)
    step = 0.005
    np.testing.assert_allclose([world.step(program), world.step(program)], [8 - step, 8 - 2 * step], rtol=1e-6)


def test_copies_that_are_set_with_their_parameters_or_later_stay():
    world = World()
    exact = np.full((4, 2), 8.001, "float32")  # 8.0 in 16 bits
    with static.scope_guard(world.scope):
        world.main.set_state_dict({world.master: exact, "w": EIGHT})
        np.testing.assert_allclose(world.step(), 8.001 - 0.005, rtol=1e-7)
        world.main.set_state_dict({"w": np.full((4, 2), 3, ml_dtypes.bfloat16)})
        world.main.set_state_dict({world.master: exact})
        np.testing.assert_allclose(world.step(), 8.001 - 0.005, rtol=1e-7)
        world.main.set_state_dict({world.master: exact})
        world.main.set_state_dict({"w": EIGHT})  # its rounding
        np.testing.assert_allclose(world.step(), 8.001 - 0.005, rtol=1e-7)


def test_amp_init_gives_copies_that_need_not_be_compared(monkeypatch: pytest.MonkeyPatch):
    chosen = list[Any]()
    world = World(lambda o: chosen.append(o) or o)
    exact = np.full((4, 2), 1.001, "float32")  # rounded to 1 in 16 bits
    world.scope.write("w", exact)
    chosen[0].amp_init(None, world.scope, rewrite_master_weight=True)
    with monkeypatch.context() as patch:
        patch.setattr(masters, "_is_rounded", None)
        assert world.step() == exact[0, 0] - np.float32(0.01) * np.float32(0.5)
    world.scope.write("w", EIGHT)
    assert world.step() == pytest.approx(7.995)


def test_a_value_of_another_size_is_not_the_rounding_of_a_copy():
    world = World()
    world.scope.write("w", np.ones((3, 2), ml_dtypes.bfloat16))
    with pytest.raises(MinigraphError, match="3, 2"):
        world.step()


def test_a_checkpoint_keeps_the_bits_of_copies(tmp_path: Path):
    world = World()
    for _ in range(3):
        world.step()
    with static.scope_guard(world.scope):
        static.save(world.main, str(tmp_path / "net"))
        expected = [world.step() for _ in range(3)]
        static.load(world.main, str(tmp_path / "net"))
        assert [world.step() for _ in range(3)] == expected
        values = world.main.state_dict()
        expected = [world.step() for _ in range(3)]
        world.main.set_state_dict(dict(reversed(values.items())))
        assert [world.step() for _ in range(3)] == expected


@pytest.mark.parametrize("way", ["save", "state_dict"])
def test_a_state_that_was_read_while_a_copy_had_yet_to_follow(way: str, tmp_path: Path):
    world = World()
    world.step()
    with static.scope_guard(world.scope):
        world.main.vars["w"].set_value(EIGHT)
        if way == "save":
            static.save(world.main, str(tmp_path / "net"))
            static.load(world.main, str(tmp_path / "net"))
        else:
            world.main.set_state_dict(world.main.state_dict())
    np.testing.assert_allclose(world.step(), 8 - 0.005, rtol=1e-6)
    other = World()
    if way == "save":
        with static.scope_guard(other.scope):
            static.load(other.main, str(tmp_path / "net"))
        np.testing.assert_allclose(other.step(), 8 - 0.005, rtol=1e-6)


def test_averages_in_place_of_parameters_leave_copies_alone():
    averages = []
    world = World(extra=lambda w: averages.append(static.ExponentialMovingAverage(0.9)) or averages[0].update())
    other = World(extra=lambda w: static.ExponentialMovingAverage(0.9).update())
    for _ in range(3):
        assert world.step() == other.step()
        with static.scope_guard(world.scope), averages[0].apply():
            pass


def averaged() -> tuple[World, Any]:
    """A world with averages, which it had while copies were .995 and .99: .995 * 1/3 + .99 * 2/3."""
    made = list[Any]()
    world = World(extra=lambda w: made.append(static.ExponentialMovingAverage(0.5)) or made[0].update())
    world.step()
    world.step()
    scope_mean = world.scope.read("w.ema_0") / 0.75
    np.testing.assert_allclose(scope_mean[0, 0], 0.995 / 3 + 0.99 * 2 / 3, rtol=2e-3)  # of values of 16 bits
    return world, made[0]


def test_a_training_goes_on_from_averages_that_stay_in_place():
    world, average = averaged()
    with static.scope_guard(world.scope):
        with average.apply(need_restore=False):
            pass
        mean = float(world.scope.read("w.ema_0")[0, 0] / np.float32(0.75))
        assert world.step() == pytest.approx(mean - 0.005, rel=1e-6)
        average.restore()
    assert world.step() == pytest.approx(0.99 - 0.005, rel=1e-6)


def test_what_is_trained_while_averages_are_in_place_goes_with_them():
    world, average = averaged()
    with static.scope_guard(world.scope), average.apply():
        world.step()
    assert world.step() == pytest.approx(0.99 - 0.005, rel=1e-6)


def test_a_checkpoint_of_averages_is_one_of_their_copies(tmp_path: Path):
    world, average = averaged()
    with static.scope_guard(world.scope):
        with average.apply():
            static.save(world.main, str(tmp_path / "net"))
        mean = float(world.scope.read("w.ema_0")[0, 0] / np.float32(0.75))
        static.load(world.main, str(tmp_path / "net"))
    assert world.step() == pytest.approx(mean - 0.005, rel=1e-6)


def trains_w(extra: Callable[[Any], Any] = lambda w: None, place: Any = None) -> tuple[World, World]:
    """Two worlds in one Scope, whose copies of w have names of their own."""
    first = World(extra=extra)
    second = World.__new__(World)
    second.main, startup, second.scope = static.Program("second"), static.Program(), first.scope
    with static.program_guard(second.main, startup), unique_name.guard("second_"):
        w = static.create_parameter([4, 2], "float32", name="w", default_initializer=mg.nn.initializer.Constant(3))
        loss = mg.mean(mg.matmul(static.data("x", [None, 4]), w))
        static.amp.decorate(mg.optimizer.SGD(0.01), level="O2", dtype="bfloat16").minimize(loss)
    second.master = next(name for name in second.main.vars if "master" in name)
    first.exe = second.exe = static.Executor(place)
    second.startup = startup
    assert first.master != second.master
    return first, second


@pytest.mark.parametrize("place", [None, mg.CUDAPlace(0)], ids=["", "GPU"])
def test_two_programs_train_one_parameter(place: Any, monkeypatch: pytest.MonkeyPatch):
    """Each updates a copy of its own, which takes the exact value that the other one has."""
    if place is not None and cuda_host.COMPILER is None:
        pytest.skip("kernels on a CPU need g++")
    if place is not None:
        gpu_stub.installed(monkeypatch)
    first, second = trains_w(place=place)
    first.exe.run(second.startup, scope=first.scope)
    first.exe.run(first.startup, scope=first.scope)
    found = [world.step() for world in (first, second, second, first, second, first, first)]
    np.testing.assert_allclose(found, 1 - 0.005 * np.arange(1, 8), rtol=1e-6)


def by_state_dict(world: World, _: Path) -> Callable[[], Any]:
    state = world.main.state_dict()
    return lambda: world.main.set_state_dict(state)


def by_save(world: World, folder: Path) -> Callable[[], Any]:
    static.save(world.main, str(folder / "net"))
    return lambda: static.load(world.main, str(folder / "net"))


def by_save_vars(world: World, folder: Path) -> Callable[[], Any]:
    static_io.save_vars(world.exe, folder, world.main)
    return lambda: static_io.load_vars(world.exe, folder, world.main)


def by_averages(world: World, _: Path) -> Callable[[], Any]:
    average = static.ExponentialMovingAverage(0.5)
    average.averages = {world.main.vars["w"]: world.main.vars["w"]}
    average.means = lambda scope: {world.main.vars["w"]: np.full((4, 2), 5, "float32")}
    with average.apply(need_restore=False):
        pass
    return average.restore


KEPT = {"state_dict": by_state_dict, "save": by_save, "save_vars": by_save_vars, "averages": by_averages}


@pytest.mark.parametrize("way", KEPT)
@pytest.mark.parametrize("after", ["first", "second"])
@pytest.mark.parametrize("then", ["first", "second"])
def test_a_state_has_the_steps_of_another_program_exactly(way: str, after: str, then: str, tmp_path: Path):
    """Kept after steps of one program, set back after others, it is what either one goes on from."""
    first, second = trains_w()
    worlds = {"first": first, "second": second}
    for world in (second, first):
        world.exe.run(world.startup, scope=first.scope)
    with static.scope_guard(first.scope):
        for world in (first, worlds[after]):
            for _ in range(3):
                kept = world.step()
        assert kept == pytest.approx(1 - 0.005 * 6, rel=1e-6)
        set_back = KEPT[way](first, tmp_path)
        second.step()
        set_back()
    assert worlds[then].step() == pytest.approx(1 - 0.005 * 7, rel=1e-6)


class Apart:
    """What a Scope has of a float32 copy whose pieces lie in other processes: it cannot be read."""

    scopes, shape, dtype, nbytes = (), (4, 2), np.dtype("float32"), 32


@pytest.mark.parametrize("trained", [False, True])
def test_copies_in_pieces_of_other_processes_follow_averages_that_are_trained(trained: bool):
    """They were trained on as if no averages were there. What is only looked at leaves the pieces as they are."""
    world, average = averaged()
    scope, masters, apart = world.scope, checked_masters(world.main), Apart()
    bring_up(scope, world.main, masters)
    scope.arrays[world.master] = apart
    with static.scope_guard(scope):
        with average.apply():
            mean = scope.read("w")
            if trained:
                bring_up(scope, world.main, masters)
                np.testing.assert_array_equal(scope.read(world.master), mean.astype("float32"))
                scope.arrays[world.master] = apart
        bring_up(scope, world.main, masters)
        if trained:
            np.testing.assert_array_equal(scope.read(world.master), scope.read("w").astype("float32"))
            assert (scope.read("w") != mean).all()
        else:
            assert scope.arrays[world.master] is apart


def test_averages_in_place_are_what_another_program_trains():
    average = static.ExponentialMovingAverage(0.5)
    world, other = trains_w(lambda w: average.update())
    world.exe.run(other.startup, scope=world.scope)
    world.exe.run(world.startup, scope=world.scope)
    world.step()
    with static.scope_guard(world.scope):
        world.main.vars["w"].set_value(EIGHT)
        assert [world.step(), other.step()] == pytest.approx([7.995, 7.99], rel=1e-6)
        with average.apply():
            mean = float(world.scope.read("w")[0, 0])
            assert mean < 6
            assert other.step() == pytest.approx(mean - 0.005, rel=5e-3)
        assert other.step() == pytest.approx(7.985, rel=5e-3)
        assert world.step() == pytest.approx(7.98, rel=5e-3)


def test_the_startup_program_that_ran_last_gives_the_first_value():
    first, second = trains_w()
    first.step()
    first.exe.run(second.startup, scope=first.scope)
    assert first.step() == pytest.approx(3 - 0.005, rel=1e-6)
    assert second.step() == pytest.approx(3 - 0.01, rel=1e-6)


def test_another_program_writes_the_parameter():
    world, writer = World(), static.Program()
    world.step()
    with static.program_guard(writer, static.Program()):
        w = writer.global_block().create_parameter("w", [4, 2], "bfloat16")
        mg.assign(mg.full([4, 2], 8.0, "bfloat16"), output=w)
    for _ in range(2):
        world.step()
    for step in (1, 2):  # the second time it writes what the copy rounds to
        world.exe.run(writer, scope=world.scope)
        assert world.step() == pytest.approx(8 - 0.005 * step, rel=1e-6)


def test_ranks_take_a_parameter_that_is_set():
    world = World()
    strategy = static.BuildStrategy(reduce_strategy=static.BuildStrategy.ReduceStrategy.Reduce)
    compiled, places = static.CompiledProgram(world.main), [mg.CPUPlace()] * 2
    ranks = compiled.with_data_parallel(world.loss.name, strategy, places=places)
    world.step(ranks)
    with static.scope_guard(world.scope):
        world.main.set_state_dict({"w": EIGHT})
    np.testing.assert_allclose([world.step(ranks), world.step(ranks)], [8 - 0.005, 8 - 0.01], rtol=1e-6)


def test_look_ahead_moves_the_copy():
    world = World(lambda o: mg.incubate.LookAhead(o, alpha=0.25, k=2))
    step, copy = 0.005, 1 - 0.005
    slow = copy
    for run in range(2, 7):
        copy -= step
        if run % 2 == 0:
            copy = slow = slow + 0.25 * (copy - slow)
        if run == 2:
            np.testing.assert_allclose(world.step(), 1 - step, rtol=1e-6)
        np.testing.assert_allclose(world.step(), copy, rtol=1e-6)


def test_an_operator_that_writes_the_parameter_alone_is_refused():
    world = World(extra=lambda w: mg.assign(mg.clip(w, -0.5, 0.5), output=w))
    with pytest.raises(ProgramError, match=r"(?s)writes w: bf16.*float32 copy w_fp32_master_0.*multi_precision=False"):
        world.step()


def test_an_operator_may_write_both():
    def clipped(w: Any) -> None:
        master = next(v for name, v in w.program.vars.items() if "master" in name)
        mg.assign(mg.clip(master, -0.5, 0.5), output=master)
        mg.assign(mg.cast(master, "bfloat16"), output=w)

    assert World(extra=clipped).step() == 0.5


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="kernels on a CPU need g++")
@pytest.mark.parametrize("way", ["set_state_dict", "tensor.set", "load"])
def test_copies_on_a_gpu_follow(way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    gpu_stub.installed(monkeypatch)
    world, exe = World(), static.Executor(mg.CUDAPlace(0))
    for _ in range(3):
        world.step(exe=exe)
    with static.scope_guard(world.scope):
        WAYS[way](world, tmp_path)
    np.testing.assert_allclose([world.step(exe=exe) for _ in range(3)], [8 - 0.005 * i for i in (1, 2, 3)], rtol=1e-6)
