"""Products by machine code of our own: on any processor here, though only those use it on which it was measured."""

from __future__ import annotations

import math
import sys
import weakref

import numpy as np
import pytest

from minigraph.kernels.cpu import product, strips
from minigraph.opdef import get_op
from minigraph.ops.matmul.gemm_epilogue import pack_mask

SENTINEL = np.float32(1e30)


@pytest.fixture(autouse=True)
def machine_code(monkeypatch):
    pytest.importorskip("numba")
    from minigraph.kernels.cpu.compiled import gemm

    monkeypatch.setattr(strips, "_machine_code", lambda: gemm)
    return gemm


def laid_out(x, layout):
    """The same numbers, where they lie otherwise."""
    if layout == "transposed":
        return np.ascontiguousarray(x.T).T
    if layout == "strided":
        wide = np.full((x.shape[0] * 2, x.shape[1] * 3), SENTINEL)
        wide[::2, ::3] = x
        return wide[::2, ::3]
    if layout == "backward":
        return np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
    return x


def operands(m, k, n, first="rows", second="rows", seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=(k, n)).astype(np.float32)
    return laid_out(a, first), laid_out(b, second)


def computed(a, b, order=lambda pieces: pieces, epilogue=None):
    """a @ b by strips in an order, in an array inside a larger one that nobody may write."""
    frame = np.full((a.shape[0] + 2, b.shape[1] + 2), SENTINEL)
    out = frame[1:-1, 1:-1]
    out[...] = np.nan
    run([(a, b, out, epilogue)], order)
    assert (frame[[0, -1]] == SENTINEL).all()
    assert (frame[:, [0, -1]] == SENTINEL).all()
    return out


def run(products, order):
    """The products by one thread, which takes the strips of all of them in an order."""
    with pytest.MonkeyPatch.context() as patch:
        plain = strips._strips.__wrapped__

        def ordered(shapes):
            pieces, room = plain(shapes)
            return np.ascontiguousarray(order(pieces)), room

        patch.setattr(strips, "_strips", ordered)
        patch.setattr(strips, "cores", lambda: 1)
        strips.multiply(products)


def shuffled(seed):
    return lambda pieces: np.random.default_rng(seed).permutation(pieces)


def assert_product(found, a, b, bias=0.0):
    """Sums of k numbers in float32: an error of k roundings is the most, far less is usual."""
    sums = np.abs(a).astype(float) @ np.abs(b).astype(float) + np.abs(bias)
    error = np.abs(found - (a.astype(float) @ b.astype(float) + bias))
    assert (error <= 4 * np.sqrt(a.shape[1]) * 2.0**-24 * sums).all()


LAYOUTS = "rows", "transposed", "strided", "backward"


@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
def test_all_layouts(first, second):
    for sizes in ((64, 64, 64), (70, 300, 101), (129, 65, 290)):
        a, b = operands(*sizes, first, second)
        assert_product(computed(a, b), a, b)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16])
def test_edges(rows):
    for columns in (1, 31, 32, 33, 64):
        for inner in (1, 15, 16, 17, 255, 256, 257):
            for layouts in (("rows", "rows"), ("rows", "transposed"), ("transposed", "rows")):
                a, b = operands(rows, inner, columns, *layouts)
                assert_product(computed(a, b), a, b)


@pytest.fixture
def several_parts(monkeypatch, machine_code):
    """Sums, rows and columns are computed in parts where products are small, too."""
    monkeypatch.setattr(machine_code, "INNER", 96)
    monkeypatch.setattr(machine_code, "SOURCE", machine_code.SOURCE + " of few products")
    made = machine_code.handed_out.__wrapped__()
    monkeypatch.setattr(machine_code, "handed_out", lambda: made)
    monkeypatch.setattr(strips, "STRIP", 64)
    monkeypatch.setattr(strips, "COPIED", 96 * 80)


def test_sums_and_rows_in_several_parts(several_parts):
    for sizes in ((300, 400, 200), (300, 96, 200), (70, 96, 513), (161, 97, 64)):
        a, b = operands(*sizes, "rows", "transposed")
        assert_product(computed(a, b), a, b)


def test_rows_that_stay_are_those_of_the_same_product():
    """Strips of two products of one shape in turn, on one thread; then the same arrays with other numbers."""
    a, b = operands(128, 100, 800)
    c, d = operands(128, 100, 800, seed=1)
    first, second = np.empty((128, 800), np.float32), np.empty((128, 800), np.float32)
    run([(a, b, first, None), (c, d, second, None)], shuffled(0))
    assert_product(first, a, b)
    assert_product(second, c, d)
    a += 1
    assert_product(computed(a, b), a, b)


