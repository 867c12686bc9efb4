"""GPU checks of matrix products: shapes, epilogues in all forms, NaNs, TF32, the pull request's matrix."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from minigraph import cuda
from minigraph.compiler import CompiledProgram
from minigraph.compiler.strategy import BuildStrategy
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.ops.matmul.gemm_epilogue import pack_mask, unpack_mask
from minigraph.types import as_dtype, float16
from tests.gpu.check import (
    DTYPES,
    STEP,
    Check,
    assert_like_cpu,
    assert_near,
    call_of,
    check_call,
    each,
    normal,
    on_gpu,
)
from tests.support import opcheck

SHAPES = [
    ((1, 1), (1, 1)), ((127, 131), (131, 1)), ((127, 1), (1, 137)), ((1, 131), (131, 137)), ((127, 131), (131, 137)),
    ((0, 131), (131, 7)), ((5, 0), (0, 7)), ((5, 131), (131, 0)), ((1024, 1000), (1000, 512)), ((2, 4096), (4096, 3)),
    ((3, 127, 31), (31, 37)), ((3, 17, 31), (3, 31, 37)), ((1, 17, 31), (5, 31, 7)), ((4, 1, 17, 31), (1, 3, 31, 7)),
    ((2, 3, 17, 31), (3, 31, 7)), ((131,), (131,)), ((131,), (5, 131, 7)), ((5, 7, 131), (131,)), ((0, 3, 4), (4, 5)),
    ((5000, 40), (40, 10)),
]  # fmt: skip
COLUMNS = (1, 7, 8, 10, 100, 128, 136, 4096)
FORMS = {
    "none": ("none", False),
    "relu": ("relu", False),
    "erf": ("gelu", False),
    "tanh": ("gelu", True),
}
INNER = 96
NEAR = {"float64": 1e-12, "float32": 5e-7}  # of results, per root of the inner size
SMALL = (8, 100)  # columns for compute-sanitizer


def checks() -> Iterator[Check]:
    for dtype in DTYPES:
        yield Check(f"products/matmul/{dtype}", partial(_matmuls, dtype), product=True)
        yield Check(f"products/matmul_grad/{dtype}", partial(_gradients, dtype), product=True)
        for form, columns in itertools.product(FORMS, COLUMNS):
            title = f"{form}/{columns}/{dtype}"
            small = columns in SMALL and dtype in ("float32", "bfloat16")
            yield Check(
                f"epilogues/forward/{title}", partial(_forward, form, columns, dtype), small, True
            )
            yield Check(
                f"epilogues/backward/{title}", partial(_backward, form, columns, dtype), small, True
            )
        yield Check(f"epilogues/nan/{dtype}", partial(_nan_stays, dtype), product=True)
    for form, dtype in itertools.product(FORMS, ("float32", "float16", "bfloat16")):
        yield Check(f"epilogues/variants/{form}/{dtype}", partial(_variants, form, dtype), product=True)
        yield Check(f"epilogues/autotune/{form}/{dtype}", partial(_autotuned, form, dtype), product=True)
    for dtype in DTYPES:
        yield Check(f"products/variants/{dtype}", partial(_product_variants, dtype), product=True)
        yield Check(f"products/in float32/{dtype}", partial(_in_float32, dtype), product=True)
        yield Check(f"products/accumulate/{dtype}", partial(_accumulated, dtype), product=True)
    yield Check("products/tf32", _tf32, product=True)
    for activation, training in itertools.product(("relu", "gelu"), (False, True)):
        for dtype in ("float32", "float16"):
            title = f"{activation}-{'training' if training else 'inference'}-{dtype}"
            yield Check(
                f"matrix/{title}",
                partial(_matrix, activation, training, dtype, (64, 32, 768)),
                product=True,
            )
            yield Check(
                f"matrix/small-{title}",
                partial(_matrix, activation, training, dtype, (3, 5, 8)),
                product=True,
            )


def _scale(x: np.ndarray, y: np.ndarray, inner: int) -> float:
    """What a sum of `inner` products is large like."""
    return (
        4
        * max(1.0, inner**0.5)
        * max(1.0, np.abs(x).max(initial=0))
        * max(1.0, np.abs(y).max(initial=0))
    )


def _matmuls(dtype: str) -> None:
    def cases():
        for sx, sy in SHAPES:
            x, y = normal(*sx), normal(*sy, seed=1)
            inner = sx[-1]
            yield (
                f"{sx} {sy}",
                partial(
                    check_call, call_of("matmul", {"X": x, "Y": y}), dtype, _scale(x, y, inner)
                ),
            )
            if len(sx) > 1 and len(sy) > 1:
                for tx, ty in ((True, False), (False, True), (True, True)):
                    a = np.swapaxes(x, -1, -2).copy() if tx else x
                    b = np.swapaxes(y, -1, -2).copy() if ty else y
                    call = call_of("matmul", {"X": a, "Y": b}, trans_x=tx, trans_y=ty)
                    yield (
                        f"{sx} {sy} {tx} {ty}",
                        partial(check_call, call, dtype, _scale(x, y, inner)),
                    )

    each(cases())


def _gradients(dtype: str) -> None:
    def cases():
        for sx, sy in SHAPES:
            x, y = normal(*sx), normal(*sy, seed=1)
            d = normal(*np.matmul(x, y).shape, seed=2)
            count = max(x.size, y.size, d.size) ** 0.5
            flags = (
                itertools.product((False, True), repeat=2)
                if len(sx) > 1 and len(sy) > 1
                else [(False, False)]
            )
            for tx, ty in flags:
                a = np.swapaxes(x, -1, -2).copy() if tx else x
                b = np.swapaxes(y, -1, -2).copy() if ty else y
                call = call_of(
                    "matmul_grad", {"X": a, "Y": b, "Out_grad": d}, trans_x=tx, trans_y=ty
                )
                yield f"{sx} {sy} {tx} {ty}", partial(check_call, call, dtype, 16 * max(1.0, count))

    each(cases())


# fused operators


def _numbers(*shape: int, seed: int) -> np.ndarray:
    """float64 numbers that all types hold exactly."""
    return (np.round(normal(*shape, seed=seed) * 8) / 8).astype(float)


def _close(
    found: np.ndarray, cpu: np.ndarray, exact: np.ndarray, dtype: str, what: str, inner: int
) -> None:
    assert found.dtype == as_dtype(dtype), f"{what} is {found.dtype}"
    if dtype in NEAR:
        assert_near(found, exact, NEAR[dtype] * max(1.0, inner**0.5), what)
    else:
        assert_like_cpu(found, cpu, exact, dtype, what)


def _forward(form: str, columns: int, dtype: str) -> None:
    def cases():
        for (tx, ty), keep, rows in itertools.product(
            itertools.product((False, True), repeat=2), (False, True), ((37,), (1,), (2, 3), (128,))
        ):
            if not (tx and len(rows) > 1):
                yield (
                    f"{rows} trans {tx} {ty} reserve {keep}",
                    partial(_forward_one, form, columns, dtype, rows, tx, ty, keep),
                )

    each(cases())


def _forward_one(
    form: str, columns: int, dtype: str, rows: tuple[int, ...], tx: bool, ty: bool, keep: bool
) -> None:
    activation, tanh = FORMS[form]
    X, Y, Bias = (
        _numbers(*rows, INNER, seed=1),
        _numbers(INNER, columns, seed=2) / 4,
        _numbers(columns, seed=3),
    )
    arrays = {"X": X.T.copy() if tx else X, "Y": Y.T.copy() if ty else Y, "Bias": Bias}
    attrs = {"trans_x": tx, "trans_y": ty, "activation": activation, "approximate": tanh}
    needs = ("Out", "ReserveSpace") if keep and activation != "none" else ("Out",)
    run = partial(emitted, "fused_gemm_epilogue", arrays, needs=needs, **attrs)
    exact, cpu = run("float64"), run(dtype)
    with on_gpu():
        found, again = run(dtype), run(dtype)
    for slot in needs:
        assert found[slot].tobytes() == again[slot].tobytes(), f"{slot} differs from run to run"
    _close(found["Out"], cpu["Out"], exact["Out"], dtype, "Out", INNER)
    if "ReserveSpace" not in needs:
        return
    if activation == "gelu":
        _close(
            found["ReserveSpace"],
            cpu["ReserveSpace"],
            exact["ReserveSpace"],
            dtype,
            "ReserveSpace",
            INNER,
        )
        return
    positive = unpack_mask(found["ReserveSpace"], columns)
    assert found["ReserveSpace"].shape == exact["ReserveSpace"].shape
    assert np.array_equal(positive, found["Out"] > 0), "the mask does not tell where Out is positive"


def emitted(
    op_type: str, arrays: dict[str, np.ndarray], dtype: str, needs: tuple[str, ...],
    strategy: BuildStrategy | None = None, **attrs: Any,
) -> dict[str, np.ndarray]:  # fmt: skip
    """{output slot: array} of one operator that has the outputs `needs` and no others."""
    block = opcheck.Program().global_block()
    typed = {s: a if a.dtype == np.uint8 else a.astype(as_dtype(dtype)) for s, a in arrays.items()}
    variables = {
        s: block.create_var(s, type=opcheck.type_of(a), is_data=True) for s, a in typed.items()
    }
    opcheck.Builder(block).emit(op_type, needs=needs, **variables, **attrs)
    outputs = {slot: vs[0] for slot, vs in block.ops[-1].outputs.items() if slot in needs}
    program = CompiledProgram(block.program, strategy) if strategy else block.program
    fetched = opcheck.Executor().run(program, typed, list(outputs.values()), scope=opcheck.Scope())
    return dict(zip(outputs, fetched, strict=True))


def _backward(form: str, columns: int, dtype: str) -> None:
    """`columns` are those of X, where the derivative of the activation below meets the product."""

    def cases():
        for (tx, ty), needs, rows in itertools.product(
            itertools.product((False, True), repeat=2), (("DX", "DY", "DBias"), ("DY",), ("DX",), ("DBias",)),
            ((37,), (2, 3), (1,), (0,)),
        ):  # fmt: skip
            if not (tx and len(rows) > 1):
                title = f"{rows} trans {tx} {ty} {'+'.join(needs)}"
                yield title, partial(_backward_one, form, columns, dtype, rows, tx, ty, needs)
        if form == "none":
            for n in (1, 3):
                title = f"of {n} columns"
                yield (
                    title,
                    partial(
                        _backward_one,
                        form,
                        columns,
                        dtype,
                        (37,),
                        False,
                        False,
                        ("DX", "DY", "DBias"),
                        n,
                    ),
                )

    each(cases())


def _backward_one(
    form: str,
    columns: int,
    dtype: str,
    rows: tuple[int, ...],
    tx: bool,
    ty: bool,
    needs: tuple[str, ...],
    n: int = 40,
) -> None:
    activation, tanh = FORMS[form]
    X, Y, DOut, Z = (
        _numbers(*s, seed=i)
        for i, s in enumerate(((*rows, columns), (columns, n), (*rows, n), (*rows, columns)))
    )
    arrays = {"DOut": DOut, "X": X.T.copy() if tx else X, "Y": Y.T.copy() if ty else Y}
    if activation != "none":
        kept = Z.T.copy() if tx else Z
        arrays["ReserveSpace"] = pack_mask(kept > 0) if activation == "relu" else kept
    kind = f"{activation}_grad" if activation != "none" else "none"
    attrs = {"trans_x": tx, "trans_y": ty, "activation_grad": kind, "approximate": tanh}
    run = partial(emitted, "fused_gemm_epilogue_grad", arrays, needs=needs, **attrs)
    exact, cpu = run("float64"), run(dtype)
    with on_gpu():
        found, again = run(dtype), run(dtype)
    for slot in needs:
        assert found[slot].tobytes() == again[slot].tobytes(), f"{slot} differs from run to run"
        _close(found[slot], cpu[slot], exact[slot], dtype, slot, max(n, 40))


def _nan_stays(dtype: str) -> None:
    """A NaN in X, Y or Bias reaches Out through every activation, with and without ReserveSpace."""

    def one(form: str, columns: int, keep: bool, where: str) -> None:
        activation, tanh = FORMS[form]
        arrays = {
            "X": _numbers(5, 16, seed=1),
            "Y": _numbers(16, columns, seed=2),
            "Bias": _numbers(columns, seed=3),
        }
        arrays[where].reshape(-1)[0] = np.nan
        needs = ("Out", "ReserveSpace") if keep else ("Out",)
        with on_gpu():
            out = emitted(
                "fused_gemm_epilogue", arrays, dtype, needs, activation=activation, approximate=tanh
            )["Out"]
        expected = np.zeros((5, columns), bool)
        expected[(0,) if where == "X" else (slice(None), 0)] = True
        found = np.isnan(out.astype(float))
        assert np.array_equal(found, expected), (
            f"{found.sum()} NaNs in Out, {expected.sum()} expected"
        )

    each(
        (
            f"{form} {columns} {'reserve' if keep else ''} {where}",
            partial(one, form, columns, keep, where),
        )
        for form in FORMS
        for columns in (8, 10, 128)
        for keep in ([False, True] if form != "none" else [False])
        for where in ("X", "Y", "Bias")
    )


# every way to compute the same


@contextmanager
def _only(number: int) -> Iterator[None]:
    """Operators record one variant instead of a choice: this one, or their last."""
    choose = Binder.choose

    def record(binder: Binder, variants: Mapping[str, Any]) -> None:
        names = list(variants)
        name = names[min(number, len(names) - 1)]
        choose(binder, {name: variants[name]})

    Binder.choose = record
    try:
        yield
    finally:
        Binder.choose = choose


def _variants(form: str, dtype: str) -> None:
    """Each variant of forward and backward, where another would run by itself."""

    def one(number: int, columns: int) -> None:
        with _only(number):
            for keep in (False, True):
                _forward_one(form, columns, dtype, (37,), False, False, keep)
            for ty in (False, True):
                _backward_one(form, columns, dtype, (37,), False, ty, ("DX", "DY", "DBias"))

    each(
        (f"variant {number} of {columns} columns", partial(one, number, columns))
        for number in range(3)
        for columns in (136, 13)
    )


def _product_variants(dtype: str) -> None:
    """Kernels for few columns where cuBLASLt would run, and the other way round."""
    for number in (0, 1):
        with _only(number):
            _matmuls(dtype)
            _gradients(dtype)


def _autotuned(form: str, dtype: str) -> None:
    """What is chosen by times is as right, keeps a NaN, and is not timed again by another plan."""
    strategy = BuildStrategy(autotune=True)
    if importlib.util.find_spec("cupy") is None:
        return  # a stub in place of the GPU has nothing to time

    def run() -> dict[str, dict[str, np.ndarray]]:
        with on_gpu():
            return {t: emitted(t, a, dtype, n, strategy, **attrs) for t, (a, n, attrs) in calls.items()}

    def trial(self: Any, steps: Any) -> Any:
        raise AssertionError("something is timed again")

    activation, tanh = FORMS[form]
    X, Y, Bias, DOut = (_numbers(*s, seed=i) for i, s in enumerate(((264, 96), (96, 136), (136,), (264, 136))))
    kept = {"Out", "ReserveSpace"} if activation != "none" else {"Out"}
    grad = {"DOut": DOut, "X": X, "Y": Y}
    if activation != "none":
        grad["ReserveSpace"] = pack_mask(X > 0) if activation == "relu" else X
    kind = f"{activation}_grad" if activation != "none" else "none"
    calls = {
        "fused_gemm_epilogue": (
            {"X": X, "Y": Y / 4, "Bias": Bias}, tuple(kept), {"activation": activation, "approximate": tanh}
        ),
        "fused_gemm_epilogue_grad": (
            grad, ("DX", "DY", "DBias"), {"activation_grad": kind, "approximate": tanh}
        ),
    }  # fmt: skip
    found = run()
    lab = importlib.import_module("minigraph.kernels.cuda.device.lab").Lab
    measured, lab.trial = lab.trial, trial
    try:
        again = run()
    finally:
        lab.trial = measured
    for op_type, (arrays, needs, attrs) in calls.items():
        exact, cpu = (emitted(op_type, arrays, t, needs, **attrs) for t in ("float64", dtype))
        for slot in needs:
            assert found[op_type][slot].tobytes() == again[op_type][slot].tobytes(), f"{slot} differs"
            if exact[slot].dtype != np.uint8:
                _close(found[op_type][slot], cpu[slot], exact[slot], dtype, slot, 264)
    X[0, 0] = np.nan
    out = run()["fused_gemm_epilogue"]["Out"]
    assert np.isnan(out[0].astype(float)).all(), "a NaN is lost"


# other types of results


def _in_float32(dtype: str) -> None:
    """Sums of 16-bit operands as they are; others rounded to float32 at the end."""

    def one(sx: tuple[int, ...], sy: tuple[int, ...]) -> None:
        call = call_of("matmul", {"X": normal(*sx), "Y": normal(*sy, seed=1)}, out_dtype="float32")
        typed = call.as_dtype(as_dtype(dtype))
        exact = np.matmul(*(typed.inputs[slot][0].astype(float) for slot in ("X", "Y")))
        with on_gpu():
            (found,) = opcheck.executed(typed)["Out"]
        assert found.dtype == np.float32
        assert_near(found, exact, 5e-7 * max(1.0, sx[-1] ** 0.5), "Out")

    each((f"{sx} {sy}", partial(one, sx, sy)) for sx, sy in SHAPES)


def _accumulated(dtype: str) -> None:
    """Products added in place over several runs: float32 for 16-bit operands, and the operands' own type."""

    def one(sx: tuple[int, ...], sy: tuple[int, ...], kept: str) -> None:
        block = opcheck.Program().global_block()
        x, y = (block.create_var(n, s, dtype, is_data=True) for n, s in (("x", sx), ("y", sy)))
        acc = block.create_var("acc", (sx[-1], sy[-1]), kept, persistable=True)
        opcheck.Builder(block).emit("matmul_accumulate", x, y, acc, trans_x=True, out={"Out": acc})
        scope, exact = opcheck.Scope(), 64 * normal(sx[-1], sy[-1], seed=9)
        exact = (scope.arrays.setdefault("acc", exact.astype(as_dtype(kept)))).astype(float)
        with on_gpu():
            exe = opcheck.Executor()
            for step in range(4):
                feed = {n: normal(*s, seed=2 * step + i).astype(as_dtype(dtype))
                        for i, (n, s) in enumerate((("x", sx), ("y", sy)))}  # fmt: skip
                (found,) = exe.run(block.program, feed, [acc], scope=scope)
                flat = [a.astype(float).reshape(-1, a.shape[-1]) for a in feed.values()]
                exact = exact + flat[0].T @ flat[1]
        near = {"float64": 1e-12, "float32": 2e-6, "float16": 4e-3, "bfloat16": 3e-2}[kept]
        assert_near(found, exact, near * 256, "the accumulator")

    kinds = {dtype, "float32"} if as_dtype(dtype).itemsize == 2 else {dtype}
    shapes = [((37, 40), (37, 24)), ((3, 17, 8), (3, 17, 5)), ((1, 131), (1, 137)), ((0, 4), (0, 5))]
    each((f"{sx} {sy} {k}", partial(one, sx, sy, k)) for sx, sy in shapes for k in sorted(kinds))


