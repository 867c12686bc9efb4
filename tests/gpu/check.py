"""What the GPU checks share: an Executor that poisons memory, comparisons with float64, lists of cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minigraph import cuda
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.calls import Fill
from minigraph.opdef import OPS
from minigraph.runtime.control.plan import ControlPlan
from minigraph.runtime.executor import Executor
from minigraph.types import FLOATS, CUDAPlace, as_dtype, bfloat16, float16, float32, float64
from tests.support import opcheck
from tests.support.opcheck import Call, Slots

PLACE = CUDAPlace(0)
DTYPES = ("float64", "float32", "float16", "bfloat16")
STEP = {
    float64: 2.0**-52,
    float32: 2.0**-23,
    float16: 2.0**-10,
    bfloat16: 2.0**-7,
}  # from 1 to the next number
GARBAGE = itertools.cycle((0xFF, 0x7B))  # NaN and -1; large finite numbers
apart = False  # under compute-sanitizer: every buffer in an allocation of its own
LAYOUTS = {"NN": (False, False), "NT": (False, True), "TN": (True, False), "TT": (True, True)}  # trans_x, trans_y


class Check(NamedTuple):
    """One named check; it passes by returning.

    sanitize  part of the small set that compute-sanitizer runs
    product   runs cuBLASLt's kernels, which order their accesses in ways that racecheck and initcheck do not know
    unwritten reads memory that initcheck takes for unwritten: only Hopper's copy engine wrote it, or it is a gap in an
              arena, and nobody reads what comes of it
    alone     needs much of the card's memory: nothing else runs beside it
    """

    name: str
    run: Callable[[], None]
    sanitize: bool = False
    product: bool = False
    unwritten: bool = False
    alone: bool = False

    def judged_by(self, tool: str) -> bool:
        """Whether what this tool of compute-sanitizer reports of the check means anything."""
        blind = self.product * ("racecheck", "initcheck") + self.unwritten * ("initcheck",)
        return self.sanitize and tool not in blind


class Poisoned:
    """A CudaPlan whose temporary memory holds garbage whenever a run begins."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        if apart:
            self.owned = [(b, plan.runtime.allocate(b.nbytes)) for b, _ in plan.bound.offsets]
            for buffer, memory in self.owned:
                buffer.ptr = memory.data.ptr
            plan.feeding.settle()
            plan.prepare_fetches()
            plan.faults.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)

    def run(self, feeds: Any, scope: Any, return_numpy: bool = True) -> list[Any]:
        plan = self.plan
        if not apart:
            spoil(plan.runtime, plan.arena.data.ptr, plan.bound.arena_bytes)
            plan.faults.clear()
        return plan.run(feeds, scope, return_numpy)


def spoil(runtime: Any, address: int, nbytes: int) -> None:
    """Fill memory with the next garbage."""
    binder = Binder()
    binder.calls.append(Fill(Buffer((nbytes,), np.dtype("uint8"), ptr=address), next(GARBAGE)))
    for call in runtime.runnable(binder, False) if nbytes else ():
        call()


class GpuExecutor(Executor):
    """An Executor at CUDAPlace(0) with Poisoned plans."""

    def __init__(self, place: Any = None) -> None:
        super().__init__(PLACE)

    def _make_plan(self, *args: Any) -> Any:
        plan = super()._make_plan(*args)
        if isinstance(plan, ControlPlan):
            plan.backend = PoisonedBackend(plan.backend)  # type: ignore[assignment]
            return plan
        return Poisoned(plan)


class PoisonedBackend:
    """A backend whose plans are Poisoned: those of the pieces and blocks of a program that is cut."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def plan(self, *args: Any) -> Poisoned:
        return Poisoned(self.backend.plan(*args))


@contextmanager
def on_gpu(*modules: ModuleType) -> Iterator[None]:
    """Functions of these modules (opcheck by default) run their programs on the GPU."""
    modules = modules or (opcheck,)
    saved = [m.Executor for m in modules]
    for m in modules:
        m.Executor = GpuExecutor
    try:
        yield
    finally:
        for m, executor in zip(modules, saved, strict=True):
            m.Executor = executor


def alive() -> bool:
    """Whether the GPU still answers: after an illegal access nothing in this process does."""
    try:
        cuda.runtime(PLACE).to_device(np.zeros(1))
    except Exception:  # whatever CUDA raises
        return False
    return True


def each(cases: Iterable[tuple[str, Callable[[], None]]]) -> None:
    """Run all cases; an AssertionError tells how many failed and why the first ones did."""
    problems, count = [], 0
    for title, case in cases:
        count += 1
        try:
            case()
        except Exception as problem:  # one bad case must not hide the others
            problems.append(f"{title}: {brief(problem)}")
            if not alive():
                problems.append("the GPU does not answer any more")
                break
    assert not problems, f"{len(problems)} of {count}: " + " | ".join(problems[:4])
    assert count, "no case"


def brief(problem: BaseException) -> str:
    """The first lines of an error in one line."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {'; '.join(lines[:4])[:300]}"