@pytest.mark.parametrize("layouts", [("rows", "rows"), ("rows", "transposed"), ("transposed", "strided")])
def test_memory_is_enough(layouts, machine_code):
    for m, k, n in ((9, 17, 33), (64, 300, 64), (64, 17, 64), (1, 1, 1)):
        (a, b), out = operands(m, k, n, *layouts), np.empty((m, n), np.float32)
        size = machine_code.room(m, n, k)
        memory, bias = np.full(size + 8192, 77, np.uint8), np.ones(n, np.float32)
        numbers = np.array([strips._numbers(a, b, out, strips.ProductEpilogue(np.copy, bias))], np.int64)
        pieces, turns = np.array([[0, 0, m, 0, n]]), np.zeros(2 * machine_code.LINE, np.int64)
        assert machine_code.handed_out()(numbers, pieces, turns, strips._address(memory) + 4096) == m * n * k
        assert turns[machine_code.LINE] == m * n * k
        assert_product(out, a, b, bias)
        assert (memory[:4096] == 77).all()
        assert (memory[4096 + size :] == 77).all()


def test_machine_code_on_disk_is_that_of_this_source(machine_code, monkeypatch, tmp_path):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))

    def found_on_disk() -> int:
        return sum(machine_code.handed_out.__wrapped__().stats.cache_hits.values())

    assert [found_on_disk(), found_on_disk()] == [0, 1]
    monkeypatch.setattr(machine_code, "SOURCE", "changed")
    assert found_on_disk() == 0


@pytest.mark.parametrize("which", ["row", "column"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_reaches_its_row_or_column_alone(value, which):
    a, b = operands(75, 300, 90)
    place = (74, 299) if which == "row" else (299, 89)
    (a if which == "row" else b)[place] = value
    with np.errstate(invalid="ignore"):
        expected = a.astype(float) @ b.astype(float)
    found = computed(a, b)
    assert np.isfinite(expected).sum() == 74 * 90 if which == "row" else 75 * 89
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


def test_any_order_and_any_number_of_threads_give_the_same_bits(monkeypatch):
    a, b = operands(300, 256, 1000, "transposed")
    expected = computed(a, b)
    np.testing.assert_array_equal(computed(a, b, shuffled(1)), expected)
    for threads in (1, 2, 3):
        monkeypatch.setattr(strips, "cores", lambda count=threads: count)
        out = np.empty_like(expected)
        strips.multiply([(a, b, out, None)])
        np.testing.assert_array_equal(out, expected)


def test_arrays_live_as_long_as_who_computes_them(monkeypatch):
    """After Ctrl-C twice the caller does not wait for its helpers, and its arrays may go."""
    helpers = []
    monkeypatch.setattr(strips, "together", lambda threads, work, total, done: helpers.append(work))
    a, b = operands(64, 64, 256)
    out, bias, mask = np.empty((64, 256), np.float32), np.ones(256, np.float32), np.zeros((64, 32), np.uint8)
    arrays = [weakref.ref(x) for x in (a, b, out, bias, mask)]
    strips.multiply([(a, b, out, strips.ProductEpilogue(np.copy, bias, True, mask))])
    del a, b, out, bias, mask
    assert all(array() is not None for array in arrays)
    helpers.clear()
    assert not any(array() is not None for array in arrays)


def test_strips_cover_all_columns():
    for n in range(1, 1100):
        for width in (256, 512):
            parts = strips._columns(n, width)
            assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n))
            assert max(part.stop - part.start for part in parts) <= width


