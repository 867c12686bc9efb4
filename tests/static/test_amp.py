"""static.amp.decorate: what it appends, what a skipped step leaves alone, and how trainings go on."""

from __future__ import annotations

import cProfile
import itertools
from functools import partial

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import ProgramError
from minigraph.kernels.cuda.record.binder import Device
from minigraph.nn import functional as F
from minigraph.program import unique_name
from minigraph.types import CUDAPlace, bfloat16, float16
from tests.support import gpu_stub
from tests.support.grades import graded
from tests.support.interrupts import interrupts
from tests.support.mixed_training import Training, feeds, mlp, same_bits

MATRIX = list(itertools.product(["O1", "O2"], ["float16", "bfloat16"]))
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # the largest relative rounding
OPTIMIZERS = {
    "sgd": lambda **o: mg.optimizer.SGD(0.05, **o), "momentum": lambda **o: mg.optimizer.Momentum(0.02, **o),
    "adamw": lambda **o: mg.optimizer.AdamW(0.01, **o), "lamb": lambda **o: mg.optimizer.Lamb(0.01, **o),
    "rmsprop": lambda **o: mg.optimizer.RMSProp(0.01, centered=True, momentum=0.5, **o),
    "amsgrad": lambda **o: mg.optimizer.Adam(0.01, amsgrad=True, **o),
    "adamax": lambda **o: mg.optimizer.Adamax(0.01, **o),
    "adagrad": lambda **o: mg.optimizer.Adagrad(0.01, **o), "adadelta": lambda **o: mg.optimizer.Adadelta(0.1, **o),
    "lion": lambda **o: mg.optimizer.Lion(0.001, **o),
    "scheduled": lambda **o: mg.optimizer.Adam(mg.optimizer.lr.StepDecay(0.01, 2), **o),
}  # fmt: skip
CLIP = {"grad_clip": nn.ClipGradByGlobalNorm(0.5)}


# the curve


@pytest.mark.parametrize(("level", "dtype"), MATRIX)
@pytest.mark.parametrize(
    ("model", "fused"),
    graded(itertools.product(["mlp", "attention"], [False, True]), now=lambda model, fused: fused),
)
def test_a_training_follows_the_curve_of_float32(model, level, dtype, fused):
    """A step errs by some roundings of its type; the paths drift apart by as many of them as there were steps."""
    steps = 24
    plain = Training(model).curve(steps)
    scale = 1024.0 if dtype == "float16" else None
    mixed = Training(model, {"level": level, "dtype": dtype, "init_loss_scaling": scale})
    found = (mixed.compile() if fused else mixed).curve(steps)
    assert plain[-1] < 0.8 * plain[0]
    allowed = 4 * EPSILON[dtype] * (1 + np.arange(steps))
    assert (np.abs(found - plain) <= allowed * np.maximum(plain, plain.mean())).all(), np.abs(found - plain) / allowed
    if dtype == "float16":
        assert mixed.number("num_good_steps") == steps


# against programs with casts typed by hand


def typed_by_hand(optimizer):
    """Two layers whose products a user casts himself, in the way of O1."""
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 7
    with static.program_guard(main, startup), unique_name.guard():
        x, y = static.data("x", [None, 8]), static.data("y", [None, 1])
        first, second = nn.Linear(8, 16), nn.Linear(16, 1)
        half = [mg.cast(p, "bfloat16") for p in (first.weight, first.bias, second.weight, second.bias)]
        h = F.gelu(mg.add(mg.matmul(mg.cast(x, "bfloat16"), half[0]), half[1]))
        out = mg.cast(mg.add(mg.matmul(h, half[2]), half[3]), "float32")
        loss = mg.mean(mg.square(out - y))
        optimizer.minimize(loss)
    return main, startup, loss


def decorated(optimizer, level, dtype, **facts):
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 7
    with static.program_guard(main, startup), unique_name.guard():
        x, y = static.data("x", [None, 8]), static.data("y", [None, 1])
        first, second = nn.Linear(8, 16), nn.Linear(16, 1)
        loss = mg.mean(mg.square(second(F.gelu(first(x))) - y))
        static.amp.decorate(optimizer, level=level, dtype=dtype, **facts).minimize(loss)
    return main, startup, loss


