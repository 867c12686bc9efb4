"""Every operator on its samples: exported, checked by onnx, computed by onnxruntime, and read back."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

import minigraph.onnx
from minigraph.errors import MinigraphError, ShapeError
from minigraph.onnx.control import CONTROL
from minigraph.onnx.registry import FORMS
from minigraph.opdef import OPS
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import FLOATS, TensorType
from tests.support import opcheck
from tests.support.grades import graded
from tests.support.onnx_runtime import checked, computed, served

EXACT = 1e-10  # of float64, relative to the largest number

# Operators of float64 that onnxruntime has in float32 alone; onnx's evaluator computes them.
NO_FLOAT64 = {
    "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "atan2", "gelu", "determinant",
    "fused_gemm_epilogue",
}  # fmt: skip  # the last one with gelu
ERF = {"erf", "gelu", "fused_gemm_epilogue"}  # whose float64 that evaluator, too, rounds to float32
# Samples that ONNX cannot say, by operator and number.
REFUSED = {
    "memory_efficient_attention": {7: "CuSeqlensQ", 8: "Blocks", 9: "Blocks"},
    "attention_sight": {3: "CuSeqlensQ", 4: "Blocks", 5: "Blocks"},
    "uniform_random_like": {0: "random numbers", 1: "random numbers"},
    "fused_elementwise": {1: "elementwise_mul_grad", 3: "layer_norm_grad"},
}  # fmt: skip
TRAINED = {"ReserveSpace", "DX", "DW", "DBias"}  # outputs that only a training reads

# Operators without a form, and why.
TRAINING = "it belongs to training"
SERIES = "ONNX has no such function"
MATRICES = "ONNX factors no matrices"
SCANS = "ONNX has sums along an axis alone"
NO_COUNTERPART = {
    **dict.fromkeys([n for n, o in OPS.items() if n.endswith("_grad") or "optimizer" in o.traits], TRAINING),
    **dict.fromkeys([f"foreach_{n}" for n in ("add", "sub", "mul", "div", "max", "sqrt", "abs", "sign", "cast",
                                               "where", "norm_ratio")], TRAINING),
    **dict.fromkeys(["check_finite_and_unscale", "update_loss_scaling"], TRAINING),
    **dict.fromkeys(["erfinv", "lgamma", "polygamma", "i0e", "i1e", "gcd", "nextafter"], SERIES),
    **dict.fromkeys(["solve", "triangular_solve", "slogdeterminant", "cholesky", "lu", "pivots_to_matrix", "qr",
                     "eigh", "svd", "pinv"], MATRICES),
    **dict.fromkeys(["cumprod", "linear_recurrence", "logcumsumexp", "cummax", "cummin"], SCANS),
    **dict.fromkeys(["uniform_random", "gaussian_random", "gaussian_random_like", "truncated_gaussian_random",
                     "random_key"], "ONNX draws other random numbers"),
    **dict.fromkeys([n for n, o in OPS.items() if "collective" in o.traits], "a file is of one rank"),
    **dict.fromkeys(["py_func", "check_true", "print"], "the host does it"),
    "deferred": "the host builds its operators in a run",
}  # fmt: skip


def test_every_operator_has_a_form_or_a_reason():
    assert FORMS.keys() | CONTROL.keys() | NO_COUNTERPART.keys() == OPS.keys()
    assert not NO_COUNTERPART.keys() & (FORMS.keys() | CONTROL.keys())


@cache
def calls_of(op_type: str) -> list[opcheck.Call]:
    """Its samples in inference."""
    calls = opcheck.samples(OPS[op_type])
    for call in calls:
        call.attrs.update({"is_test": True} if "is_test" in call.attrs else {})
    return calls


def exported(call: opcheck.Call, path: Path, free: Collection[int] = ()):
    """(names of outputs by slot, the program) of a file of this one operator; `free` axes have no size."""

    def hidden(x: np.ndarray) -> TensorType:
        t = type_of(x)
        return t.with_shape(-1 if i in free else s for i, s in enumerate(t.shape, -t.ndim))

    with pytest.MonkeyPatch.context() as patched:
        type_of = opcheck.type_of
        patched.setattr(opcheck, "type_of", hidden)
        program, _, outputs = opcheck.built(call)
    named = {slot: [v.name for v in vs] for slot, vs in outputs.items() if slot not in TRAINED}
    program.to_onnx(path, [name for names in named.values() for name in names])
    return named, program


def check(call: opcheck.Call, path: Path, compare) -> None:
    """Export a call, and compare what others compute from the file with the reference in float64."""
    refusal = REFUSED.get(call.opdef.type, {}).get(call.number)
    if refusal is not None:
        with pytest.raises(MinigraphError, match=f"(?s)ONNX has no counterpart: .*{refusal}.*built at .*opcheck"):
            exported(call, path)
        return
    named, program = exported(call, path)
    message = checked(path)
    feed = {v.name: opcheck.feed_of(call)[v.name] for v in message.graph.input}
    results, who = computed(path, feed)
    if who != "onnxruntime":
        assert call.opdef.type in NO_FLOAT64 and any(x.dtype == np.float64 for x in feed.values())
        compare = partial(compare, exact=1e-7) if call.opdef.type in ERF else compare
    expected = opcheck.reference(call.as_dtype("float64"))
    places = [(slot, i) for slot, names in named.items() for i in range(len(names))]
    for (slot, i), result in zip(places, results, strict=True):
        compare(call, result, np.asarray(expected[slot][i]))
    scope = Scope()
    loaded = minigraph.onnx.load(path, scope)
    fetches = [name for names in named.values() for name in names]
    ours = Executor().run(program, opcheck.feed_of(call), fetches, scope=Scope())
    again = Executor().run(loaded, feed, list(loaded.fetched), scope=scope)
    for a, b in zip(ours, again, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        unit = 1e-12 if a.dtype == np.float64 else 2e-7 if a.dtype == np.float32 else 1e-2
        np.testing.assert_allclose(b.astype(float), a.astype(float), rtol=unit, atol=unit)


def within(call: opcheck.Call, result: np.ndarray, expected: np.ndarray, exact: float = EXACT) -> None:
    assert result.shape == expected.shape
    if result.dtype not in FLOATS:
        np.testing.assert_array_equal(result, expected)
        return
    allowed = opcheck.tolerance(result.dtype, expected, call)
    if result.dtype == np.float64:
        allowed = np.full(expected.shape, exact * np.abs(expected[np.isfinite(expected)]).max(initial=1.0))
    result, expected = result.astype(float), expected.astype(float)
    same = (result == expected) | (np.isnan(result) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0, np.abs(result - expected))
    assert (error <= allowed).all(), f"differs by {error.max()}"


FORMED = [op_type for op_type in FORMS if OPS[op_type].samples_function is not None]


@pytest.mark.parametrize(
    ("op_type", "most"), graded(itertools.product(FORMED, (1, None)), now=lambda _, most: most is not None)
)
def test_others_compute_the_reference(op_type, most, tmp_path):
    """All samples, and the first in float32, too, since some nodes are float32's alone; a sweep takes all."""
    for call in calls_of(op_type) if most else ():
        _named(call, "float64", tmp_path)
    for call in [c for c in calls_of(op_type) if c.float_places][:most]:
        _named(call, "float32", tmp_path)


