"""GPU checks of every operator on its own samples: values in all types, gradients, random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import numpy as np

import minigraph.ops  # noqa: F401
from minigraph.errors import MinigraphError
from minigraph.kernels.cuda.record.call import every_call
from minigraph.kernels.cuda.record.calls import Launch
from minigraph.opdef import OPS, OpDef
from minigraph.runtime import seeds
from minigraph.runtime.cuda.bind import bind_program
from minigraph.types import FLOATS, as_dtype, bfloat16, float16, float64
from tests.gpu.check import (
    DTYPES,
    Check,
    assert_like_cpu,
    assert_near,
    call_of,
    check_call,
    each,
    on_gpu,
    rounded,
)
from tests.support import opcheck
from tests.support.opcheck import Call

INTS = ("int64", "int32", "int16", "int8", "uint8", "bool")
SEED = 20221  # of random operators, on both places
GRADIENTS = ("float64", "float32", "bfloat16")
NEAR = {"float64": 1e-11, "float32": 2e-5}  # gradients, relative to the largest one
PRODUCTS = ("matmul", "matmul_grad", "fused_gemm_epilogue", "fused_gemm_epilogue_grad")
SANITIZED = ("float32", "bfloat16")
GAPS = {"c_allreduce_coalesced"}  # a bucket travels as a whole, and nobody reads what lies between its arrays


def checks() -> Iterator[Check]:
    for opdef in OPS.values():
        if opdef.samples_function is None:
            continue
        product = opdef.type in PRODUCTS
        floats = any(c.float_places for c in samples(opdef.type))
        for dtype in DTYPES if floats else DTYPES[:1]:
            small = "control" not in opdef.traits and (dtype in SANITIZED or not floats)
            yield Check(
                f"ops/{opdef.type}/{dtype}", partial(_samples, opdef.type, dtype), product=product
            )
            if small:
                yield Check(
                    f"kernels/{opdef.type}/{dtype}", partial(_few, opdef.type, dtype), True, product,
                    unwritten=opdef.type in GAPS,
                )
        if floats and "optimizer" not in opdef.traits and "random" not in opdef.traits:
            yield Check(f"ints/{opdef.type}", partial(_ints, opdef.type))
        if _differentiable(opdef):
            for dtype in GRADIENTS:
                yield Check(
                    f"grads/{opdef.type}/{dtype}",
                    partial(_gradients, opdef.type, dtype),
                    product=product,
                )
    for op_type in ("uniform_random", "gaussian_random", "truncated_gaussian_random", "dropout"):
        for dtype in DTYPES:
            yield Check(f"random/{op_type}/{dtype}", partial(_random, op_type, dtype))


@cache
def samples(op_type: str) -> list[Call]:
    return opcheck.samples(OPS[op_type])


def _samples(op_type: str, dtype: str) -> None:
    seeds.seed(SEED)
    calls = [c for c in samples(op_type) if dtype == "float64" or c.float_places]
    each((str(c), partial(check_call, c, dtype)) for c in calls)


def _few(op_type: str, dtype: str) -> None:
    """Samples that together launch every kernel of the operator, chosen without a GPU."""
    seeds.seed(SEED)
    seen: set[str] = set()
    chosen = []
    for call in samples(op_type):
        launched = kernels(rounded(call, dtype))
        if launched - seen:
            chosen.append(call)
            seen |= launched
    each((str(c), partial(check_call, c, dtype)) for c in chosen or samples(op_type)[:1])


def kernels(call: Call) -> set[str]:
    """Names of the functions that the GPU form of a call launches."""
    program, _, outputs = opcheck.built(call)
    types = {name: opcheck.type_of(x) for name, x in opcheck.feed_of(call).items()}
    bound = bind_program(program, types, [v.name for vs in outputs.values() for v in vs])
    return {
        c.function if isinstance(c, Launch) else getattr(c, "epilogue", type(c).__name__)
        for c in every_call(bound.binder.calls)
    }


def _ints(op_type: str) -> None:
    """The samples with small positive integers and with booleans, where the operator takes them and the CPU too."""
    cases = []
    for call in samples(op_type):
        for dtype in INTS:
            typed = call.with_inputs(
                lambda x, dtype=dtype: _as_ints(x, dtype) if x.dtype in FLOATS else x
            )
            try:
                opcheck.inferred_types(typed)
                opcheck.executed(typed)
            except (MinigraphError, AssertionError, TypeError):
                continue  # not for this type
            cases.append((f"{call} {dtype}", partial(check_call, typed)))
    if cases:
        each(cases)


def _as_ints(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bool":
        return x > 0
    return (1 + np.abs(np.round(3 * np.nan_to_num(x, posinf=2, neginf=1))) % 7).astype(dtype)


def _differentiable(opdef: OpDef) -> bool:
    return bool(
        opdef.differentiable and opdef.grad_function and "random" not in opdef.traits
        and any(_has_gradient(c) for c in samples(opdef.type))
    )  # fmt: skip


def _has_gradient(call: Call) -> bool:
    all_double = all(call.inputs[s][i].dtype == float64 for s, i in call.float_places)
    return bool(call.float_places and all_double and opcheck.differentiable_outputs(call))


def _gradients(op_type: str, dtype: str) -> None:
    each((str(c), partial(_gradient, c, dtype)) for c in samples(op_type) if _has_gradient(c))


def _gradient(call: Call, dtype: str) -> None:
    """Gradients of a weighted sum of the outputs with respect to all float inputs."""
    rng = np.random.default_rng(call.number)
    slots = opcheck.differentiable_outputs(call)
    shapes = {
        s: [np.shape(x) for x in xs] for s, xs in opcheck.reference(call).items() if s in slots
    }
    typed = call.as_dtype(dtype)
    outputs = opcheck.inferred_types(typed)
    weights = {
        s: [rng.normal(size=shape).astype(outputs[s][0].dtype) for shape in shapes[s]]
        for s in slots
    }
    exact = opcheck.program_gradients(
        typed.as_dtype("float64"),
        {s: [w.astype(float) for w in ws] for s, ws in weights.items()},
        call.float_places,
    )
    with on_gpu():
        found = opcheck.program_gradients(typed, weights, call.float_places)
    cpu = (
        opcheck.program_gradients(typed, weights, call.float_places) if dtype not in NEAR else found
    )
    for place, f, c, x in zip(call.float_places, found, cpu, exact, strict=True):
        if dtype in NEAR:
            assert_near(f, x, NEAR[dtype], f"gradient of {place[0]}[{place[1]}]")
        else:
            assert_like_cpu(f, c, x, dtype, f"gradient of {place[0]}[{place[1]}]")


# random numbers: the CPU's


def _random(op_type: str, dtype: str) -> None:
    each(
        (f"shape {shape} seed {seed}", partial(_drawn, op_type, dtype, shape, seed))
        for shape in ((1000, 1003), (7,), (1, 4, 5), ())
        for seed in (0, 99)
    )


def _drawn(op_type: str, dtype: str, shape: tuple[int, ...], seed: int) -> None:
    """Two steps on both places: masks and uniform numbers equal, normal ones up to rounding."""
    seeds.seed(SEED)
    if op_type == "dropout":
        x = np.random.default_rng(1).normal(size=shape).astype(as_dtype(dtype))
        call = call_of(op_type, {"X": x}, p=0.3, seed=seed)
    else:
        call = call_of(op_type, {}, shape=shape, dtype=dtype, seed=seed)
    program, _, outputs = opcheck.built(call)
    fetches = [v for vs in outputs.values() for v in vs]
    runs = []
    for place in ("gpu", "cpu"):
        scope = opcheck.Scope()
        if place == "gpu":
            with on_gpu():
                exe = opcheck.Executor()
        else:
            exe = opcheck.Executor()
        runs.append(
            [exe.run(program, opcheck.feed_of(call), fetches, scope=scope) for _ in range(2)]
        )
    exact = op_type in ("uniform_random", "dropout")
    for step, (gpu, cpu) in enumerate(zip(*runs, strict=True)):
        for v, g, c in zip(fetches, gpu, cpu, strict=True):
            assert g.shape == c.shape and g.dtype == c.dtype
            if exact or g.dtype not in FLOATS:
                assert np.array_equal(g, c), (
                    f"{v.name} of step {step} differs at {np.sum(g != c)} places"
                )
            else:
                near = {float64: 1e-12, float16: 2e-3, bfloat16: 2e-2}.get(g.dtype, 1e-5)
                assert_near(g, c, near, f"{v.name} of step {step}")
    if shape == (1000, 1003):
        assert not np.array_equal(runs[0][0][-1], runs[0][1][-1]), (
            "both steps drew the same numbers"
        )