def bits(main, startup, loss, names, steps=4):
    scope, exe = static.Scope(), static.Executor()
    exe.run(startup, scope=scope)
    losses = [exe.run(main, feed, [loss], scope=scope)[0].tobytes() for feed in feeds("mlp", steps)]
    return losses, {n: scope.read(n).tobytes() for n in names}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_level_o1_is_the_program_with_casts_typed_by_hand_bit_for_bit(kind):
    hand, own = typed_by_hand(OPTIMIZERS[kind]()), decorated(OPTIMIZERS[kind](), "O1", "bfloat16")
    names = [v.name for v in hand[0].list_vars() if v.persistable]
    assert bits(*hand, names) == bits(*own, names)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_level_o2_is_the_program_with_16_bit_parameters_typed_by_hand_bit_for_bit(kind):
    def by_hand():
        main, startup = static.Program(), static.Program()
        main.random_seed = startup.random_seed = 7
        with static.program_guard(main, startup), unique_name.guard():
            x, y = static.data("x", [None, 8]), static.data("y", [None, 1])
            mg.set_default_dtype("bfloat16")
            try:
                first, second = nn.Linear(8, 16), nn.Linear(16, 1)
            finally:
                mg.set_default_dtype("float32")
            out = mg.cast(second(F.gelu(first(mg.cast(x, "bfloat16")))), "float32")
            loss = mg.mean(mg.square(out - y))
            OPTIMIZERS[kind](multi_precision=True).minimize(loss)
        return main, startup, loss

    hand, own = by_hand(), decorated(OPTIMIZERS[kind](), "O2", "bfloat16")
    names = [v.name for v in hand[0].list_vars() if v.persistable]
    scopes = [static.Scope(), static.Scope()]
    exe = static.Executor()
    exe.run(own[1], scope=scopes[1])
    for name in names:  # with the values that are not rounded before they are copied
        scopes[0].write(name, scopes[1].read(name))
    found = [
        [exe.run(main, feed, [loss], scope=scope)[0].tobytes() for feed in feeds("mlp", 4)]
        for (main, _, loss), scope in zip((hand, own), scopes, strict=True)
    ]
    assert found[0] == found[1]
    assert all(scopes[0].read(n).tobytes() == scopes[1].read(n).tobytes() for n in names)


def test_float32_copies_begin_with_values_that_were_not_rounded():
    t, plain = Training("mlp", {"level": "O2"}).start(), Training("mlp").start()
    for name, value in plain.states().items():
        copy = f"{name}_fp32_master_0"
        if copy in t.states():
            assert t.scope.read(copy).tobytes() == value.tobytes()
            assert t.scope.read(name).tobytes() == value.astype(float16).tobytes()
    assert sum(name.endswith("_fp32_master_0") for name in t.states()) == 6


# overflow


WAYS = list(itertools.product([False, True], ["O1", "O2"], [{}, CLIP]))


@pytest.mark.parametrize(
    ("kind", "fused", "level", "options"),
    graded(
        ((kind, *way) for kind in OPTIMIZERS for way in WAYS),  # of others than AdamW one way each, in turn
        now=lambda kind, *way: kind == "adamw" or WAYS.index(way) == [*OPTIMIZERS].index(kind) % len(WAYS),
    ),
)
def test_a_step_that_overflows_leaves_no_trace(level, kind, options, fused):
    t = Training("mlp", {"level": level, "init_loss_scaling": 512.0}, lambda: OPTIMIZERS[kind](**options))
    (t.compile() if fused else t).start()
    steps = list(feeds("mlp", 4))
    t.step(steps[0])
    before = t.states()
    bad = {"x": steps[1]["x"] * 1e5, "y": steps[1]["y"]}
    t.step(bad)
    after = t.states()
    changed = {n for n in before if before[n].tobytes() != after[n].tobytes()}
    assert changed == {"loss_scaling_0", "num_good_steps_0"}
    assert (before["loss_scaling_0"], after["loss_scaling_0"]) == ([512.0], [256.0])
    other = Training("mlp", {"level": level, "init_loss_scaling": 512.0}, lambda: OPTIMIZERS[kind](**options))
    (other.compile() if fused else other).start()
    other.step(steps[0])
    for name in ("loss_scaling_0", "num_good_steps_0"):
        other.scope.write(name, after[name])
    assert [t.step(s) for s in steps[2:]] == [other.step(s) for s in steps[2:]]
    assert same_bits(t.states(), other.states()), "it goes on as if there had been no such step"


