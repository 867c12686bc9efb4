"""CPU kernels of the updates against their references, and the blocks in which they run."""

from __future__ import annotations

import copy
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent import futures
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minigraph as mg
from minigraph.kernels import parallel, updates
from minigraph.kernels.cpu import optimizer as kernels
from minigraph.kernels.updates import elements, slots_of, update_of
from minigraph.kernels.workers import Task
from minigraph.opdef import OPS
from minigraph.program.builder import Builder
from tests.support.grades import graded
from tests.support.in_threads import in_threads

UPDATES = (*updates.PLAIN, "squared_l2_norm")
CORES = 1, 2, 5
# Machine code takes a second to make. These have all that a loop may have: no state, states and powers, a norm before
# it, a sum; the others are tried on few elements by tests/optimizer and tests/ops.
SOONER = "sgd", "adamw", "lamb", "squared_l2_norm"
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


@pytest.fixture(autouse=True)
def machine_code_for_all(monkeypatch):
    """For the smallest arrays, too, and from the first run on."""
    monkeypatch.setattr(kernels, "FEW", 0)


@pytest.fixture
def two_threads(monkeypatch):
    """Helpers are asked whatever it has cost before."""
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    monkeypatch.setattr(parallel, "REST", 0)
    monkeypatch.setattr(parallel._Rest, "until", 0.0)
    monkeypatch.setattr(parallel._Rest, "aside", False)


def have_cores(patch, count):
    patch.setattr(parallel, "cores", lambda: count)
    patch.setattr(parallel, "REST", 0)
    patch.setattr(parallel._Rest, "until", 0.0)
    if "numba" in sys.modules:
        patch.setattr("minigraph.kernels.cpu.compiled.elements.cores", lambda: count)


@pytest.fixture(params=CORES)
def some_cores(request, monkeypatch):
    have_cores(monkeypatch, request.param)


@pytest.mark.parametrize(
    ("name", "size"),
    graded(
        ((name, size) for name in UPDATES for size in SIZES),
        now=lambda name, size: name in SOONER,
    ),
)
def test_kernel_equals_reference(name, size, monkeypatch):
    """On 1, 2 and 5 cores, whose results have the same bits."""
    inputs = inputs_of(name, (size,))
    kept = [a.copy() for a in inputs]
    expected = tuple_of(OPS[name].reference(*inputs, **attrs_of(name)))
    results = []
    for count in CORES:
        have_cores(monkeypatch, count)
        results.append(found := tuple_of(OPS[name].cpu_kernel(*inputs, **attrs_of(name))))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
            assert a.dtype == b.dtype
            assert a.shape == np.shape(b)
        for a, b in zip(inputs, kept, strict=True):
            np.testing.assert_array_equal(a, b)  # without out nothing is written
        for a, b in zip(found, results[0], strict=True):
            np.testing.assert_array_equal(a, b)
        if name != "squared_l2_norm":
            own = [a.copy() for a in inputs]
            out = out_of(name, own)
            written = tuple_of(OPS[name].cpu_kernel(*own, **attrs_of(name), out=out))
            for result, target, b in zip(written, tuple_of(out), found, strict=True):
                assert result is target
                np.testing.assert_array_equal(result, b)


@pytest.mark.parametrize("name", graded(UPDATES, now=lambda name: name in SOONER))
def test_float32_kernel_is_within_a_few_ulp_of_float64(name):
    inputs = inputs_of(name, (70001,), "float32")
    exact = tuple_of(OPS[name].reference(*[a.astype("float64") for a in inputs], **attrs_of(name)))
    found = tuple_of(OPS[name].cpu_kernel(*inputs, **attrs_of(name)))
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=4e-7, atol=4e-7)
        assert a.dtype == ("float64" if a.shape == (1,) else "float32")


@pytest.mark.parametrize("layout", ["transposed", "strided", "reversed", "broadcast gradient", "0-d", "scalars"])
@pytest.mark.parametrize("name", graded((n for n in UPDATES if n != "squared_l2_norm"), now=lambda n: n in SOONER))
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