@pytest.mark.parametrize(
    ("op_type", "most"), graded(itertools.product(FORMED, (3, None)), now=lambda _, most: most is not None)
)
def test_sizes_may_be_free(op_type, most, tmp_path):
    """All that the operator can do without, at once and the first: the file has none of the samples' sizes."""
    for call in calls_of(op_type)[:most]:
        is_empty = any(x.size == 0 for xs in call.inputs.values() for x in xs)  # Reshape finds no size of nothing
        if is_empty or call.number in REFUSED.get(op_type, {}):
            continue
        call = call.as_dtype("float32")
        rank = max((x.ndim for xs in call.inputs.values() for x in xs), default=0)
        for axes in ({*range(-rank, 0)}, {-rank}):
            named = freed(call, tmp_path / "free.onnx", axes)
            feed = {v.name: opcheck.feed_of(call)[v.name] for v in checked(tmp_path / "free.onnx").graph.input}
            expected = opcheck.reference(call.as_dtype("float64"))
            with np.errstate(all="ignore"):
                results = iter(served(tmp_path / "free.onnx", feed))
            for slot, names in named.items():
                for array, _ in zip(expected[slot], names, strict=True):
                    _noted(within, call, "float32", next(results), np.asarray(array))


def freed(call: opcheck.Call, path: Path, axes: Collection[int]) -> dict[str, list[str]]:
    """Outputs of a file with free sizes; with its own ones where the rank depends on them."""
    try:
        return exported(call, path, axes)[0]
    except ShapeError as refusal:
        if "known only at run time" not in str(refusal):
            raise
        return exported(call, path)[0]


@pytest.mark.parametrize("op_type", FORMED)
def test_16_bits_are_storage(op_type, tmp_path):
    """The first samples; a sweep takes all."""
    for call in [c for c in calls_of(op_type) if c.float_places][:2]:
        for dtype in ("float16", "bfloat16"):
            _named(call, dtype, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("op_type", FORMED)
def test_16_bits_in_all_samples(op_type, tmp_path):
    for call in [c for c in calls_of(op_type) if c.float_places]:
        if (op_type, call.number) == ("expand", 4):
            continue  # onnxruntime 1.32 expands to no rows as to one, behind a Cast
        for dtype in ("float16", "bfloat16"):
            _named(call, dtype, tmp_path)


def _named(call: opcheck.Call, dtype: str, folder: Path) -> None:
    with np.errstate(all="ignore"):
        _noted(check, call, dtype, folder / "one.onnx", within)


def _noted(check, call: opcheck.Call, dtype: str, *rest) -> None:
    """A failure says which sample it was."""
    try:
        check(call.as_dtype(dtype), *rest)
    except BaseException as problem:
        problem.add_note(f"{call} in {dtype} {call.attrs}")
        raise