def _tf32() -> None:
    """ "high" rounds operands to 10 bits, "highest" does not, and both are plans of their own."""
    x, y = normal(256, 512, seed=1), normal(512, 128, seed=2)
    exact = x.astype("float32").astype(float) @ y.astype("float32").astype(float)
    errors = {}
    with on_gpu():
        for precision in ("highest", "high", "highest"):
            cuda.set_float32_matmul_precision(precision)
            try:
                out = emitted("matmul", {"X": x, "Y": y}, "float32", ("Out",))["Out"]
            finally:
                cuda.set_float32_matmul_precision("highest")
            errors[precision] = float(np.linalg.norm(out - exact) / np.linalg.norm(exact))
    assert errors["highest"] < 2e-6, f"true float32 errs by {errors['highest']:.2g}"
    assert 2e-5 < errors["high"] < 2e-3, f"TF32 errs by {errors['high']:.2g}, 3e-4 is its size"


# the acceptance matrix of Paddle PR #39437


def _network(sizes: tuple[int, int, int]) -> Any:
    """The test module that builds the network, with these sizes: batch, length, hidden."""
    module = importlib.import_module("tests.passes.test_fuse_gemm_epilogue")
    module.BATCH, module.LENGTH, module.HIDDEN = sizes
    return module


@cache
def _exact(activation: str, training: bool, sizes: tuple[int, int, int]) -> list[np.ndarray]:
    m = _network(sizes)
    program, fetches = m.build(activation, training, "float64")
    return m.results(program, fetches, fuse=False)


