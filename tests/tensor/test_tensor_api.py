"""Functions, operators and methods of variables against NumPy, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import (
    AttrError,
    DTypeError,
    KernelError,
    MinigraphError,
    ProgramError,
    ShapeError,
)
from tests.paddle import function_programs, waiting_programs
from tests.paddle.tensor_programs import CASES

A = np.array([[0.5, -1.5, 2.0], [3.0, 0.25, -0.75]])
B = np.array([[1.5, 2.0, 0.5], [-1.0, 4.0, 1.25]])
P = np.abs(A)
ROW = np.array([2.0, -0.5, 1.5])
CUBE = np.arange(24.0).reshape(2, 3, 4) - 7
K = np.array([[3, -2, 7], [0, 5, -1]])
J = np.array([[2, 2, -3], [1, 4, 6]])
T = np.array([[True, False, True], [False, False, True]])


def evaluate(build: Callable[..., Any], *arrays: np.ndarray, known: bool = True) -> Any:
    """What `build` makes of data variables, run on `arrays`; with known=False no size is declared."""
    main = static.Program()
    with static.program_guard(main, static.Program()):
        variables = [
            static.data(f"x{i}", a.shape if known else [None] * a.ndim, a.dtype) for i, a in enumerate(arrays)
        ]
        built = build(*variables)
    feed = {f"x{i}": a for i, a in enumerate(arrays)}
    values = static.Executor().run(main, feed=feed, fetch_list=built)
    return values if isinstance(built, (list, tuple)) else values[0]


def assert_same(actual: Any, expected: Any) -> None:
    """Shape, data type and, to the last digits, values."""
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-15)


FUNCTIONS = {
    "add": (lambda x, y: mg.add(x, y), lambda x, y: x + y, (A, B)),
    "subtract": (lambda x, y: mg.subtract(x, y), lambda x, y: x - y, (A, ROW)),
    "multiply": (lambda x, y: mg.multiply(x, y), lambda x, y: x * y, (ROW, A)),
    "divide": (lambda x, y: mg.divide(x, y), lambda x, y: x / y, (A, B)),
    "pow": (lambda x, y: mg.pow(x, y), lambda x, y: x**y, (P, B)),
    "pow number": (lambda x: mg.pow(x, 3), lambda x: x**3, (A,)),
    "maximum": (lambda x, y: mg.maximum(x, y), np.maximum, (A, B)),
    "maximum number": (lambda x: mg.maximum(x, 0.3), lambda x: np.maximum(x, 0.3), (A,)),
    "minimum": (lambda x, y: mg.minimum(x, y), np.minimum, (A, ROW)),
    "matmul": (lambda x, y: mg.matmul(x, y), np.matmul, (A, CUBE)),
    "matmul transpose_x": (lambda x, y: mg.matmul(x, y, transpose_x=True), lambda x, y: x.T @ y, (A, B)),
    "matmul transpose_y": (lambda x, y: mg.matmul(x, y, transpose_y=True), lambda x, y: x @ y.T, (A, B)),
    "matmul vector": (lambda x, y: mg.matmul(x, y), np.matmul, (A, ROW)),
    "exp": (lambda x: mg.exp(x), np.exp, (A,)),
    "log": (lambda x: mg.log(x), np.log, (P,)),
    "log1p": (lambda x: mg.log1p(x), np.log1p, (P,)),
    "sqrt": (lambda x: mg.sqrt(x), np.sqrt, (P,)),
    "rsqrt": (lambda x: mg.rsqrt(x), lambda x: 1 / np.sqrt(x), (P,)),
    "square": (lambda x: mg.square(x), np.square, (A,)),
    "abs": (lambda x: mg.abs(x), np.abs, (A,)),
    "sign": (lambda x: mg.sign(x), np.sign, (A,)),
    "sin": (lambda x: mg.sin(x), np.sin, (A,)),
    "cos": (lambda x: mg.cos(x), np.cos, (A,)),
    "tanh": (lambda x: mg.tanh(x), np.tanh, (A,)),
    "reciprocal": (lambda x: mg.reciprocal(x), lambda x: 1 / x, (A,)),
    "floor": (lambda x: mg.floor(x), np.floor, (A,)),
    "ceil": (lambda x: mg.ceil(x), np.ceil, (A,)),
    "round": (lambda x: mg.round(x), lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), (A,)),
    "isnan": (lambda x: mg.isnan(x), np.isnan, (np.array([1.0, np.nan, np.inf]),)),
    "isinf": (lambda x: mg.isinf(x), np.isinf, (np.array([1.0, np.nan, np.inf]),)),
    "isfinite": (lambda x: mg.isfinite(x), np.isfinite, (np.array([1.0, np.nan, np.inf]),)),
    "clip": (lambda x: mg.clip(x, -1, 1.5), lambda x: np.clip(x, -1, 1.5), (A,)),
    "clip min": (lambda x: mg.clip(x, min=0.25), lambda x: np.maximum(x, 0.25), (A,)),
    "clip ints": (lambda x: mg.clip(x, 0, 5), lambda x: np.clip(x, 0, 5), (K,)),
    "scale": (lambda x: mg.scale(x, 2.0, 1.0, bias_after_scale=False), lambda x: (x + 1) * 2, (A,)),
    "sum": (lambda x: mg.sum(x), np.sum, (CUBE,)),
    "sum axis": (lambda x: mg.sum(x, axis=-1, keepdim=True), lambda x: x.sum(-1, keepdims=True), (CUBE,)),
    "sum axes": (lambda x: mg.sum(x, axis=[0, 2]), lambda x: x.sum((0, 2)), (CUBE,)),
    "sum no axes": (lambda x: mg.sum(x, axis=[]), np.sum, (CUBE,)),
    "sum of truth": (lambda x: mg.sum(x, axis=0), lambda x: x.sum(0), (T,)),
    "sum dtype": (lambda x: mg.sum(x, dtype="float64"), lambda x: np.float64(x.sum()), (K,)),
    "mean": (lambda x: mg.mean(x, axis=1, keepdim=True), lambda x: x.mean(1, keepdims=True), (CUBE,)),
    "max": (lambda x: mg.max(x, axis=1), lambda x: x.max(1), (CUBE,)),
    "min": (lambda x: mg.min(x), np.min, (CUBE,)),
    "prod": (lambda x: mg.prod(x, axis=0), lambda x: x.prod(0), (A,)),
    **{
        f"{name} as {dtype}": (
            lambda x, f=name, d=dtype: getattr(mg, f)(x, 1, dtype=d) if f != "cumprod" else mg.cumprod(x, 1, d),
            lambda x, f=name, d=dtype: getattr(np, f)(x.astype(d), 1, dtype=d), (K,),
        )
        for name in ("sum", "prod", "nansum", "cumsum", "cumprod")
        for dtype in ("int32", "int64", "float32", "float64") if name != "nansum" or dtype[0] == "f"
    },
    "cumsum": (lambda x: mg.cumsum(x, axis=1), lambda x: x.cumsum(1), (A,)),
    "cumsum flat": (lambda x: mg.cumsum(x), np.cumsum, (A,)),
    "argmax": (lambda x: mg.argmax(x, axis=0), lambda x: x.argmax(0), (A,)),
    "argmax keepdim": (
        lambda x: mg.argmax(x, axis=1, keepdim=True, dtype="int32"),
        lambda x: x.argmax(1, keepdims=True).astype("int32"), (A,),
    ),
    "argmin": (lambda x: mg.argmin(x), lambda x: x.argmin(), (A,)),
    "equal": (lambda x, y: mg.equal(x, y), np.equal, (K, J)),
    "not_equal": (lambda x: mg.not_equal(x, 5), lambda x: x != 5, (K,)),
    "less_than": (lambda x, y: mg.less_than(x, y), np.less, (A, ROW)),
    "less_equal": (lambda x, y: mg.less_equal(x, y), np.less_equal, (A, B)),
    "greater_than": (lambda x: mg.greater_than(x, 0.25), lambda x: x > 0.25, (A,)),
    "greater_equal": (lambda x: mg.greater_equal(x, 0.25), lambda x: x >= 0.25, (A,)),
    "logical_and": (lambda x, y: mg.logical_and(x, y), np.logical_and, (T, T[::-1])),
    "logical_or": (lambda x, y: mg.logical_or(x, y), np.logical_or, (T, T[::-1])),
    "logical_xor": (lambda x, y: mg.logical_xor(x, y), np.logical_xor, (T, T[::-1])),
    "logical_not": (lambda x: mg.logical_not(x), np.logical_not, (T,)),
    "where": (lambda c, x, y: mg.where(c, x, y), np.where, (T, A, ROW)),
    "where number": (lambda c, x: mg.where(c, x, 0), lambda c, x: np.where(c, x, 0), (T, A)),
    "where numbers": (lambda c: mg.where(c, 1, 2.5), lambda c: np.where(c, 1.0, 2.5).astype("f4"), (T,)),
    "cast": (lambda x: mg.cast(x, "int32"), lambda x: x.astype("int32"), (A,)),
    "reshape": (lambda x: mg.reshape(x, [0, -1, 2]), lambda x: x.reshape(2, 6, 2), (CUBE,)),
    "transpose": (lambda x: mg.transpose(x, [2, 0, 1]), lambda x: x.transpose(2, 0, 1), (CUBE,)),
    "squeeze": (lambda x: mg.squeeze(x, axis=[0, 2]), lambda x: x[0, :, 0], (ROW[None, :, None],)),
    "squeeze one": (lambda x: mg.squeeze(x, axis=-1), lambda x: x[..., 0], (ROW[None, :, None],)),
    "unsqueeze": (lambda x: mg.unsqueeze(x, axis=1), lambda x: x[:, None], (A,)),
    "unsqueeze two": (lambda x: mg.unsqueeze(x, [0, -1]), lambda x: x[None, ..., None], (A,)),
    "flatten": (lambda x: mg.flatten(x, start_axis=1), lambda x: x.reshape(2, 12), (CUBE,)),
    "concat": (lambda x, y: mg.concat([x, y], axis=-1), lambda x, y: np.concatenate([x, y], -1), (A, B)),
    "stack": (lambda x, y: mg.stack((x, y), axis=1), lambda x, y: np.stack([x, y], 1), (A, B)),
    "expand": (lambda x: mg.expand(x, [4, -1, 3]), lambda x: np.broadcast_to(x, (4, 2, 3)), (A,)),
    "tile": (lambda x: mg.tile(x, [2, 1]), lambda x: np.tile(x, (2, 1)), (A,)),
    "gather": (lambda x, i: mg.gather(x, i, axis=1), lambda x, i: x[:, i], (A, np.array([2, 0, 2, 1]))),
    "gather rows": (lambda x, i: mg.gather(x, i), lambda x, i: x[i], (A, np.array([1, 0]))),
    "tril": (lambda x: mg.tril(x, -1), lambda x: np.tril(x, -1), (CUBE,)),
    "triu": (lambda x: mg.triu(x, diagonal=1), lambda x: np.triu(x, 1), (CUBE,)),
    "full_like": (lambda x: mg.full_like(x, 2.5), lambda x: np.full_like(x, 2.5), (A,)),
    "zeros_like": (lambda x: mg.zeros_like(x, dtype="int32"), lambda x: np.zeros(x.shape, "int32"), (A,)),
    "ones_like": (lambda x: mg.ones_like(x), np.ones_like, (A,)),
    "assign": (lambda x: mg.assign(x), np.copy, (A,)),
}  # fmt: skip

OPERATORS = {
    "x + y": (lambda x, y: x + y, (A, ROW)),
    "x - y": (lambda x, y: x - y, (A, B)),
    "x * y": (lambda x, y: x * y, (A, B)),
    "x / y": (lambda x, y: x / y, (A, B)),
    "x ** y": (lambda x, y: x**y, (P, B)),
    "x @ y": (lambda x, y: x @ y, (A, CUBE)),
    "x + 2": (lambda x: x + 2, (A,)),
    "2 + x": (lambda x: 2 + x, (A,)),
    "x - 2.5": (lambda x: x - 2.5, (A,)),
    "2.5 - x": (lambda x: 2.5 - x, (A,)),
    "x * 3": (lambda x: x * 3, (A,)),
    "3 * x": (lambda x: 3 * x, (A,)),
    "x / 3": (lambda x: x / 3, (A,)),
    "1 / x": (lambda x: 1 / x, (A,)),
    "x ** 2": (lambda x: x**2, (A,)),
    "x ** 0.5": (lambda x: x**0.5, (P,)),
    "2 ** x": (lambda x: 2**x, (A,)),
    "-x": (lambda x: -x, (A,)),
    "abs": (lambda x: abs(x), (A,)),
    "int + 3": (lambda x: x + 3, (K,)),
    "3 - int": (lambda x: 3 - x, (K,)),
    "int * -2": (lambda x: x * -2, (K,)),
    "int ** 2": (lambda x: x**2, (K,)),
    "int + large": (lambda x: x + (2**60 + 1), (K,)),
    "-int": (lambda x: -x, (K,)),
    "uint8 + 250": (lambda x: x + np.uint8(250), (np.array([1, 2, 9], np.uint8),)),
    "9 - uint8": (lambda x: np.uint8(9) - x, (np.array([1, 2, 9], np.uint8),)),
    "bool + 1": (lambda x: x + 1, (T,)),
    "x == y": (lambda x, y: x == y, (K, J)),
    "x != 5": (lambda x: x != 5, (K,)),
    "x < y": (lambda x, y: x < y, (A, B)),
    "x <= 0.5": (lambda x: x <= 0.5, (A,)),
    "0.5 < x": (lambda x: 0.5 < x, (A,)),  # noqa: SIM300
    "x >= y": (lambda x, y: x >= y, (A, A)),
    "int < 2.5": (lambda x: x < 2.5, (K,)),
    "& and |": (lambda x, y: (x & y) | (x ^ y), (T, T[::-1])),
    "~x": (lambda x: ~x, (T,)),
    "int + float": (lambda x, y: x + y, (K, A)),
    "float * int": (lambda x, y: x * y, (A, K)),
    "bool * float": (lambda x, y: x * y, (T, A)),
    "int32 + int64": (lambda x, y: x + y, (K.astype(np.int32), J)),
    "x + array": (lambda x: x + np.array([1.0, 2.0, 3.0]), (A,)),
    "array * x": (lambda x: np.array([[1.0], [2.0]]) * x, (A,)),
    "array @ x": (lambda x: np.eye(2) @ x, (A,)),
    "x @ array": (lambda x: x @ np.arange(3.0), (A,)),
    "x - int array": (lambda x: x - np.array([1, 2, 3]), (A,)),
    "numpy number": (lambda x: np.float64(2.0) * x + np.int64(3), (A,)),
    "0-d array": (lambda x: x * np.array(1.5), (A,)),
}  # fmt: skip

INDICES = {
    "[1]": (lambda x: x[1], CUBE),
    "[-1]": (lambda x: x[-1], CUBE),
    "[1, 2]": (lambda x: x[1, 2], CUBE),
    "[1, 2, -4]": (lambda x: x[1, 2, -4], CUBE),
    "[:]": (lambda x: x[:], CUBE),
    "[...]": (lambda x: x[...], CUBE),
    "[()]": (lambda x: x[()], CUBE),
    "[1:]": (lambda x: x[1:], CUBE),
    "[:, :2]": (lambda x: x[:, :2], CUBE),
    "[:, -2:]": (lambda x: x[:, -2:], CUBE),
    "[:, -100:]": (lambda x: x[:, -100:], CUBE),
    "[:, :100]": (lambda x: x[:, :100], CUBE),
    "[:, 2:1]": (lambda x: x[:, 2:1], CUBE),
    "[..., ::2]": (lambda x: x[..., ::2], CUBE),
    "[..., 1::2]": (lambda x: x[..., 1::2], CUBE),
    "[..., ::-1]": (lambda x: x[..., ::-1], CUBE),
    "[..., 2::-1]": (lambda x: x[..., 2::-1], CUBE),
    "[..., :1:-1]": (lambda x: x[..., :1:-1], CUBE),
    "[..., -1:0:-2]": (lambda x: x[..., -1:0:-2], CUBE),
    "[None]": (lambda x: x[None], CUBE),
    "[:, None]": (lambda x: x[:, None], CUBE),
    "[..., None]": (lambda x: x[..., None], CUBE),
    "[None, 1, ..., None, 0]": (lambda x: x[None, 1, ..., None, 0], CUBE),
    "[0, 1:, None, ::-1]": (lambda x: x[0, 1:, None, ::-1], CUBE),
    "[numpy int]": (lambda x: x[np.int64(1), np.int32(-1) :], CUBE),
    "[list]": (lambda x: x[:, [2, 0, 0]], CUBE),
    "[array]": (lambda x: x[np.array([[1, 0], [0, 0]])], CUBE),
    "[1:, ..., list]": (lambda x: x[1:, ..., [3, -1]], CUBE),
    "[None, list, None]": (lambda x: x[None, [1], None], CUBE),
    "0-d [None]": (lambda x: x[None, ..., None], np.array(3.5)),
    "empty [::-1]": (lambda x: x[::-1], np.zeros((0, 2))),
}  # fmt: skip


@pytest.mark.parametrize("known", [True, False], ids=["sizes known", "sizes unknown"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str, known: bool) -> None:
    ours, numpy, arrays = FUNCTIONS[name]
    assert_same(evaluate(ours, *arrays, known=known), numpy(*arrays))


@pytest.mark.parametrize("known", [True, False], ids=["sizes known", "sizes unknown"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name: str, known: bool) -> None:
    mg.set_default_dtype("float64")
    expression, arrays = OPERATORS[name]
    assert_same(evaluate(expression, *arrays, known=known), expression(*arrays))


@pytest.mark.parametrize("known", [True, False], ids=["sizes known", "sizes unknown"])
@pytest.mark.parametrize("name", INDICES)
def test_index(name: str, known: bool) -> None:
    index, array = INDICES[name]
    assert_same(evaluate(index, array, known=known), index(array))


def test_index_by_variable() -> None:
    rows = np.array([[1, 0, 1], [-1, 0, 0]])
    assert_same(evaluate(lambda x, i: x[i], CUBE, rows), CUBE[rows])
    assert_same(evaluate(lambda x, i: x[:, i], CUBE, np.array(2)), CUBE[:, 2])
    assert_same(evaluate(lambda x, i: x[1:, i, None, ::2], CUBE, rows), CUBE[1:, rows][:, :, :, None, ::2])


def test_every_function_and_method_is_covered() -> None:
    covered = {name.split()[0] for name in FUNCTIONS} | {"split", "full", "zeros", "ones", "arange", "is_tensor"}
    covered |= {*mg.tensor.random.__all__, "empty", "empty_like", "randperm", "multinomial"}  # test_random.py
    covered |= {name.split()[0] for name in CASES} | {name.split()[0] for name in function_programs.CASES}
    covered |= {"masked_select", "nonzero", "unique", "unique_consecutive"}  # test_bounded.py
    covered |= {*waiting_programs.CASES}  # tests/paddle
    covered |= {"as_strided", "atleast_1d", "broadcast_shape", "finfo", "iinfo", "is_complex", "is_floating_point",
                "is_integer", "cholesky", "unfold"}  # test_fitting.py, test_linalg.py
    covered |= {"nextafter"}  # tests/ops/test_op_values.py
    assert set(mg.tensor.__all__) - covered == set()
    assert set(mg.math_op_patch.FROM_NOTHING) <= {*mg.tensor.__all__, *mg.linalg.__all__}


def test_methods_are_the_functions() -> None:
    x = static.data("x", [2, 3], "float64")
    for name in set(mg.tensor.__all__) - set(mg.math_op_patch.FROM_NOTHING):
        assert getattr(type(x), name) is getattr(mg.tensor, name)
    assert_same(evaluate(lambda x: x.sum(axis=0).astype("float32"), A), A.sum(0).astype("float32"))
    assert_same(evaluate(lambda x: x.T, CUBE), CUBE.T)


def test_split() -> None:
    for pieces, cuts in ((2, [1]), ([1, 1], [1]), ([-1, 1], [1])):
        values = evaluate(lambda x, pieces=pieces: mg.split(x, pieces, axis=0), A)
        for value, expected in zip(values, np.split(A, cuts), strict=True):
            assert_same(value, expected)
    values = evaluate(lambda x: x.split([1, -1], axis=-1), CUBE, known=False)
    assert_same(values[1], CUBE[..., 1:])


def test_creation() -> None:
    def build() -> list[Any]:
        return [
            mg.full([2, 3], 1.5), mg.full([], 7, "int64"), mg.full(3, True, "bool"), mg.zeros([0, 2]),
            mg.ones([2], "float64"), mg.arange(5), mg.arange(1, 4, 0.5), mg.arange(5, 0, -2, "float64"),
            mg.assign(2.5), mg.assign([[1, 2]]), mg.assign(np.array([1.5])), mg.assign(np.float64(3.0)),
        ]  # fmt: skip

    expected = [
        np.full((2, 3), 1.5, "f4"), np.array(7), np.full(3, True), np.zeros((0, 2), "f4"), np.ones(2), np.arange(5),
        np.arange(1, 4, 0.5).astype("f4"), np.arange(5.0, 0, -2), np.float32([2.5]), np.array([[1, 2]]),
        np.array([1.5], "f4"), np.array([3.0], "f4"),
    ]  # fmt: skip
    for value, wanted in zip(evaluate(build), expected, strict=True):
        assert_same(value, wanted)
    mg.set_default_dtype("float64")
    assert evaluate(lambda: mg.zeros([1])).dtype == np.float64


def test_assign_to_an_existing_variable() -> None:
    def build(x: Any) -> Any:
        target = mg.zeros([2, 3], "float64")
        assert mg.assign(x, target) is target
        assert mg.assign(np.full((2, 3), 4.0), target) is target
        return target

    assert_same(evaluate(build, A), np.full((2, 3), 4.0))


@pytest.mark.parametrize(
    ("build", "ops"),
    [
        (lambda x: x + 2, ["scale"]),
        (lambda x: x - 2, ["scale"]),
        (lambda x: 2 - x, ["scale"]),
        (lambda x: 2 * x, ["scale"]),
        (lambda x: -x, ["scale"]),
        (lambda x: x**2, ["pow"]),
        (lambda x: x / 3, ["fill_constant", "elementwise_div"]),
        (lambda x: 3 / x, ["fill_constant", "elementwise_div"]),
        (lambda x: x + np.ones(3), ["assign_value", "elementwise_add"]),
        (lambda x: x[0, 1:], ["slice"]),
        (lambda x: x.sum() > 0, ["reduce_sum", "fill_constant", "greater_than"]),
    ],
)
def test_what_is_emitted(build: Callable[..., Any], ops: list[str]) -> None:
    build(static.data("x", [2, 3], "float64"))
    assert [op.type for op in static.default_main_program().ops] == ops


def test_names_of_results() -> None:
    x = static.data("x", [2, 3])
    assert [(x + 1).name, (x @ x.T).name, mg.mean(x).name] == ["tmp_0", "tmp_1", "mean_0.tmp_0"]
    assert mg.exp(x, name="e").name == "e.tmp_0"
    assert mg.exp(x).name == "exp_0.tmp_0"


def test_division_by_a_number_is_exact() -> None:
    x = np.arange(1.0, 200.0)
    assert (evaluate(lambda x: x / 3.7, x) == x / 3.7).all()
    assert (evaluate(lambda x: x / 49.0, x.astype("f4")) == x.astype("f4") / np.float32(49.0)).all()


def test_int_beside_float_becomes_the_default_type() -> None:
    assert_same(evaluate(lambda x: x + 0.5, K), (K + 0.5).astype("f4"))
    assert_same(evaluate(lambda x: x / 2, K), (K / 2).astype("f4"))
    assert_same(evaluate(lambda x, y: x / y, K, J), (K.astype("f4") / J.astype("f4")))


@pytest.mark.parametrize(
    ("build", "numpy"),
    [
        (lambda x: 2 - x / 3 + x**3, lambda x: 2 - x / 3 + x**3),
        (lambda x: 1 / (x * x + 1), lambda x: 1 / (x * x + 1)),
        (lambda x: 2**x, lambda x: 2**x),
        (lambda x: x[1, ::-2] * x[:, [0, 0]].sum(), lambda x: x[1, ::-2] * x[:, [0, 0]].sum()),
        (lambda x: np.array([[1.0], [3.0]]) * x, lambda x: np.array([[1.0], [3.0]]) * x),
    ],
)
def test_gradients_of_operators(build: Callable[..., Any], numpy: Callable[..., Any]) -> None:
    def grad(x: Any) -> Any:
        x.stop_gradient = False
        return static.gradients(mg.sum(build(x)), x)

    (actual,) = evaluate(grad, A)
    differences = np.zeros_like(A)
    for i in np.ndindex(A.shape):
        step = np.zeros_like(A)
        step[i] = 1e-5
        differences[i] = (numpy(A + step).sum() - numpy(A - step).sum()) / 2e-5
    np.testing.assert_allclose(actual, differences, atol=1e-8)


def test_detach_stops_the_gradient() -> None:
    def grad(x: Any) -> Any:
        x.stop_gradient = False
        return static.gradients(mg.sum(x * x.detach()), x)

    assert_same(evaluate(grad, A)[0], A)


def test_iteration() -> None:
    assert_same(evaluate(lambda x: mg.stack([row.sum() for row in x]), A), A.sum(1))
    with pytest.raises(ProgramError, match="known only at run time"):
        list(static.data("u", [None, 2]))
    with pytest.raises(ProgramError, match="0-d"):
        list(static.data("s", []))


def test_variables_are_hashable_and_compare_with_none() -> None:
    x, y = static.data("x", [2]), static.data("y", [2])
    assert {x: 1, y: 2}[y] == 2
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711
    assert not static.default_main_program().ops


def raises_of(error: type[MinigraphError], build: Callable[..., Any], *arrays: np.ndarray) -> str:
    with pytest.raises(error) as info:
        evaluate(build, *arrays)
    assert __file__.split("/")[-1] in str(info.value), "the user's line is missing"
    return str(info.value)


ERRORS = [
    (ProgramError, lambda x: mg.exp(3.0), "exp: x must be a Variable, is a float: 3.0"),
    (ProgramError, lambda x: mg.exp([x]), "exp: x must be a Variable, is a list"),
    (ProgramError, lambda x: mg.matmul(x, A), "matmul: y must be a Variable, is a ndarray"),
    (ProgramError, lambda x: mg.add(1, 2), "add: x must be a Variable, is a int: 1"),
    (ProgramError, lambda x: x + "a", "+: y must be a Variable, a number or a NumPy array, is a str: 'a'"),
    (ProgramError, lambda x: "a" + x, "+: x must be a Variable"),
    (ProgramError, lambda x: x == "a", "equal: y must be"),
    (ProgramError, lambda x: mg.concat(x), "concat: x must be a list of Variables"),
    (ProgramError, lambda x: mg.concat([]), "concat: x is an empty list"),
    (ProgramError, lambda x: mg.stack([x, 1]), "stack: x[1] must be a Variable"),
    (ProgramError, lambda x: mg.gather(x, [0, 1]), "gather: index must be a Variable"),
    (ProgramError, lambda x: mg.full([2], "a"), "full: fill_value must be a number"),
    (AttrError, lambda x: mg.full([2], x), "full: x0: f64[2,3] stands where a number is needed"),
    (ShapeError, lambda x: mg.full([-1], 1.0), "every size of a constant must be known"),
    (AttrError, lambda x: mg.arange(x), "arange: x0: f64[2,3] stands where a number is needed"),
    (ProgramError, lambda x: mg.assign("a"), "assign: x must be"),
    (ProgramError, lambda x: mg.assign([[1], [2, 3]]), "assign: x is no array"),
    (ProgramError, lambda x: mg.assign(np.zeros(5000)), "too large for a constant"),
    (DTypeError, lambda x: mg.assign(np.array([1 + 2j])), "x must hold numbers"),
    (ProgramError, lambda x: mg.clip(x, "0"), "clip: min must be a number or None"),
    (ProgramError, lambda x: mg.clip(x, x, x), "clip: a bound is x0: f64[2,3], not one number"),
    (AttrError, lambda x: mg.where(x > 0, x), "x and y are both needed"),
    (ProgramError, lambda x: mg.where(True, x, x), "where: condition must be a Variable"),
    (DTypeError, lambda x: mg.where(x, x, x), "Condition must be bool"),
    (DTypeError, lambda x: x & x, "compare first, in parentheses"),
    (DTypeError, lambda x: ~x, "~ takes a bool variable"),
    (DTypeError, lambda x: x.astype("int8") < 300, "300 does not fit int8"),
    (AttrError, lambda x: x.astype("int64") ** -1, "is negative"),
    (AttrError, lambda x: mg.sum(x, axis="0"), "attribute axis"),
    (ShapeError, lambda x: mg.sum(x, axis=2), "axis 2 is out of range for rank 2"),
    (ShapeError, lambda x: x + mg.ones([2, 2], "float64"), "cannot broadcast axis -1"),
    (ShapeError, lambda x: x @ x, "inner sizes differ"),
    (ShapeError, lambda x: mg.reshape(x, [4, 2]), "differ in the number of elements"),
    (AttrError, lambda x: mg.split(x, x), "split: x0: f64[2,3] stands where a number is needed"),
    (ProgramError, lambda x: mg.exp(x, name=3), "name must be a str"),
    (AttrError, lambda x: mg.cast(x, "complex64"), "data type complex64 is not supported"),
    (ShapeError, lambda x: x[2], "index 2 is out of range for X axis 0 of size 2"),
    (ShapeError, lambda x: x[:, -4], "index -4 is out of range for X axis 1 of size 3"),
    (ShapeError, lambda x: x[0, 0, 0], "3 indices for x0: f64[2,3] of rank 2"),
    (ProgramError, lambda x: x[..., 0, ...], "more than one Ellipsis"),
    (ProgramError, lambda x: x[::0], "step 0"),
    (ProgramError, lambda x: x[1.0], "an index is an int, slice, None, Ellipsis or int Variable, not a float"),
    (ProgramError, lambda x: x[True], "not a bool"),
    (ProgramError, lambda x: x["a"], "not a str"),
    (ProgramError, lambda x: x[1.5:], "a slice takes ints"),
    (ProgramError, lambda x: x[: mg.arange(2)], "a slice takes ints"),
    (ProgramError, lambda x: x[T], "an index array must hold ints"),
    (DTypeError, lambda x: x[x > 0, 0], "must hold ints"),
    (ProgramError, lambda x: bool(x > 0), "bool() of variable"),
    (ProgramError, lambda x: 1 if mg.sum(x) > 0 else 0, "bool() of variable"),
    (ProgramError, lambda x: float(mg.sum(x)), "float() of variable"),
    (ProgramError, lambda x: int(mg.sum(x)), "int() of variable"),
    (ProgramError, lambda x: np.asarray(x), "numpy.array() of variable"),
    (ProgramError, lambda x: range(mg.sum(x)), "int() of variable"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "build", "text"), ERRORS, ids=[f"{i}: {e[2]}" for i, e in enumerate(ERRORS)])
def test_error(error: type[MinigraphError], build: Callable[..., Any], text: str) -> None:
    assert text in raises_of(error, build, A)


def test_assignment_by_index_is_refused() -> None:
    x = static.data("x", [2, 3])
    with pytest.raises(ProgramError, match=r"variable x: f32\[2,3\] cannot be assigned to by index"):
        x[0] = 1.0
    assert not static.default_main_program().ops


def test_index_out_of_range_at_run_time() -> None:
    with pytest.raises(ShapeError, match="index 2 is out of range"):
        evaluate(lambda x: x[2], A, known=False)
    with pytest.raises(KernelError, match=r"index 3 is out of range \[-2, 2\)"):
        evaluate(lambda x, i: x[i], A, np.array([0, 3]))


def test_variables_of_two_programs_do_not_mix() -> None:
    x = static.data("x", [2, 3])
    with static.program_guard(static.Program(), static.Program()):
        y = static.data("y", [2, 3])
    mixtures = (
        lambda: x + y, lambda: mg.concat([x, y]), lambda: x @ y.T, lambda: x == y, lambda: mg.where(x > 0, x, y),
    )  # fmt: skip
    for build in mixtures:
        with pytest.raises(ProgramError, match="belongs to another program"):
            build()


@pytest.mark.parametrize(("name", "share"), [("max", False), ("min", False), ("amax", True), ("amin", True)])
def test_equal_extrema_have_the_gradients_of_paddle(name: str, share: bool) -> None:
    """Seen with Paddle 2.6.2."""
    program = mg.static.Program()
    with mg.static.program_guard(program):
        x = mg.static.data("x", [2, 3], "float64")
        x.stop_gradient = False
        (grad,) = mg.static.gradients([getattr(mg, name)(x, axis=1)], [x])
    values = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0]]) * (1 if "max" in name else -1)
    (found,) = mg.static.Executor().run(program, feed={"x": values}, fetch_list=[grad])
    np.testing.assert_array_equal(found, [[0.5, 0.5, 0], [1 / 3] * 3] if share else [[1, 1, 0], [1, 1, 1]])


@pytest.mark.parametrize("index", [
    lambda i, j: (slice(None), i, 0), lambda i, j: (i, slice(None), j), lambda i, j: (0, slice(None), j),
    lambda i, j: (None, slice(None), i, j), lambda i, j: (i, None, j), lambda i, j: (slice(None), i, None, j),
    lambda i, j: (slice(1, None), i[:, None], j), lambda i, j: (Ellipsis, i, j), lambda i, j: (i, slice(1, None), None),
])  # fmt: skip
def test_arrays_beside_slices_are_numpys(index: Callable[..., Any]) -> None:
    x, i, j = np.arange(36.0).reshape(3, 3, 4), np.array([1, 0]), np.array([-1, 2])
    found = static.Executor().run(
        feed={"x": x}, fetch_list=[static.data("x", [None, 3, 4], "float64")[index(mg.assign(i), mg.assign(j))]]
    )[0]
    np.testing.assert_array_equal(found, x[index(i, j)])
