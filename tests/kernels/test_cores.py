"""How many threads a process may use, and products in blocks: the same bits for any number of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import minigraph as mg
from minigraph.kernels import cores, parallel
from minigraph.kernels.cpu import product, strips
from minigraph.opdef import get_op
from tests.support.interrupts import interrupts


@pytest.fixture
def unlimited():
    yield
    cores._limit.clear()


def files(root, **texts):
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("texts", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "50000 100000\n"}, 0.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
          "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 2.0),
        ({"proc/self/cgroup": "0::/host/path\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "3:cpu,cpuacct:/d\n0::/\n", "sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_quota_us": "100000\n",
          "sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_period_us": "100000\n"}, 1.0),
        ({"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "30000\n",
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": "0\n"}, None),
        ({"proc/self/cgroup": "0::/../x\nbroken\n", "sys/fs/cgroup/cpu.max": "what\n"}, None),
    ],
)  # fmt: skip
def test_quota_of_the_cgroup(texts, quota, tmp_path):
    files(tmp_path, **texts)
    assert cores.cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("environment", "quota", "allowed", "expected"),
    [({}, None, 8, 8), ({}, 2.0, 8, 2), ({}, 0.5, 8, 1), ({}, 3.9, 8, 3), ({"OMP_NUM_THREADS": "3"}, None, 8, 3),
     ({"NUMBA_NUM_THREADS": "2", "OMP_NUM_THREADS": "4"}, None, 8, 2), ({"OMP_NUM_THREADS": "16"}, None, 8, 8),
     ({"OMP_NUM_THREADS": "4,2"}, None, 8, 4), ({"OMP_NUM_THREADS": "many"}, None, 8, 8),
     ({"OMP_NUM_THREADS": "0"}, None, 8, 8), ({"OMP_NUM_THREADS": "-3"}, None, 8, 8)],
)  # fmt: skip
def test_the_least_limit_holds(environment, quota, allowed, expected, monkeypatch):
    for name in cores.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    monkeypatch.setattr(cores, "_allowed_cores", lambda: allowed)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    cores._available.cache_clear()
    try:
        assert cores.cores() == expected
    finally:
        cores._available.cache_clear()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_affinity_is_obeyed():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); import minigraph as mg;" \
           "print(mg.get_num_threads())"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_each_thread_has_as_many_threads_as_its_own_affinity_allows(unlimited, monkeypatch):
    monkeypatch.setattr(cores, "_available", lambda: 64)
    before, seen = os.sched_getaffinity(0), []

    def narrow():
        os.sched_setaffinity(0, {min(before)})  # of this thread alone, also after the import
        seen.append(cores.cores())

    thread = threading.Thread(target=narrow)
    thread.start()
    thread.join()
    assert [*seen, cores.cores()] == [1, len(before)]


WORKER = """
import os
import minigraph as mg
mg.get_num_threads()
child = os.fork()
if not child:
    os.environ["OMP_NUM_THREADS"] = "1"
    os._exit(mg.get_num_threads())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_reads_the_variables_anew():
    environment = {name: text for name, text in os.environ.items() if name not in cores.VARIABLES}
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "1\n"