@pytest.fixture
def compiled():
    pytest.importorskip("numba")
    from minigraph.kernels.cpu.compiled import elements

    return elements


@pytest.mark.parametrize(
    ("name", "dtype"),
    graded(
        ((name, dtype) for name in UPDATES if name != "squared_l2_norm" for dtype in ("float32", "float64")),
        now=lambda name, dtype: name in SOONER,
    ),
)
def test_machine_code_and_numpy_are_bit_equal(name, dtype, compiled, some_cores, monkeypatch):
    """Also where the gradient is scaled and decayed, and where one thread ends amid an array."""
    fused = OPS[f"fused_{name}"]
    sizes, given = (200003, 0, 1, 5, 70001), dict(zip(slots_of(name).inputs, inputs_of(name, ()), strict=False))
    columns = [inputs_of(name, (n,), dtype, seed) for seed, n in enumerate(sizes)]
    columns[0][0][:5] = 0, -0.0, np.inf, np.nan, 1e-38
    columns[4][-1][:] = 0.5  # not the same numbers for all
    inputs = [
        a if a is None or slot == "LearningRate" else [c[i] for c in columns]
        for i, (slot, a) in enumerate(given.items())
    ]
    inputs += [None] * (len(slots_of(name).inputs) - 1 - len(inputs)) + [np.array([0.5], dtype)]
    plain = {**attrs_of(name), "regularization_coeff": 0.0}
    calls = [(inputs[:-1], plain), (inputs, {**plain, "regularization_coeff": 0.25})]
    ran, bound = [], compiled.bound
    monkeypatch.setattr(compiled, "bound", lambda loop, columns: ran.append(loop) or bound(loop, columns))
    found = [fused.cpu_kernel(*args, **attrs) for args, attrs in calls]
    assert len(ran) >= 2
    monkeypatch.setattr(kernels, "_compiled", lambda: None)
    with np.errstate(all="ignore"):
        expected = [fused.cpu_kernel(*args, **attrs) for args, attrs in calls]
    for a, b in zip(flattened(found), flattened(expected), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a)[a == a], np.signbit(b)[b == b])


def test_machine_code_has_no_memory_of_its_own(compiled, monkeypatch):
    """numba frees an array behind the last line that names it, though its address is in use: another thread got it."""
    numba_memory = pytest.importorskip("numba.core.runtime")
    inputs = [[a] if i != 2 else a for i, a in enumerate(inputs_of("sgd", (compiled.SHARE,)))]
    step = OPS["fused_sgd"].cpu_kernel.for_arrays(*inputs, out=(inputs[0],), regularization_coeff=0.25)
    given = list[int]()

    def alone(threads, work, total, done):
        given.append(sum(isinstance(a, np.ndarray) for a in work.args))  # numba keeps account of those, too
        work(0)

    monkeypatch.setattr(compiled, "together", alone)
    numba_memory._nrt_python.memsys_enable_stats()
    try:
        before = numba_memory.rtsys.get_allocation_stats().alloc
        step()
        assert [numba_memory.rtsys.get_allocation_stats().alloc - before] == given
    finally:
        numba_memory._nrt_python.memsys_disable_stats()


def run(loop, x):
    """What a loop writes that reads x."""
    written = np.zeros_like(x)
    kernels._bound(loop, [[x], [written]])(kernels.Numbers([()], [0]), kernels.UNCHANGED)
    return written


def flattened(results):
    return [a for call in results for column in tuple_of(call) for a in column]


@pytest.mark.parametrize(
    "problem",
    [
        RuntimeError("cannot cache function: no locator available"), OSError(28, "No space left on device"),
        EOFError("Ran out of input"),
    ],
    ids=["no folder", "full disk", "half a file"],
)  # fmt: skip
def test_machine_code_without_a_folder_for_it(compiled, monkeypatch, problem):
    def twice(g, p):
        for i in elements(g):
            p[i] = g[i] + g[i]

    def fail(*args, **kwargs):
        raise problem

    for name in ("njit", "cfunc"):
        make = getattr(compiled, name)
        patched = partial(lambda make, *a, cache=False, **how: fail() if cache else make(*a, **how), make)
        monkeypatch.setattr(compiled, name, patched)
    compiled.handed_out.cache_clear()
    np.testing.assert_array_equal(run(twice, np.arange(5.0)), 2 * np.arange(5.0))