def bits(positive):
    """Rows of bits as a mask has them."""
    packed = np.packbits(positive, axis=-1, bitorder="little")
    return np.pad(packed, ((0, 0), (0, -(-positive.shape[1] // 128) * 16 - packed.shape[1])))


EDGES = (8, 40, 32), (9, 40, 33), (7, 17, 31), (64, 300, 256), (81, 300, 517), (70, 40, 128)


def check_bias_relu_and_mask(m, k, n):
    (a, b), rng = operands(m, k, n), np.random.default_rng(2)
    bias = rng.normal(size=n).astype(np.float32)
    plain = computed(a, b)
    assert_product(computed(a, b, epilogue=strips.ProductEpilogue(np.copy, bias)), a, b, bias.astype(float))
    for mask in (None, np.zeros_like(bits(plain > 0))):
        found = computed(a, b, shuffled(3), strips.ProductEpilogue(np.copy, bias, True, mask))
        np.testing.assert_array_equal(found, np.maximum(plain + bias, 0))
    np.testing.assert_array_equal(mask, bits(plain + bias > 0))
    kept = rng.random((m, n)) < 0.5
    found = computed(a, b, shuffled(4), strips.ProductEpilogue(np.copy, mask=bits(kept)))
    np.testing.assert_array_equal(found, np.where(kept, plain, 0))


@pytest.mark.parametrize("sizes", EDGES)
def test_bias_relu_and_mask(sizes):
    check_bias_relu_and_mask(*sizes)


def test_bias_relu_and_mask_where_sums_have_several_parts(several_parts):
    for m, _, n in EDGES[1:-1]:
        check_bias_relu_and_mask(m, 200, n)


def test_what_is_not_finite_through_bias_relu_and_mask():
    a, b = operands(64, 64, 256)
    a[0], a[1], b[:, 5] = np.nan, np.inf, np.abs(b[:, 5])
    plain, mask = computed(a, b), np.zeros((64, 32), np.uint8)
    found = computed(a, b, epilogue=strips.ProductEpilogue(np.copy, relu=True, mask=mask))
    np.testing.assert_array_equal(found, np.maximum(plain, 0))
    np.testing.assert_array_equal(mask, bits(plain > 0))
    found = computed(a, b, epilogue=strips.ProductEpilogue(np.copy, mask=np.zeros_like(mask)))
    np.testing.assert_array_equal(found, np.zeros_like(plain))  # NaN times 0 would be NaN


def test_relu_gives_no_negative_zero():
    """A sum that is too small for a number is -0; what divides by relu's result then has the other infinity."""
    a, b = np.zeros((64, 64), np.float32), np.full((64, 256), 1e-30, np.float32)
    a[:, -1] = -1e-30
    assert np.signbit(computed(a, b)).all()
    assert not np.signbit(computed(a, b, epilogue=strips.ProductEpilogue(np.copy, relu=True))).any()


@pytest.mark.parametrize(("bias", "mask"), [
    (np.ones(255, np.float32), None), (np.ones(256), None), (np.ones(512, np.float32)[::2], None),
    (None, np.ones((64, 16), np.uint8)), (None, np.ones((63, 32), np.uint8)), (None, np.ones((64, 32), np.int8)),
    (None, np.ones((64, 64), np.uint8)[:, ::2]), (None, np.broadcast_to(np.uint8(1), (64, 32))),
])  # fmt: skip
def test_other_arrays_are_refused(bias, mask):
    a, b = operands(64, 64, 256)
    with pytest.raises(ValueError, match=r"not those of float32\[64, 256\]"):
        computed(a, b, epilogue=strips.ProductEpilogue(np.copy, bias, True, mask))
    if bias is not None:
        with pytest.raises(ValueError, match=r"not those of float32\[64, 256\]"):
            computed(a, b, epilogue=strips.ProductEpilogue(np.copy, sums=bias))


def test_sums_that_may_not_be_written_are_refused():
    (a, b), sums = operands(64, 64, 256), np.broadcast_to(np.float32(1), (256,)).copy()
    sums.setflags(write=False)
    with pytest.raises(ValueError, match=r"sums float32\[256\] with strides \[4\] are not those"):
        computed(a, b, epilogue=strips.ProductEpilogue(np.copy, sums=sums))


def test_what_follows_is_done_by_numpy_where_blas_computes():
    for dtype, size in ((np.float64, 300), (np.float32, 20)):
        a = np.ones((size, size), dtype)
        found = product.product(a, a, None, strips.ProductEpilogue(lambda out: np.negative(out, out=out)))
        np.testing.assert_array_equal(found, np.full_like(a, -size))


def test_machine_code_is_there_before_threads_wait_for_it(machine_code, monkeypatch):
    """A step whose threads had waited for the compiler gave them a rest of ten seconds."""
    monkeypatch.undo()
    made = []
    monkeypatch.setattr(machine_code, "measured_here", lambda: True)
    monkeypatch.setattr(machine_code, "handed_out", lambda: made.append(1))
    assert strips._machine_code.__wrapped__() is machine_code
    assert made == [1]


SHAPES = {  # of X, and whether it is transposed
    "matrix": ((270, 300), False), "batch": ((3, 90, 300), False), "transposed": ((300, 270), True),
    "transposed batch": ((300, 3, 90), True), "one row in a batch": ((300, 1, 270), True),
}  # fmt: skip


def as_matrices(x, d, trans_x):
    """X [rows, K] and gradients [rows, N] in float64, and how a result of X's rows gets its shape back."""
    rows = x.reshape(x.shape[0], -1).T if trans_x else x.reshape(-1, x.shape[-1])
    back = (lambda g: g.T.reshape(x.shape)) if trans_x else (lambda g: g.reshape(x.shape))
    return rows.astype(float), d.reshape(len(rows), -1).astype(float), back


@pytest.mark.parametrize("trans_y", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("shape", SHAPES)
def test_large_operators_with_an_epilogue(shape, activation, trans_y, monkeypatch):
    used = []
    monkeypatch.setattr(product, "multiply", lambda of: used.append(len(of)) or strips.multiply(of))
    (size, trans_x), rng, n = SHAPES[shape], np.random.default_rng(0), 521
    x, y, bias = (rng.normal(size=s).astype(np.float32) for s in (size, (n, 300) if trans_y else (300, n), (1, n)))
    lead = size[1:] if trans_x else size[:-1]
    d, how = rng.normal(size=(*lead, n)).astype(np.float32), {"trans_x": trans_x, "trans_y": trans_y}
    rows, slopes, back = as_matrices(x, d, trans_x)
    w = (y.T if trans_y else y).astype(float)
    out, reserve = get_op("fused_gemm_epilogue").reference(x, y, bias, activation=activation, **how)
    z = (rows @ w + bias).reshape(d.shape)
    shares = 0.5 + 0.5 * np.vectorize(math.erf)(z / math.sqrt(2))
    expected = {"none": z, "relu": np.maximum(z, 0), "gelu": z * shares}
    np.testing.assert_allclose(out, expected[activation], atol=2e-4)
    if activation == "relu":
        np.testing.assert_array_equal(reserve.reshape(len(rows), -1), bits(out.reshape(len(rows), n) > 0))
    # the gradient, through a relu before
    above = rng.random(size) < 0.5
    mask = {} if activation == "gelu" else {"activation_grad": "relu_grad", "ReserveSpace": pack_mask(above)}
    DX, DY, DBias, _ = get_op("fused_gemm_epilogue_grad").reference(d, x, y, **mask, **how)
    np.testing.assert_allclose(DX, back(slopes @ w.T) * (above if mask else 1), atol=3e-4)
    np.testing.assert_allclose(DY, (slopes.T @ rows) if trans_y else (rows.T @ slopes), atol=3e-4)
    np.testing.assert_allclose(DBias, slopes.sum(axis=0), atol=2e-4)
    assert sum(used) == 3


def test_large_products_use_them(monkeypatch):
    used = []
    monkeypatch.setattr(product, "multiply", lambda of: used.append(1) or strips.multiply(of))
    a, b = operands(300, 300, 500)
    for out in (None, np.empty((300, 500), np.float32), np.empty((300, 1000), np.float32)[:, ::2]):
        found = product.product(a, b, out)
        assert_product(found, a, b)
        assert out is None or found is out
    assert len(used) == 2  # where the columns of the result have gaps, BLAS computes it


def refused():
    large = np.ones((256, 256), np.float32)
    few, out = np.ones((63, 256), np.float32), np.zeros((256, 256), np.float32)
    locked = out.copy()
    locked.setflags(write=False)
    yield "float64", (large.astype(float), large.astype(float), out.astype(float))
    yield "big-endian", (large.astype(">f4"), large.astype(">f4"), out.astype(">f4"))
    yield "another type of result", (large, large, out.astype(float))
    yield "few rows", (few, large.repeat(5, axis=1), np.zeros((63, 1280), np.float32))
    yield "little to do", (large[:, :128], large[:128], out)
    yield "few columns", (large, large[:, :255], out[:, :255])
    yield "little to do in short sums", (few.T[:, :15], few[:15], out)
    yield "no sums", (few.T[:, :0], few[:0], out)
    yield "rows that do not fit", (few.T, large, out)
    yield "a few columns of short sums", (few.T.repeat(9, axis=0), few[:, :16], np.zeros((2304, 16), np.float32))
    yield "an operand as result", (large, out, out)
    yield "a batch", (np.ones((2, 256, 256), np.float32), large, np.empty((2, 256, 256), np.float32))
    yield "a result of another shape", (large, large, np.empty((130, 256), np.float32))
    yield "a result that is read-only", (large, large, locked)
    yield "rows with gaps", (large, large, np.empty((256, 512), np.float32)[:, ::2])


@pytest.mark.parametrize(("why", "arrays"), list(refused()), ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_left_to_blas(why, arrays):
    assert not strips.faster(*arrays)


def test_what_is_taken(monkeypatch):
    for m, k, n in ((256, 256, 256), (64, 1024, 256), (256, 10, 1024), (256, 1024, 16), (4096, 64, 4)):
        a, b = operands(m, k, n)
        assert strips.faster(a, b, None)
        assert strips.faster(a.T.copy().T, b, np.empty((m, n + 1), np.float32)[:, :n])
    monkeypatch.setattr(strips, "_machine_code", lambda: None)
    assert not strips.faster(a, b, np.empty((m, n), np.float32))


@pytest.mark.parametrize("sizes", [*EDGES, (8, 256, 32), (9, 515, 64), (70, 1, 33), (300, 8, 70), (270, 70, 16)])
def test_sums_of_columns(sizes):
    """Beside a product, whichever strip comes first, and whatever the memory held before."""
    (a, b), frame = operands(*sizes, second="strided"), np.full(sizes[2] + 2, np.nan, np.float32)
    sums = frame[1:-1]

    def by_numpy(_):
        np.sum(b, axis=0, out=sums)

    assert_product(computed(a, b, shuffled(5), strips.ProductEpilogue(by_numpy, sums=sums)), a, b)
    expected, most = b.astype(float).sum(axis=0), np.abs(b).astype(float).sum(axis=0)
    assert (np.abs(sums - expected) <= 4 * np.sqrt(len(b)) * 2.0**-24 * most).all()
    assert np.isnan(frame[[0, -1]]).all()


def test_sums_of_columns_in_several_parts(several_parts):
    for sizes in ((300, 400, 200), (161, 97, 64)):
        test_sums_of_columns(sizes)


@pytest.mark.parametrize("columns", [1, 7, 8, 9, 16])
def test_few_columns_are_computed_as_the_transpose(columns):
    for m, k, layouts in ((256, 64, ("rows", "rows")), (300, 70, ("transposed", "rows")), (41, 9, ("strided",) * 2)):
        a, b = operands(m, k, columns, *layouts)
        bias = np.arange(columns, dtype=np.float32)
        found = computed(a, b, epilogue=strips.ProductEpilogue(lambda out, bias=bias: np.add(out, bias, out=out), bias))
        assert_product(found, a, b, bias.astype(float))


@pytest.mark.parametrize("n", [10, 300])
def test_prepared_products_read_their_operands_in_each_call(n):
    """What these hold now, and another operand in the place of one."""
    (a, b), other = operands(300, 200, n), operands(300, 200, n, "strided", seed=1)[0]
    out = np.empty((300, n), np.float32)
    run = strips.Strips([(a, b, out, None)])
    for factor in (1, 2):
        a *= factor
        run()
        assert_product(out, a, b)
    run.replace(0, 0, other)
    run()
    assert_product(out, other, b)
    negative = np.asfortranarray(-b)  # who calls keeps it
    run.replace(0, 1, negative)
    run.replace(0, 0, a)
    run()
    assert_product(out, a, -b)


def test_without_numba_or_on_another_processor_blas_computes(machine_code, monkeypatch):
    monkeypatch.undo()
    name, features = "znver4", {"avx512f": True}
    monkeypatch.setattr(machine_code, "get_host_cpu_name", lambda: name)
    monkeypatch.setattr(machine_code, "get_host_cpu_features", lambda: features)
    assert strips._machine_code.__wrapped__() is machine_code
    features = {}
    assert strips._machine_code.__wrapped__() is None
    name, features = "skylake-avx512", {"avx512f": True}
    assert strips._machine_code.__wrapped__() is None
    name = "znver4"
    monkeypatch.setitem(sys.modules, "numba", None)
    for module in [module for module in sys.modules if module.startswith("minigraph.kernels.cpu.compiled")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr("minigraph.kernels.cpu.compiled")
    assert strips._machine_code.__wrapped__() is None


def test_a_thread_that_computes_holds_its_memory(monkeypatch, machine_code):
    """At the end of the process thread-local memory goes, while a daemon thread may still be in machine code."""
    a, b = operands(64, 300, 512)
    out, computes = np.empty((64, 512), np.float32), machine_code.handed_out()

    def work(numbers, pieces, turns, address):
        memory = weakref.ref(strips._own.memory)
        strips._own.__dict__.clear()
        held = memory()
        assert held is not None
        assert held.__array_interface__["data"][0] == address
        return computes(numbers, pieces, turns, address)

    monkeypatch.setattr(machine_code, "handed_out", lambda: work)
    monkeypatch.setattr(strips, "cores", lambda: 1)
    strips.multiply([(a, b, out, None)])
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-3)