@pytest.mark.parametrize(("siblings", "quota", "expected"), [
    (("0,4", "1,5", "0,4", "1,5"), "max", 2), (("0", "1", "2", "3"), "max", 4), ((), "max", 4),
    (("0-1", "0-1", "2-3", "2-3"), "50000", 1), (("0", "1", "2", "3"), "250000", 2),
])  # fmt: skip
def test_two_threads_of_a_core_are_one_physical_core(siblings, quota, expected, monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as torchrun sets it: says nothing of compilers
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: set(range(4)))
    for number, text in enumerate(siblings):
        file = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(f"{text}\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(f"{quota} 100000\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    assert cores.physical_cores.__wrapped__(tmp_path) == expected


def test_the_core_of_a_thread(monkeypatch):
    if sys.platform == "linux":
        assert cores.core_of_this_thread() in os.sched_getaffinity(0)
    for ask in (None, lambda: -1):
        monkeypatch.setattr(cores, "_sched_getcpu", lambda ask=ask: ask)
        assert cores.core_of_this_thread() is None


def test_threads_can_be_limited(unlimited, monkeypatch):
    monkeypatch.setattr(cores, "_available", lambda: 4)
    monkeypatch.setattr(cores, "_allowed_cores", lambda: 8)
    mg.set_num_threads(2)
    assert mg.get_num_threads() == 2
    mg.set_num_threads(9)
    assert mg.get_num_threads() == 4


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2", None])
def test_what_is_no_number_of_threads_is_refused(wrong, unlimited):
    with pytest.raises(mg.MinigraphError, match="set_num_threads takes an int of 1 or more, not"):
        mg.set_num_threads(wrong)


# products

SHAPES = (
    ((300, 400), (400, 900)),
    ((900, 400), (400, 300)), ((8, 200, 128), (8, 128, 300)), ((2, 1, 300, 300), (3, 300, 200)),
    ((4, 500, 256), (256, 300)), ((1, 600, 400), (1, 400, 500)),
)  # fmt: skip


@pytest.fixture(params=["BLAS", "machine code"])
def who(request, monkeypatch):
    """Who computes large products of float32, whichever processor this is."""
    found = None
    if request.param == "machine code":
        pytest.importorskip("numba")
        from minigraph.kernels.cpu.compiled import gemm as found
    monkeypatch.setattr(strips, "_machine_code", lambda: found)
    return request.param


@pytest.fixture
def met(monkeypatch):
    """How many blocks or strips each meeting of threads had."""
    found, strips_of = [], strips._strips

    def in_blocks(items, *args, **how):
        found.append(len(items))
        return parallel.for_each(items, *args, **how)

    def in_strips(shapes):
        found.append(len(strips_of(shapes)[0]))
        return strips_of(shapes)

    monkeypatch.setattr(product, "for_each", in_blocks)
    monkeypatch.setattr(strips, "_strips", in_strips)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products_have_the_same_bits_for_any_number_of_threads(shapes, dtype, who, met, monkeypatch):
    monkeypatch.setattr(parallel, "REST", 0)
    rng, found = np.random.default_rng(0), []
    a, b = (np.asarray(rng.normal(size=s), dtype) for s in shapes)
    for threads in (1, 2, 5):
        for module in (parallel, strips):
            monkeypatch.setattr(module, "cores", lambda n=threads: n)
        monkeypatch.setattr(parallel._Rest, "until", 0.0)
        found += [product.product(a, b), product.product(a, b, np.empty_like(found[0] if found else a @ b))]
    assert sum(met) >= 12, "it is cut into blocks"
    np.testing.assert_allclose(found[0], a.astype("f8") @ b.astype("f8"), rtol=1e-10 if dtype == "float64" else 1e-3,
                               atol=1e-10 if dtype == "float64" else 1e-3)  # fmt: skip
    assert all(x.tobytes() == found[0].tobytes() and x.dtype == dtype for x in found)


@pytest.mark.parametrize("trans", [(0, 1), (1, 0), (1, 1)])
def test_products_of_transposed_operands(trans):
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(300, 500)), rng.normal(size=(500, 400))
    a, b = (np.ascontiguousarray(x.T).T if t else x for x, t in zip((a, b), trans, strict=True))
    np.testing.assert_allclose(product.product(a, b), a @ b, rtol=1e-10, atol=1e-10)


def test_products_share_threads_at_once_and_have_the_bits_that_each_has_alone(who, met):
    rng = np.random.default_rng(3)
    x, y, d = (rng.normal(size=s).astype("f4") for s in ((300, 400), (400, 900), (300, 900)))
    small = rng.normal(size=(4, 5)).astype("f4")
    alone = [product.product(a, b) for a, b in ((d, y.T), (x.T, d), (small.T, small))]
    met.clear()
    out = np.empty_like(x)
    found = product.products([(d, y.T, out, None), (x.T, d, None, None), (small.T, small, None, None)])
    assert len(met) == 1 and found[0] is out
    assert all(a.tobytes() == b.tobytes() for a, b in zip(alone, found, strict=True))
    grads = get_op("matmul_grad").reference(x, y, d)
    assert len(met) == 2
    assert all(a.tobytes() == b.tobytes() for a, b in zip(alone, grads, strict=False))


@pytest.mark.parametrize("kept", [0, 1], ids=["reads", "writes"])
def test_a_product_that_overwrites_what_the_next_one_uses_comes_first(kept, monkeypatch):
    monkeypatch.setattr(product, "for_each", lambda items, body, cost: [body(item) for item in reversed(items)])
    rng = np.random.default_rng(4)
    a, b, c = (rng.normal(size=(300, 300)) for _ in range(3))
    shared = rng.normal(size=(300, 300))
    first, second = a @ b, c @ (a @ b) if kept == 0 else c @ a
    found = product.products([(a, b, shared, None), (c, shared, None, None) if kept == 0 else (c, a, shared, None)])
    np.testing.assert_allclose(found[1], second, rtol=1e-10, atol=1e-10)
    if kept == 0:
        np.testing.assert_allclose(found[0], first, rtol=1e-10, atol=1e-10)