def test_counters_and_scale_follow_paddle():
    facts = {"init_loss_scaling": 8.0, "incr_every_n_steps": 3, "decr_every_n_nan_or_inf": 2, "incr_ratio": 4.0,
             "decr_ratio": 0.25}  # fmt: skip
    t = Training("mlp", facts).start()
    good = next(feeds("mlp", 1))
    bad, seen = {**good, "x": good["x"] * np.float32(np.inf)}, []
    for feed in (good, good, good, good, bad, good, bad, bad, bad, bad, bad, bad):
        t.step(feed)
        seen.append((t.number("loss_scaling"), t.number("num_good_steps"), t.number("num_bad_steps")))
    assert seen == [(8, 1, 0), (8, 2, 0), (32, 0, 0), (32, 1, 0), (32, 0, 1), (32, 1, 0), (32, 0, 1), (8, 0, 0),
                    (8, 0, 1), (2, 0, 0), (2, 0, 1), (1, 0, 0)]  # fmt: skip


def test_a_scale_that_would_overflow_stays():
    t = Training("mlp", {"init_loss_scaling": 2.0**127, "incr_every_n_steps": 1}).start()
    with np.errstate(all="ignore"):
        t.exe.run(t.main, {k: v * 0 for k, v in next(feeds("mlp", 1)).items()}, [], scope=t.scope)
    assert t.number("loss_scaling") in (2.0**127, 2.0**126)


def test_a_fixed_scale_skips_steps_and_stays():
    t = Training("mlp", {"use_dynamic_loss_scaling": False, "init_loss_scaling": 64.0}).start()
    good = next(feeds("mlp", 1))
    t.step(good)
    before = t.states()
    t.step({**good, "x": good["x"] * np.float32(np.nan)})
    assert same_bits(before, t.states()) and t.number("loss_scaling") == 64
    assert not any(op.type == "update_loss_scaling" for op in t.main.ops)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_bfloat16_has_no_scaling(level):
    t = Training("mlp", {"level": level, "dtype": "bfloat16"})
    assert not {"check_finite_and_unscale", "update_loss_scaling"} & {op.type for op in t.main.ops}
    assert t.optimizer.get_scaled_loss() is t.loss


@pytest.mark.parametrize("options", [{}, CLIP, {"weight_decay": 0.1}], ids=["plain", "clip", "decay"])
def test_the_scale_cancels(options):
    """Scales that are powers of 2 give the same bits, in float32 exactly those without one."""
    found = []
    for scale in (1.0, 64.0, 4096.0):
        facts = {"dtype": "bfloat16", "init_loss_scaling": scale, "use_dynamic_loss_scaling": False}
        t = Training("mlp", facts, lambda: mg.optimizer.Momentum(0.02, **options))
        t.curve(3)
        found.append({n: a for n, a in t.states().items() if n != "loss_scaling_0"})
    assert same_bits(found[1], found[2])
    assert same_bits(found[0], found[1])


# going on, testing, copies


@pytest.mark.parametrize(("level", "dtype"), MATRIX)
def test_saved_and_loaded_it_goes_on_with_the_same_bits(level, dtype, tmp_path):
    facts = {"level": level, "dtype": dtype}
    whole, first, second = (Training("mlp", facts).start() for _ in range(3))
    steps = list(feeds("mlp", 6))
    losses = [whole.step(s) for s in steps]
    for s in steps[:3]:
        first.step(s)
    with static.scope_guard(first.scope):
        static.save(first.main, str(tmp_path / "model"))
    with static.scope_guard(second.scope):
        static.load(second.main, str(tmp_path / "model"), second.exe)
    assert [second.step(s) for s in steps[3:]] == losses[3:]
    assert same_bits(whole.states(), second.states())


