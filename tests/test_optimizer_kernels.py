"""CPU kernels of the updates against their references, and the blocks in which they run."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minigraph  # noqa: F401  (defines the operators)
from minigraph.kernels import optimizer as kernels
from minigraph.kernels import parallel, updates
from minigraph.kernels.compiled import compiled, elements
from minigraph.kernels.updates import slots_of, update_of
from minigraph.opdef import OPS

UPDATES = (*updates.PLAIN, "squared_l2_norm")
SIZES = (0, 1, 3, 65535, 65536, 65537, kernels.BLOCK, kernels.BLOCK + 1, 2**20 + 1)


def inputs_of(name, shape, dtype="float64", seed=0):
    """Arrays for the required slots and the states that the attributes of attrs_of ask for."""
    rng = np.random.default_rng(seed)
    if name == "squared_l2_norm":
        return (np.asarray(rng.normal(size=shape), dtype),)
    slots, states = slots_of(name), update_of(name, attrs_of(name)).states
    made = {slot: np.asarray(rng.normal(size=shape), dtype) for slot in ("Param", "Grad")}
    made["LearningRate"] = np.array([0.01], dtype)
    for slot in (*slots.states, *slots.powers, *slots.extra):
        if slot in slots.powers:
            made[slot] = np.array([0.9**3 if slot == "Beta1Pow" else 0.999**3])
        elif slot in states:  # variances: larger than the square of a mean gradient
            spread = rng.uniform(-1, 1, size=shape) if slot == "MeanGrad" else rng.uniform(2, 3, size=shape) ** 2 * 4
            made[slot] = np.asarray(spread, dtype)
        else:
            made[slot] = None
    while list(made.values())[-1] is None:
        made.popitem()
    return tuple(made.values())


def attrs_of(name):
    changed = {"momentum": {"use_nesterov": True}, "adamw": {"coeff": 0.1, "lr_ratio": 0.5}, "adam": {"amsgrad": True},
               "rmsprop": {"centered": True, "momentum": 0.5}, "lion": {"coeff": 0.1}}  # fmt: skip
    return OPS[name].bind_attrs(changed.get(name, {}))


def tuple_of(result):
    return tuple(r for r in (result if isinstance(result, tuple) else (result,)) if r is not None)


def out_of(name, inputs):
    """The arrays that are updated, None for absent slots."""
    given = dict(zip(slots_of(name).inputs, inputs, strict=False))
    return tuple(given.get(slot) for slot in slots_of(name).updated)


@pytest.fixture(params=[1, 2, 5])
def some_cores(request, monkeypatch):
    monkeypatch.setattr(parallel, "cores", lambda: request.param)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", UPDATES)
def test_kernel_equals_reference(name, size, some_cores):
    inputs = inputs_of(name, (size,))
    kept = [a.copy() for a in inputs]
    expected = tuple_of(OPS[name].reference(*inputs, **attrs_of(name)))
    found = tuple_of(OPS[name].cpu_kernel(*inputs, **attrs_of(name)))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
        assert a.dtype == b.dtype
        assert a.shape == np.shape(b)
    for a, b in zip(inputs, kept, strict=True):
        np.testing.assert_array_equal(a, b)  # without out nothing is written
    if name != "squared_l2_norm":
        out = out_of(name, inputs)
        results = tuple_of(OPS[name].cpu_kernel(*inputs, **attrs_of(name), out=out))
        for result, own, b in zip(results, tuple_of(out), found, strict=True):
            assert result is own
            np.testing.assert_array_equal(result, b)


@pytest.mark.parametrize("name", UPDATES)
def test_float32_kernel_is_within_a_few_ulp_of_float64(name):
    inputs = inputs_of(name, (70001,), "float32")
    exact = tuple_of(OPS[name].reference(*[a.astype("float64") for a in inputs], **attrs_of(name)))
    found = tuple_of(OPS[name].cpu_kernel(*inputs, **attrs_of(name)))
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=4e-7, atol=4e-7)
        assert a.dtype == ("float64" if a.shape == (1,) else "float32")


@pytest.mark.parametrize("layout", ["transposed", "strided", "reversed", "broadcast gradient", "0-d", "scalars"])
@pytest.mark.parametrize("name", [n for n in UPDATES if n != "squared_l2_norm"])
def test_kernel_on_arrays_that_are_not_contiguous(name, layout):
    shape = () if layout in ("0-d", "scalars") else (500, 401)
    plain = list(inputs_of(name, shape))
    changed = {
        "transposed": lambda a: np.asfortranarray(a), "0-d": lambda a: a, "scalars": lambda a: a[()],
        "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2], "reversed": lambda a: a[::-1].copy()[::-1],
        "broadcast gradient": lambda a: a,
    }[layout]  # fmt: skip
    states = [i for i, a in enumerate(plain) if a.shape == shape]
    if layout == "broadcast gradient":
        plain[1] = np.broadcast_to(plain[1][:1], shape)
    inputs = [changed(a) if i in states else a.copy() for i, a in enumerate(plain)]
    expected = tuple_of(OPS[name].reference(*plain, **attrs_of(name)))
    out = out_of(name, inputs)
    results = tuple_of(OPS[name].cpu_kernel(*inputs, **attrs_of(name), out=out))
    for result, own, b in zip(results, tuple_of(out), expected, strict=True):
        np.testing.assert_allclose(result, b, rtol=1e-12, atol=1e-14)
        assert result is own or layout == "scalars"


def test_out_that_is_another_array_is_written_and_the_input_is_not():
    p, g, rate = inputs_of("sgd", (5,))
    kept, other = p.copy(), np.zeros(5)
    assert OPS["sgd"].cpu_kernel(p, g, rate, out=(other,))[0] is other
    np.testing.assert_array_equal(p, kept)
    np.testing.assert_allclose(other, p - 0.01 * g)


def test_squared_norm_of_extreme_values():
    assert np.isnan(kernels.squared_l2_norm(np.array([1.0, np.nan])))
    assert kernels.squared_l2_norm(np.array([1.0, -np.inf])) == np.inf
    many = np.full(3_000_000, 0.1, "float32")
    assert kernels.squared_l2_norm(many).dtype == "float32"
    assert abs(kernels.squared_l2_norm(many) / (0.1**2 * many.size) - 1) < 1e-6


# loops as machine code


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [n for n in UPDATES if n != "squared_l2_norm"])
def test_machine_code_and_numpy_are_bit_equal(name, dtype, monkeypatch):
    pytest.importorskip("numba")
    inputs = inputs_of(name, (200003,), dtype)
    inputs[0][:5] = 0, -0.0, np.inf, np.nan, 1e-38
    found = tuple_of(OPS[name].cpu_kernel(*inputs, **attrs_of(name)))
    loops = [loop for loop in vars(updates).values() if isinstance(loop, compiled)]
    assert [loop for loop in loops if loop.machine_code not in (None, loop.loop)]
    for loop in loops:
        monkeypatch.setattr(loop, "machine_code", loop.loop)
    with np.errstate(all="ignore"):
        expected = tuple_of(OPS[name].cpu_kernel(*inputs, **attrs_of(name)))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a)[a == a], np.signbit(b)[b == b])


def test_a_loop_runs_without_numba_and_without_a_folder_for_its_code(monkeypatch):
    def twice(x):
        for i in elements(x):
            x[i] = x[i] + x[i]

    def fail(*args, **kwargs):
        raise RuntimeError("cannot cache function: no locator available")

    numba = pytest.importorskip("numba")
    njit = numba.njit
    monkeypatch.setattr(numba, "njit", lambda cache=False, **options: fail() if cache else njit(**options))
    x = np.arange(5.0)
    compiled(twice)(x)
    np.testing.assert_array_equal(x, 2 * np.arange(5.0))
    monkeypatch.setitem(sys.modules, "numba", None)
    loop = compiled(twice)
    loop(x)
    np.testing.assert_array_equal(x, 4 * np.arange(5.0))
    assert loop.machine_code is twice


# blocks on cores


def test_blocks_cover_a_range_once(some_cores):
    for size in (0, 1, 63, 64, 65, 1000, 4097):
        for block in (1, 64, 100, 5000):
            seen = np.zeros(size, int)

            def mark(start, stop, seen=seen, block=block):
                assert 0 < stop - start <= block
                seen[start:stop] += 1

            parallel.for_blocks(size, block, mark)
            assert (seen == 1).all()


def test_shares_cover_a_range_once_and_become_smaller(some_cores, monkeypatch):
    monkeypatch.setattr(parallel, "SMALLEST", 128)
    for size in (0, 1, 63, 64, 65, 128, 1000, 40970):
        seen, shares = np.zeros(size, int), []

        def mark(start, stop, seen=seen, shares=shares):
            seen[start:stop] += 1
            shares.append((start, stop - start))

        parallel.for_shares(size, mark)
        assert (seen == 1).all()
        lengths = [n for _, n in sorted(shares)]
        assert lengths == sorted(lengths, reverse=True)
        assert len(shares) <= 1 or min(lengths[:-1]) >= 128


def test_an_exception_in_a_block_is_raised_once_all_threads_stopped(some_cores):
    def fail(start, stop):
        raise ValueError(f"block at {start}")

    for _ in range(20):
        with pytest.raises(ValueError, match="block at"):
            parallel.for_blocks(1000, 10, fail)
    done = []
    parallel.for_blocks(1000, 10, lambda start, stop: done.append(stop - start))
    assert sum(done) == 1000


def test_error_state_of_the_caller_holds_in_every_thread(monkeypatch):
    monkeypatch.setattr(parallel, "cores", lambda: 4)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        parallel.for_blocks(640, 64, lambda start, stop: np.divide(1.0, np.zeros(1)))
    with np.errstate(all="ignore"):
        parallel.for_blocks(640, 64, lambda start, stop: np.divide(1.0, np.zeros(1)))


def test_helpers_stay_off_the_callers_core(monkeypatch):
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system does not say which cores a thread may use")
    mine = os.sched_getaffinity(0)
    others = parallel._caller.other_cores()
    assert others < mine, "all but one"
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    for allowed in ({max(mine)}, mine, {min(mine)}):
        monkeypatch.setattr(parallel, "_caller", SimpleNamespace(other_cores=lambda allowed=allowed: allowed))
        found, barrier = {}, threading.Barrier(2)

        def look(start, stop, found=found, barrier=barrier):
            barrier.wait(20)
            found[threading.get_native_id()] = os.sched_getaffinity(0)

        parallel.for_blocks(128, 64, look)
        assert found.pop(threading.get_native_id()) == mine
        assert list(found.values()) == [allowed]


def test_a_helper_that_comes_too_late_has_nothing_to_do():
    ran = []
    task = parallel._Task(lambda: ran.append("late"))
    assert task.outcome() is None
    (helper,) = parallel._hired(1)
    helper.begin(task, set())
    deadline = time.monotonic() + 20
    while helper not in parallel._idle and time.monotonic() < deadline:
        time.sleep(0.001)
    assert ran == []
    assert helper in parallel._idle
    assert helper.task is None, "what it would have worked on can be freed"


def test_blocks_within_blocks(monkeypatch):
    """A helper that waits for helpers of its own would wait for itself."""
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    sizes = []

    def outer(start, stop):
        parallel.for_blocks(256, 64, lambda start, stop: sizes.append(stop - start))

    parallel.for_blocks(256, 64, outer)
    assert sizes == [64] * 16


def meet(queue=None):
    """Two blocks that wait for each other end only if two threads run them."""
    barrier = threading.Barrier(2)
    parallel.for_blocks(128, 64, lambda start, stop: barrier.wait(20))
    if queue is not None:
        queue.put("met")


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # threads and fork, from Python 3.12 on
def test_a_forked_child_has_helpers_of_its_own():
    """In a process of its own: one that other tests have grown may be too large to fork."""
    code = "import test_optimizer_kernels as tests; tests.fork_and_meet()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=Path(__file__).parent,
                   env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)})  # fmt: skip


def fork_and_meet():
    parallel.cores = lambda: 2
    meet()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=meet, args=(queue,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert queue.get() == "met"