def test_what_is_no_large_product_of_floats_is_numpys(monkeypatch):
    def refused(*args, **how):
        raise AssertionError("in blocks")

    monkeypatch.setattr(product, "for_each", refused)
    rng = np.random.default_rng(2)
    for a, b in (((30, 40), (40, 50)), ((40,), (40, 50)), ((0, 4), (4, 5))):
        product.product(rng.normal(size=a), rng.normal(size=b))
    large = rng.integers(0, 9, (300, 300))
    product.product(large, large)
    with pytest.raises(ValueError, match="matmul"):
        product.product(rng.normal(size=(900, 300)), rng.normal(size=(900, 300)))
    x = rng.normal(size=(300, 300))
    expected = x @ x
    np.testing.assert_array_equal(product.product(x, x, x), expected)


def blas():
    shared, own = product._libraries()
    return [library.num_threads for library in (*shared, *own)]


def test_blas_has_one_thread_while_a_program_runs_and_as_many_as_before_after_it(monkeypatch):
    for library in product._libraries()[0]:
        product._set([(library, 2)])
    before, seen = blas(), []
    try:
        main = mg.static.Program()
        with mg.static.program_guard(main, mg.static.Program()):
            out = mg.matmul(mg.static.data("x", [100, 100]), mg.static.data("y", [100, 100]))
        matmul = np.matmul
        monkeypatch.setattr(np, "matmul", lambda *args, **how: seen.append(blas()) or matmul(*args, **how))
        x = np.ones((100, 100), "float32")
        mg.static.Executor().run(main, {"x": x, "y": x}, [out])
        assert seen and all(number == 1 for numbers in seen for number in numbers)
        assert blas() == before
    finally:
        for library in product._libraries()[0]:
            product._set([(library, 1)])


def test_blas_is_set_back_when_the_last_of_several_threads_leaves():
    for library in product._libraries()[0]:
        product._set([(library, 2)])
    before, inside, leave = blas(), threading.Barrier(2), threading.Event()

    def other():
        with product.one_thread_in_blas():
            inside.wait(120)
            leave.wait(120)

    thread = threading.Thread(target=other)
    try:
        with product.one_thread_in_blas():
            thread.start()
            inside.wait(120)
        assert product._libraries()[1] or blas() == [1] * len(before)
        leave.set()
        thread.join(120)
        assert blas() == before
    finally:
        for library in product._libraries()[0]:
            product._set([(library, 1)])


class OpenMP:
    """A BLAS library that knows one number of threads for each thread."""

    num_threads = 3

    def set_num_threads(self, number):
        self.num_threads = number


def test_a_library_with_a_number_for_each_thread_is_set_back_too(monkeypatch):
    library = OpenMP()
    monkeypatch.setattr(product, "_libraries", lambda: ([], [library]))
    for _ in range(2):
        with product.one_thread_in_blas():
            with product.one_thread_in_blas():
                assert library.num_threads == 1
            assert library.num_threads == 1
        assert library.num_threads == 3


@pytest.mark.parametrize("shared", [True, False])
def test_an_interrupt_leaves_no_library_with_one_thread(monkeypatch, shared):
    library = OpenMP()
    monkeypatch.setattr(product, "_libraries", lambda: ([library], []) if shared else ([], [library]))

    def inside():
        with product.one_thread_in_blas():
            assert library.num_threads == 1

    for where in interrupts(inside, ("cpu/product.py", "test_cores.py", "contextlib.py")):
        assert library.num_threads == 3, where
        assert not product._limited.inside, where


FORKS = """
import os
from minigraph.kernels.cpu import product, strips
from minigraph.opdef import get_op
class Library:
    num_threads = 3
    def set_num_threads(self, number):
        self.num_threads = number
library = Library()
product._libraries = lambda: ([library], [])
with product.one_thread_in_blas():
    child = os.fork()
    if not child:
        before = library.num_threads
        with product.one_thread_in_blas():
            inside = library.num_threads
        os._exit(100 * before + 10 * inside + library.num_threads == 313 or 7)
    assert library.num_threads == 1
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), library.num_threads)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_inside_has_the_threads_of_before():
    """The thread that would set them back is not in it."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    assert done.stdout == "1 3\n"