@pytest.mark.parametrize(("level", "dtype"), MATRIX)
def test_test_programs(level, dtype):
    t = Training("mlp", {"level": level, "dtype": dtype}).start()
    feed = next(feeds("mlp", 1))
    test = t.main.clone(for_test=True)
    assert not any(op.role != "forward" for op in test.ops)
    alone = static.Scope()  # as where only parameters were saved
    for p in t.main.all_parameters():
        alone.write(p.name, t.scope.read(p.name))
    loss, before = t.exe.run(test, feed, [t.loss.name], scope=t.scope)[0], t.states()
    assert t.exe.run(test, feed, [t.loss.name], scope=alone)[0] == loss
    assert same_bits(before, t.states())
    assert float(loss) == t.step(feed)
    t.optimizer.amp_init(None, t.scope, t.test, use_fp16_test=True)
    again = t.exe.run(t.test, feed, [t.loss.name], scope=t.scope)[0]
    assert float(again) != float(loss) and abs(again - loss) < 1


def test_amp_init_rounds_values_that_came_in_float32():
    t, plain = Training("mlp", {"level": "O2"}).start(), Training("mlp")
    plain.startup.random_seed = 9
    plain.start()
    for p in plain.main.all_parameters():
        t.scope.write(p.name, plain.scope.read(p.name))
    t.optimizer.amp_init(mg.CPUPlace(), t.scope, rewrite_master_weight=True)
    for p in t.main.all_parameters():
        wide = plain.scope.read(p.name)
        assert t.scope.read(p.name).tobytes() == wide.astype(p.dtype).tobytes()
        if p.dtype == float16:
            assert t.scope.read(f"{p.name}_fp32_master_0").tobytes() == wide.tobytes()
    t.step(next(feeds("mlp", 1)))


def test_amp_init_copies_nothing_that_it_need_not():
    """The float32 copy is what the parameter was: of large ones each copy takes time and memory of the host."""
    t = Training("mlp", {"level": "O2"}).start()
    name = next(p.name for p in t.main.all_parameters() if p.dtype == float16)
    for wide in (np.float32(t.scope.read(name)), np.float64(t.scope.read(name))):
        t.scope.write(name, wide)
        given = t.scope.arrays[name]
        t.optimizer.amp_init(None, t.scope, rewrite_master_weight=True)
        master = t.scope.arrays[f"{name}_fp32_master_0"]
        assert (master is given) == (given.dtype == master.dtype)
        assert t.scope.arrays[name].dtype == float16 and master.dtype == mg.types.float32
    t.optimizer.amp_init(None, t.scope, rewrite_master_weight=True)  # of what has 16 bits already
    assert not np.shares_memory(t.scope.arrays[name], t.scope.arrays[f"{name}_fp32_master_0"])
    assert (np.float32(t.scope.read(name)) == t.scope.read(f"{name}_fp32_master_0")).all()
    t.scope.arrays[name] = np.ma.masked_equal(t.scope.arrays[name], 1)
    with pytest.raises(mg.MinigraphError, match="masked"):
        t.optimizer.amp_init(None, t.scope, rewrite_master_weight=True)


def test_an_interrupted_amp_init_leaves_no_pair_that_is_half_new():
    t = Training("mlp", {"level": "O2"}).start()
    names = [p.name for p in t.main.all_parameters() if p.dtype == float16]
    before = {name: np.float32(t.scope.read(name)) + np.float32(1 / 3) for name in names}

    def reset():
        for name, value in before.items():
            t.scope.write(name, value)
            t.scope.write(f"{name}_fp32_master_0", value * 0)

    reset()
    init = partial(t.optimizer.amp_init, None, t.scope, rewrite_master_weight=True)
    instants = 0
    for _ in interrupts(init, ("static/amp/model.py", "program/scope.py", "contextlib.py")):
        instants += 1
        for name, wide in before.items():
            own, master = name, f"{name}_fp32_master_0"
            if not {own, master} & t.scope.torn.keys() and t.scope.read(own).dtype == float16:
                assert (t.scope.read(master) == wide).all()
        reset()
    assert instants > 20 and not t.scope.torn