# one operator


def call_of(op_type: str, inputs: dict[str, Any], **attrs: Any) -> Call:
    """A call like those of the samples; `inputs` holds an array or a list of arrays for each slot."""
    opdef = OPS[op_type]
    arrays = {slot: x if isinstance(x, list) else [x] for slot, x in inputs.items()}
    return Call(opdef, 0, arrays, opdef.bind_attrs(attrs))


def rounded(call: Call, dtype: str) -> Call:
    """The call in `dtype`; optimizer states keep the types that they must have."""
    if "optimizer" not in call.opdef.traits:
        return call.as_dtype(dtype)
    state = float32 if as_dtype(dtype) in (float16, bfloat16) else as_dtype(dtype)
    inputs = {}
    for slot, xs in call.inputs.items():
        own = (
            float64 if slot.endswith("Pow") else dtype if slot in ("Param", "Grad", "X") else state
        )
        inputs[slot] = [x.astype(own) if x.dtype in FLOATS else x for x in xs]
    return Call(call.opdef, call.number, inputs, call.attrs)


def check_call(
    call: Call, dtype: str = "float64", scale: float | Mapping[str, float] | None = None
) -> None:
    """The call in `dtype` on the GPU, run twice over other garbage, against float64 of the same rounded inputs.

    scale   what absolute errors are measured by, for all outputs or for each; the largest number by default
    """
    call = rounded(call, dtype)
    with on_gpu():
        found = opcheck.executed(call)
    cpu = opcheck.executed(call)
    random = "random" in call.opdef.traits
    exact = cpu if random else opcheck.reference(call.as_dtype("float64"))
    if call.opdef.type.startswith(("fused_", "memory_efficient")) and as_dtype(dtype) in (float16, bfloat16):
        return compare_norms(found, exact, cpu, dtype, magnitude(call))
    if scale is None:
        sizes = {
            s: [np.abs(x.astype(float)) for x in map(np.asarray, xs)] for s, xs in exact.items()
        }
        largest = {
            s: max(float(x[np.isfinite(x)].max(initial=0)) for x in xs)
            for s, xs in sizes.items()
            if xs
        }
        scale = {s: max(magnitude(call), n) for s, n in largest.items()}
    compare(found, exact, cpu, scale if isinstance(scale, Mapping) else dict.fromkeys(cpu, scale))


def magnitude(call: Call) -> float:
    """The largest finite float input, at least 1; a number beyond 1e20 is there to hide something."""
    values = [np.abs(call.inputs[slot][i].astype(float)) for slot, i in call.float_places]
    return max([1.0, *(float(x[x < 1e20].max(initial=0)) for x in values)])


def compare(found: Slots, exact: Slots, cpu: Slots, scale: Mapping[str, float]) -> None:
    """Results of a GPU against exact ones; those below float64 may err twice as much as the CPU's, and one step."""
    assert found.keys() == cpu.keys(), f"outputs {sorted(found)}, expected {sorted(cpu)}"
    for slot, arrays in cpu.items():
        for i, (c, f, x) in enumerate(zip(arrays, found[slot], exact[slot], strict=True)):
            assert f.shape == c.shape and f.dtype == c.dtype, (
                f"{slot}[{i}] is {f.dtype}{f.shape}, not {c.dtype}{c.shape}"
            )
            if c.dtype not in FLOATS:
                wrong = np.flatnonzero((f != c).reshape(-1))
                assert not wrong.size, (
                    f"{slot}[{i}] differs at {wrong.size} places, first {wrong[0]}: {_at(f, c, wrong[0])}"
                )
                continue
            _compare_floats(f"{slot}[{i}]", f, np.asarray(x, float), c, scale[slot])


def compare_norms(found: Slots, exact: Slots, cpu: Slots, dtype: str, largest: float) -> None:
    """For operators that may round what their second half reads: the largest errors are compared.

    They compute in float32: what is 0 because terms cancel may be off by steps of that of their `largest` input.
    """
    assert found.keys() == cpu.keys(), f"outputs {sorted(found)}, expected {sorted(cpu)}"
    for slot, arrays in cpu.items():
        for c, f, x in zip(arrays, found[slot], exact[slot], strict=True):
            assert f.shape == c.shape and f.dtype == c.dtype, f"{slot} is {f.dtype}{f.shape}"
            if c.dtype in FLOATS:
                x, finite = np.asarray(x, float), np.isfinite(x)
                same = np.array_equal(f[~finite].astype(float), x[~finite], equal_nan=True)
                assert same, f"{slot} has other infinities or NaNs"
                assert_like_cpu(f[finite], c[finite], x[finite], dtype, slot, STEP[float32] * largest)
            else:
                assert np.array_equal(f, c), f"{slot} differs at {np.sum(f != c)} places"