def test_few_elements_become_machine_code_when_they_come_often(compiled, monkeypatch):
    """With the same bits as from the beginning."""
    monkeypatch.setattr(kernels, "OFTEN", 3)
    made, bound = [], compiled.bound
    monkeypatch.setattr(compiled, "bound", lambda loop, columns: made.append(loop) or bound(loop, columns))
    found = []
    for few, expected in ((1000, [0, 0, 1, 1]), (999, [1, 1, 1, 1])):
        monkeypatch.setattr(kernels, "FEW", few)
        made.clear()
        inputs = inputs_of("adamw", (999,), "float32")
        step = OPS["adamw"].cpu_kernel.for_arrays(*inputs, out=out_of("adamw", inputs), **attrs_of("adamw"))
        counts = [step() or len(made) for _ in range(4)]
        assert counts == expected
        found.append(inputs)
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_numba_numpy_computes(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    for module in [module for module in sys.modules if module.startswith("minigraph.kernels.cpu.compiled")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr("minigraph.kernels.cpu.compiled", raising=False)
    kernels._compiled.cache_clear()
    try:
        assert kernels._compiled() is None
        inputs = inputs_of("sgd", (5,))
        np.testing.assert_allclose(OPS["sgd"].cpu_kernel(*inputs)[0], inputs[0] - 0.01 * inputs[1])
    finally:
        kernels._compiled.cache_clear()


def test_machine_code_is_found_on_disk_again(compiled, tmp_path):
    """By what the loop does: it was another object in the process that wrote it."""
    code = (
        "import numpy as np; from minigraph.kernels import updates\n"
        "from minigraph.kernels.cpu.compiled import elements\n"
        "print(elements.machine_code(updates._sgd, 2, np.dtype('float32')).cache_hits)"
    )
    how = {"capture_output": True, "text": True, "check": True, "timeout": 120, "cwd": Path(__file__).parents[2]}
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    hits = [subprocess.run([sys.executable, "-c", code], env=environment, **how).stdout.split() for _ in range(2)]
    assert hits == [["0"], ["1"]]


def test_loops_that_differ_in_a_constant_are_other_machine_code(compiled):
    def scaled(factor):
        if factor == 2:
            def loop(g, p):
                for i in elements(g):
                    p[i] = g[i] * 2.0
        else:
            def loop(g, p):
                for i in elements(g):
                    p[i] = g[i] * 3.0
        return loop

    for factor in (2, 3):
        np.testing.assert_array_equal(run(scaled(factor), np.arange(5.0)), factor * np.arange(5.0))


# arrays that stay


@pytest.mark.parametrize("name", graded((n for n in UPDATES if n != "squared_l2_norm"), now=lambda n: n in SOONER))
def test_steps_on_the_same_arrays_are_those_of_the_reference(name, some_cores):
    fused, inputs = OPS[f"fused_{name}"], inputs_of(name, (70001,), seed=3)
    lists = [a if i == 2 or a is None else [a.copy(), a.copy()] for i, a in enumerate(inputs)]
    for column in lists[:2]:
        column[1] *= 0.5
    attrs = {**attrs_of(name), "regularization_coeff": 0.0}
    given = dict(zip(slots_of(name).inputs, lists, strict=False))
    step = fused.cpu_kernel.for_arrays(*lists, out=tuple(given.get(s) for s in slots_of(name).updated), **attrs)
    expected = copy.deepcopy(given)
    for _ in range(3):
        step()
        results = fused.reference(*expected.values(), **attrs)
        expected |= {s: r for s, r in zip(slots_of(name).updated, results, strict=True) if r is not None}
        given["Grad"][0][:5] = expected["Grad"][0][:5] = 0.25  # read anew each time
        given["LearningRate"][...] = expected["LearningRate"][...] = 0.02
    for slot in slots_of(name).updated:
        for a, b in zip(given.get(slot) or [], expected.get(slot) or [], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_there_is_no_step_for_arrays_that_must_be_copied():
    kernel = OPS["sgd"].cpu_kernel
    p, g, rate = inputs_of("sgd", (6,))
    assert kernel.for_arrays(p, g, rate, out=(p,)) is not None
    assert kernel.for_arrays(p, g, rate, out=(None,)) is None
    assert kernel.for_arrays(p, g, rate, out=(p.copy(),)) is None
    assert kernel.for_arrays(p, np.repeat(g, 2)[::2], rate, out=(p,)) is None
    assert kernel.for_arrays(p[::-1], g, rate, out=(p[::-1],)) is None


@pytest.mark.parametrize("wrong", [np.zeros(4), np.zeros(5, "float32")], ids=["size", "dtype"])
def test_an_array_that_does_not_fit_is_refused(wrong, compiled):
    """Machine code gets addresses: it would read what lies behind."""
    p, _, rate = inputs_of("sgd", (5,))
    with pytest.raises(ValueError, match="5 elements of float64 are expected"):
        OPS["sgd"].cpu_kernel(wrong, p, rate)


def test_one_plan_in_two_scopes():
    program = mg.static.Program()
    block = program.global_block()
    sizes = {"p": 7, "g": 7, "r": 1}
    p, g, rate = (block.create_var(name, (n,), "float64", persistable=True) for name, n in sizes.items())
    Builder(block).sgd(p, g, rate, out={"ParamOut": p})
    exe, scopes = mg.static.Executor(mg.CPUPlace()), [mg.static.Scope() for _ in range(2)]
    for scope, start in zip(scopes, (1.0, 100.0), strict=True):
        for name, value in (("p", np.full(7, start)), ("g", np.ones(7)), ("r", np.array([1.0]))):
            scope.write(name, value)
    for _ in range(3):
        for scope in scopes:
            exe.run(program, {}, [], scope=scope)
    scopes[0].write("p", np.full(7, 50.0))
    for scope in scopes:
        exe.run(program, {}, [], scope=scope)
    assert [scope.read("p")[0] for scope in scopes] == [49.0, 96.0]


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


def test_an_exception_in_a_block_is_raised_once_all_threads_stopped(some_cores):
    def fail(start, stop):
        raise ValueError(f"block at {start}")

    for _ in range(20):
        with pytest.raises(ValueError, match="block at"):
            parallel.for_blocks(1000, 10, fail)
    done = []
    parallel.for_blocks(1000, 10, lambda start, stop: done.append(stop - start))
    assert sum(done) == 1000


def test_no_block_begins_after_an_exception(monkeypatch):
    monkeypatch.setattr(parallel, "cores", lambda: 1)
    began = []
    with pytest.raises(ZeroDivisionError):
        parallel.for_each([3, 0, 1, 0], lambda item: began.append(item) or 1 // item)
    assert began == [3, 0]


def test_items_count_by_their_cost(monkeypatch):
    """What a thread did is compared with all there is, so a large item is not taken for one of many."""
    told = []
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    monkeypatch.setattr(parallel, "together", lambda threads, work, total, done: told.extend((work(0), total, done())))
    parallel.for_each(["a", "bbbb"], len, cost=len)
    assert told == [5, 5, 5]


def test_error_state_of_the_caller_holds_in_every_thread(monkeypatch):
    monkeypatch.setattr(parallel, "cores", lambda: 4)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        parallel.for_blocks(640, 64, lambda start, stop: np.divide(1.0, np.zeros(1)))
    with np.errstate(all="ignore"):
        parallel.for_blocks(640, 64, lambda start, stop: np.divide(1.0, np.zeros(1)))


@pytest.mark.parametrize("late", ["helper", "caller"])
def test_the_caller_waits_for_who_is_last(late, two_threads):
    main, both, ended = threading.get_ident(), threading.Barrier(2), []

    def body(start, stop):
        both.wait(120)
        if (threading.get_ident() == main) == (late == "caller"):
            time.sleep(0.02)
        ended.append(start)

    parallel.for_blocks(128, 64, body)
    assert sorted(ended) == [0, 64]


def test_nobody_waits_for_a_helper_that_has_not_begun(two_threads):
    """The executor's threads are busy with something else: the caller does all, and nothing runs later."""
    busy, began, helpers = threading.Event(), [], parallel._helpers()
    helpers.at_least(parallel.MOST)
    others = [Task(lambda: busy.wait(60)) for _ in helpers._there]
    for other in others:
        helpers.take(other)
    try:
        parallel.for_blocks(128, 64, lambda start, stop: began.append(threading.get_ident()))
    finally:
        busy.set()
    for other in others:
        other.wait()
    assert [other.value for other in others] == [True] * len(others)
    assert began == [threading.get_ident()] * 2


class Clock:
    """Clocks that tests set: of the wall, and of the calling thread's work."""

    def __init__(self):
        self.wall = self.work = 0.0

    def perf_counter(self):
        return self.wall

    def thread_time(self):
        return self.work

    def sleep(self, seconds):
        self.wall += 1e-5


@pytest.fixture
def clock(two_threads, monkeypatch):
    found = Clock()
    monkeypatch.setattr(parallel, "time", found)
    monkeypatch.setattr(parallel, "REST", 20)
    return found


def asked(monkeypatch):
    """How many helpers each call of `_begin` was asked for; none comes."""
    counts = []
    monkeypatch.setattr(parallel, "_begin", lambda helpers, count, work: counts.append(count))
    return counts


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["while it asks for helpers", "while it waits for them"])
def test_an_interrupt_waits_for_helpers_that_have_begun(two_threads, monkeypatch, where):
    """They write into arrays that the caller may use next."""
    begun, go_on, ended = threading.Event(), threading.Event(), []

    class Awaited(Task):
        def wait(self):
            go_on.set()
            super().wait()

    def work(k):
        if k:
            begun.set()
            go_on.wait()
            ended.append(k)
        return 1

    begin = parallel._begin

    def last_is_interrupted(helpers, count, own):
        begin(helpers, count, own)
        begun.wait()
        if where == "while it asks for helpers":
            raise KeyboardInterrupt

    monkeypatch.setattr(parallel, "Task", Awaited)
    monkeypatch.setattr(parallel, "_begin", last_is_interrupted)
    monkeypatch.setattr(parallel.np, "sin", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            parallel.together(2, work, 2, lambda: 1 + len(ended))
        assert ended == [1]
    finally:
        go_on.set()


def test_helpers_rest_twenty_times_as_long_as_a_loss(clock, monkeypatch):
    counts = asked(monkeypatch)

    def step(wall, work):
        def body(start, stop):
            clock.wall, clock.work = clock.wall + wall / 2, clock.work + work / 2

        parallel.for_blocks(128, 64, body)

    step(1.0, 1.0)  # as long as alone: no loss
    step(1.5, 1.0)  # half a second longer than alone
    assert len(counts) == 2
    for _ in range(9):
        step(1.0, 1.0)
    assert len(counts) == 2, "9 of 10 seconds have passed"
    step(1.0, 1.0)
    step(1.0, 1.0)
    assert len(counts) == 3


def test_the_longest_rest_ends(clock, monkeypatch):
    counts = asked(monkeypatch)
    parallel.together(2, lambda k: setattr(clock, "wall", 1e6) or 1, 1, lambda: 1)
    clock.wall += parallel.LONGEST_REST
    parallel.together(2, lambda k: 1, 1, lambda: 1)
    assert counts == [1, 1]


@pytest.fixture
def moves(clock, monkeypatch):
    """Affinities that are set while the caller is on core 1 of 0 to 2; helper 77 runs before the caller begins."""
    found = []

    def begin(helpers, count, work):
        found.append("begins")
        work(1)

    monkeypatch.setattr(parallel, "_begin", begin)
    monkeypatch.setattr(parallel, "_threads", [77])
    monkeypatch.setattr(parallel._Where, "helpers", {0, 1, 2})
    monkeypatch.setattr(parallel, "core_of_this_thread", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {0, 1, 2}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: found.append((thread, cores)), raising=False)
    return found


def taken_by_the_first(seconds):
    """Who did the work of a call, so many seconds later: all of it is done by who comes first."""
    done = []

    def work(k):
        if done:
            return 0
        done.append(k)
        return 4

    parallel.time.wall += seconds
    parallel.together(2, work, 4, lambda: 4)
    return done


def test_a_helper_that_leaves_the_caller_nothing_is_woken_on_another_core_and_is_free_then(moves, monkeypatch):
    aside = [(77, {0, 2}), "begins", (77, {0, 1, 2})]  # off the caller's core, then as before
    assert taken_by_the_first(1.0) == [1] and moves == ["begins"]
    assert taken_by_the_first(1.0) == [1] and moves == ["begins", *aside]
    moves.clear()
    monkeypatch.setattr(parallel._Rest, "aside", True)
    monkeypatch.setattr(parallel, "core_of_this_thread", lambda: None)  # not Linux
    assert taken_by_the_first(1.0) == [1] and moves == ["begins"]


def test_helpers_are_woken_on_other_cores_as_long_as_that_pays(moves, monkeypatch):
    def shared(k):
        parallel.time.work += k == 0  # a second of this thread's time
        return 1

    def call(seconds):
        monkeypatch.setattr(parallel, "_wait", lambda *_: setattr(parallel.time, "wall", parallel.time.wall + seconds))
        parallel.together(2, shared, 2, lambda: 2)
        return parallel._Rest.aside

    monkeypatch.setattr(parallel, "REST", 0)
    assert [call(s) for s in (1.0, 3.0, 1.0, 1.0, 3.0, 1.0)] == [False, True, True, True, False, False]
    assert moves.count((77, {0, 2})) == moves.count((77, {0, 1, 2})) == 3


def test_an_interrupt_leaves_no_helper_bound(moves, monkeypatch):
    def interrupted(k):
        raise KeyboardInterrupt

    monkeypatch.setattr(parallel._Rest, "aside", True)
    with pytest.raises(KeyboardInterrupt):
        parallel.together(2, interrupted, 2, lambda: 2)
    assert moves == [(77, {0, 2}), "begins", (77, {0, 1, 2})]


def test_a_helper_that_cannot_leave_the_callers_core_rests(moves, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {1})
    monkeypatch.setattr(parallel._Where, "helpers", {1})
    monkeypatch.setattr(parallel, "_wait", lambda *args: setattr(parallel.time, "wall", parallel.time.wall + 0.1))
    assert [taken_by_the_first(0.0) for _ in range(3)] == [[1], [1], [0]] and moves == ["begins"] * 2


def one_helper():
    """A helper has begun and done something."""
    call, helpers = Task(int), parallel._helpers()
    helpers.at_least(1)
    helpers.take(call)
    call.wait()


def test_helpers_may_be_anywhere_when_they_have_begun(monkeypatch):
    """The true calls of the system, and threads that end meanwhile."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity")
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    one_helper()
    assert parallel._threads, "no helper has begun"
    for _ in range(3):
        monkeypatch.setattr(parallel._Rest, "until", 0.0)
        monkeypatch.setattr(parallel._Rest, "aside", True)
        parallel.for_blocks(640, 64, lambda start, stop: None)
        for thread in parallel._threads:
            assert os.sched_getaffinity(thread) == os.sched_getaffinity(0)
    monkeypatch.setattr(parallel._Where, "helpers", parallel._Where.helpers)
    monkeypatch.setattr(parallel, "_threads", [2**22 + 1])  # more than the largest number of a thread
    parallel._allow({0})


def test_helpers_run_where_the_thread_that_asks_them_may(monkeypatch):
    if not hasattr(os, "sched_setaffinity") or len(every := os.sched_getaffinity(0)) < 2:
        pytest.skip("no cores to choose from")
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    monkeypatch.setattr(parallel, "REST", 0)

    def of_helpers():
        monkeypatch.setattr(parallel._Rest, "until", 0.0)
        monkeypatch.setattr(parallel._Rest, "aside", False)
        parallel.for_blocks(640, 64, lambda start, stop: None)
        return [os.sched_getaffinity(helper) for helper in parallel._threads]

    def narrow():
        os.sched_setaffinity(0, {min(every)})
        return of_helpers()

    one_helper()
    for _ in range(2):
        with futures.ThreadPoolExecutor(1) as pool:
            found = pool.submit(narrow).result()
        assert found and all(cores == {min(every)} for cores in found)
        assert all(cores == every for cores in of_helpers())


def test_no_helper_is_asked_for_where_there_is_one_core(monkeypatch):
    counts = asked(monkeypatch)
    monkeypatch.setattr(parallel, "cores", lambda: 1)
    parallel.for_blocks(640, 64, lambda start, stop: None)
    assert counts == []


def test_where_no_thread_can_be_had_the_caller_does_all(two_threads, monkeypatch):
    def refused(count):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(parallel, "_helpers", lambda: SimpleNamespace(at_least=refused))
    seen = []
    parallel.for_blocks(640, 64, lambda start, stop: seen.append(start))
    assert seen == list(range(0, 640, 64))


def test_blocks_run_while_the_interpreter_ends():
    """No thread begins any more then."""
    code = (
        "import atexit, sys; from minigraph.kernels import parallel; parallel.cores = lambda: 2\n"
        "def show(start, stop): sys.stdout.write(f'{start} {stop}\\n')\n"
        "def last(): parallel._Rest.until = 0; parallel.for_blocks(128, 64, show)\n"
        "atexit.register(last); last()"
    )
    how = {"capture_output": True, "text": True, "check": True, "timeout": 120, "cwd": Path(__file__).parents[2]}
    result = subprocess.run([sys.executable, "-c", code], **how)
    assert sorted(result.stdout.split()) == sorted(["0", "64", "64", "128"] * 2)
    assert result.stderr == ""


def test_several_callers_at_once(monkeypatch, two_threads):
    """Each has its own blocks, whoever of them gets the helpers."""
    monkeypatch.setattr(parallel, "cores", lambda: 3)
    sums = [np.zeros(640, int) for _ in range(4)]

    def call(seen):
        def mark(start, stop):
            seen[start:stop] += 1

        for _ in range(50):
            parallel.for_blocks(640, 64, mark)

    in_threads(call, sums)
    assert all((seen == 50).all() for seen in sums)


def test_machine_code_of_several_callers_at_once(compiled, monkeypatch):
    monkeypatch.setattr(compiled, "cores", lambda: 3)
    monkeypatch.setattr(parallel, "cores", lambda: 3)
    arrays = [np.zeros(400_000) for _ in range(3)]

    def call(p):
        for _ in range(30):
            OPS["sgd"].cpu_kernel(p, np.ones_like(p), np.array([1.0]), out=(p,))

    in_threads(call, arrays)
    assert all((p == -30).all() for p in arrays)


def test_blocks_within_blocks(two_threads):
    """A helper that waits for helpers of its own would wait for itself."""
    sizes = []

    def outer(start, stop):
        parallel.for_blocks(256, 64, lambda start, stop: sizes.append(stop - start))

    parallel.for_blocks(256, 64, outer)
    assert sizes == [64] * 16


def meet(queue=None):
    """Two blocks that wait for each other end only if two threads run them."""
    barrier = threading.Barrier(2)
    parallel.for_blocks(128, 64, lambda start, stop: barrier.wait(120))
    if queue is not None:
        queue.put("met")


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # threads and fork, from Python 3.12 on
def test_a_forked_child_has_helpers_of_its_own():
    """In a process of its own: one that other tests have grown may be too large to fork."""
    code = "from tests.kernels import test_optimizer_kernels as tests; tests.fork_and_meet()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=Path(__file__).parents[2],
                   env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})  # fmt: skip


def fork_and_meet():
    parallel.cores, parallel.REST = lambda: 2, 0
    meet()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=meet, args=(queue,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert queue.get() == "met"