def test_backward_and_apply_gradients_are_minimize():
    whole = Training("mlp", {"level": "O2"})
    main, startup = static.Program("main"), static.Program("startup")
    main.random_seed = startup.random_seed = 7
    with static.program_guard(main, startup), unique_name.guard():
        loss = mlp()
        optimizer = static.amp.decorate(mg.optimizer.AdamW(0.01), level="O2")
        with pytest.raises(ProgramError, match="comes after backward"):
            optimizer.apply_gradients([])
        pairs = optimizer.backward(loss, startup)
        assert len(optimizer.apply_gradients(pairs)) == len(pairs) == 8
    assert [op.type for op in main.ops] == [op.type for op in whole.main.ops]
    assert [op.type for op in startup.ops] == [op.type for op in whole.startup.ops]


def test_the_older_form_has_the_older_numbers():
    older = static.amp.decorate(mg.optimizer.SGD(0.1), use_pure_fp16=True)._settings
    assert (older.level, older.half, older.init_loss_scaling, older.guarded) == ("O2", float16, 2.0**15, True)
    assert older.steps_and_ratios == {
        "incr_every_n_steps": 1000, "decr_every_n_nan_or_inf": 2, "incr_ratio": 2.0, "decr_ratio": 0.8
    }  # fmt: skip
    assert static.amp.decorate(mg.optimizer.SGD(0.1), use_bf16=True)._settings.half == bfloat16
    newer = static.amp.decorate(mg.optimizer.SGD(0.1))._settings
    assert (newer.level, newer.init_loss_scaling, newer.dynamic, newer.guarded) == ("O1", 2.0**16, True, False)


def test_level_o0_changes_nothing():
    assert [op.type for op in Training("mlp", {"level": "O0"}).main.ops] == [op.type for op in Training("mlp").main.ops]


def test_minimize_takes_as_much_work_for_each_layer_of_a_deep_program():
    """Counted in calls: they grow with the number of layers, not with its square."""

    def calls(layers):
        main, startup = static.Program(), static.Program()
        with static.program_guard(main, startup), unique_name.guard():
            h = static.data("x", [None, 4])
            for _ in range(layers):
                h = F.relu(nn.Linear(4, 4)(h))
            optimizer, loss = static.amp.decorate(mg.optimizer.SGD(0.1), level="O2"), mg.mean(h)
            profile = cProfile.Profile()
            profile.runcall(optimizer.minimize, loss)
        return sum(entry.callcount for entry in profile.getstats())

    calls(1)  # imports what others have loaded by now
    assert calls(120) < 4.4 * calls(30)


# on a GPU, of which there is a stub


@pytest.mark.skipif(gpu_stub.cuda_host.COMPILER is None, reason="kernels on a CPU need g++")
@pytest.mark.parametrize(("level", "dtype"), MATRIX)
def test_a_stub_of_the_gpu_does_the_same(level, dtype, monkeypatch):
    """One captured graph holds the step; a bad one leaves all but scale and counters."""
    stub = gpu_stub.installed(monkeypatch)
    monkeypatch.setattr(gpu_stub.StubRuntime, "device", Device(multiprocessors=4))
    facts = {"level": level, "dtype": dtype, "init_loss_scaling": 256.0 if dtype == "float16" else None}
    cpu, gpu = Training("mlp", facts).start(), Training("mlp", facts, place=CUDAPlace(0)).compile().start()
    steps = list(feeds("mlp", 4))
    bad = {"x": steps[1]["x"] * 1e5, "y": steps[1]["y"]}
    for i, feed in enumerate((steps[0], bad, steps[2], steps[3]) if dtype == "float16" else steps):
        before = gpu.states()
        a, b = cpu.step(feed), gpu.step(feed)
        if feed is bad:
            changed = {n for n, x in gpu.states().items() if before[n].tobytes() != x.tobytes()}
            assert changed == {"loss_scaling_0", "num_good_steps_0"}
        else:
            assert abs(a - b) <= 8 * (i + 1) * EPSILON[dtype] * abs(a)
    if dtype == "float16":
        assert cpu.number("loss_scaling") == gpu.number("loss_scaling") == 128
        assert cpu.number("num_good_steps") == gpu.number("num_good_steps") == 2
    assert len(stub.captures) >= 1