def _at(f: np.ndarray, c: np.ndarray, place: int) -> str:
    return f"{f.reshape(-1)[place]} instead of {c.reshape(-1)[place]}"


def _compare_floats(
    name: str, f: np.ndarray, exact: np.ndarray, cpu: np.ndarray, scale: float
) -> None:
    dtype, found = f.dtype, f.astype(float)
    size = np.abs(np.where(np.isfinite(exact), exact, 0))
    with np.errstate(invalid="ignore", over="ignore"):
        if dtype == float64:
            allowed = size * 1e-12 + scale * 1e-13
        elif dtype == float32:
            own = np.nanmax(np.abs(cpu.astype(float) - exact), initial=0.0, where=np.isfinite(exact))
            allowed = np.maximum(size * 1e-6 + scale * 1e-6, 2 * own)  # rows of small variance amplify rounding
        else:
            least = 6e-8 if dtype == float16 else 0.0  # the distance of its smallest numbers
            allowed = (
                2 * np.abs(cpu.astype(float) - exact) + size * STEP[dtype] + scale * 1e-6 + least
            )
        error = np.abs(found - exact)
    same = (found == exact) | (np.isnan(found) & np.isnan(exact)) | (found == cpu.astype(float))
    bad = np.flatnonzero(~(same | (error <= allowed)).reshape(-1))
    assert not bad.size, (
        f"{name} ({dtype}) differs at {bad.size} of {f.size} places, first {bad[0]}:"
        f" {found.reshape(-1)[bad[0]]!r} instead of {exact.reshape(-1)[bad[0]]!r}"
    )


def assert_near(found: np.ndarray, exact: np.ndarray, tolerance: float, what: str) -> None:
    """max |found - exact| <= tolerance * max(1, max |exact|), and NaNs at the same places."""
    found, exact = np.asarray(found, float), np.asarray(exact, float)
    assert found.shape == exact.shape, f"{what} has shape {found.shape}, not {exact.shape}"
    assert np.array_equal(np.isnan(found), np.isnan(exact)), f"{what}: NaNs at other places"
    difference = float(np.nanmax(np.abs(found - exact), initial=0.0))
    bound = tolerance * max(1.0, float(np.nanmax(np.abs(exact), initial=0.0)))
    assert difference <= bound, f"{what} differs by {difference:.3g}, {bound:.3g} is allowed"


def assert_like_cpu(
    found: np.ndarray, cpu: np.ndarray, exact: np.ndarray, dtype: Any, what: str, least: float = 0.0
) -> None:
    """The largest error is at most twice the CPU's in the same type, and two steps of the largest number or `least`."""
    found, cpu, exact = (np.asarray(a, float) for a in (found, cpu, exact))
    assert found.shape == exact.shape, f"{what} has shape {found.shape}, not {exact.shape}"
    step = max(STEP[as_dtype(dtype)] * float(np.max(np.abs(exact), initial=0.0)), least)
    error, own = (float(np.max(np.abs(a - exact), initial=0.0)) for a in (found, cpu))
    assert error <= 2 * own + 2 * step, (
        f"{what} errs by {error:.3g}, the CPU by {own:.3g}, a step is {step:.3g}"
    )


Arrays = dict[str, np.ndarray]


def repeated(op_type: str, arrays: Arrays, needs: tuple[str, ...], **attrs: Any) -> Arrays:
    """{slot: output} of one operator on the GPU; eager, captured and two later runs must agree in bits."""
    block = opcheck.Program().global_block()
    variables = {s: block.create_var(s, type=opcheck.type_of(a), is_data=True) for s, a in arrays.items()}
    opcheck.Builder(block).emit(op_type, needs=needs, **variables, **attrs)
    outputs = {slot: vs[0] for slot, vs in block.ops[-1].outputs.items() if slot in needs}
    executor, scope = GpuExecutor(), opcheck.Scope()
    runs = [executor.run(block.program, arrays, list(outputs.values()), scope=scope) for _ in range(4)]
    for later in runs[1:]:
        for slot, first, again in zip(outputs, runs[0], later, strict=True):
            assert first.tobytes() == again.tobytes(), f"{slot} differs from run to run"
    return dict(zip(outputs, runs[0], strict=True))


def turned(x: np.ndarray, turn: bool) -> np.ndarray:
    """A matrix as an operand that may be stored as its transpose."""
    return np.ascontiguousarray(x.T) if turn else x


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, others for each shape and seed."""
    return np.random.default_rng([seed, *shape]).normal(size=shape)