def _matrix(activation: str, training: bool, dtype: str, sizes: tuple[int, int, int]) -> None:
    """Fused and unfused on the GPU against the CPU in float64; fused errs at most twice as much as unfused."""
    m = _network(sizes)
    try:
        exact = _exact(activation, training, sizes)
        program, fetches = m.build(activation, training, dtype)
        with on_gpu(m):
            off, on = (
                m.results(program, fetches, fuse=False),
                m.results(program, fetches, fuse=True),
            )
            assert "fused_gemm_epilogue" in {
                op.type for op in m.compiled(program).program_for(tuple(fetches)).ops
            }
        if sizes[2] <= 64:
            cpu = m.results(program, fetches, fuse=False)
            for name, c, a, x in zip(fetches, cpu, off, exact, strict=True):
                assert_like_cpu(a, c, x, dtype, f"{name} unfused")
        for name, a, b, x in zip(fetches, off, on, exact, strict=True):
            assert a.dtype == b.dtype == as_dtype(dtype)
            assert np.isfinite(b.astype(float)).all(), f"{name} is not finite"
            if dtype == "float32":
                assert_near(b / np.max(np.abs(x)), x / np.max(np.abs(x)), 3e-5, name)
            else:
                assert_like_cpu(b, a, x, dtype, name)
                largest = float(np.max(np.abs(x)))
                error = float(np.max(np.abs(b.astype(float) - x)))
                assert error <= max(0.02 * largest, 64 * STEP[float16] * largest + 1.2e-7), (
                    f"{name} errs by {error:.3g}"
                )
    finally:
        _network((3, 5, 8))
