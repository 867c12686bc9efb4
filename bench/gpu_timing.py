"""Timing of GPU work: results checked first, arms in turns in one process, several sets of inputs.

An arm is launched repeatedly between two CUDA events on one stream, and its figure is the median over all
turns; before each the card rests (turns.py), and products are timed without rest too. Plans of several launches
run as CUDA graphs, as an Executor runs them, of several runs: between two graphs the GPU does nothing for 3 to 4 us,
which a step pays once and not for each operator. Peers run as they are. The sets of inputs that an arm goes through
are together larger than the L2 cache. A copy of 512 MiB takes its turns between the arms: its bandwidth is what
others are compared with.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from . import product_kernels
from .gpu_jax import Jax, JaxArm
from .gpu_report import end, headline, measure, report_of
from .harness import OnGpu, summarized
from .turns import in_turns, without_rest

TURN_MS = 8.0  # what an arm runs in one turn
L2_BYTES = 256 << 20  # four times an H200's cache: the sets of inputs are together larger
MOST_SETS = 8
RUNS = 16  # in one graph; of products as many as there are sets of inputs
COPIED = 512 << 20
TOLERANCE = {
    "float64": 1e-11,
    "float32": 1e-5,
    "float16": 2e-3,
    "bfloat16": 1e-2,
}  # of ||found - exact|| / ||exact||
TF32 = 2e-3  # likewise, of float32 products with operands of 10 bits

Vars = Mapping[str, Any]


@dataclass(frozen=True)
class Input:
    """An array that the arms read: normal numbers, or integers in [0, below).

    skew  an exponent: integer k comes (k + 1) ** -skew times as often as 0
    """

    shape: tuple[int, ...]
    dtype: str
    below: int = 0
    scale: float = 1.0
    skew: float = 0.0

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * (
            2 if "16" in self.dtype else np.dtype(self.dtype).itemsize
        )


@dataclass(frozen=True)
class Case:
    """One row of the table.

    programs  {arm: (g, variables) -> variables that are its results}; the first arm is the one that is judged
    exact     results in float64, from CaseRows: whole, or those of some rows only, None for what is not compared,
              nor is what comes after the last one; the first input has a row for each row of the results
    torch     (torch, tensors) -> a function that launches the same work in PyTorch
    compared  the numbers of the exact results that this function returns, in its order; others of it are not compared
    jax       (jax, **arrays) -> a list of the same results; it is compiled by jax.jit
    nbytes    what must be read and written at the least
    unchecked arms that do less work, as a bound
    rewritten arms whose program goes through the pass of `flag`
    tuned     arms whose products are chosen by their times (BuildStrategy.autotune)
    kernels   {arm: which of our kernels for products it takes, see product_kernels.py}; others choose by themselves
    tf32      float32 products may round their operands to TF32
    captured  arms run inside a CUDA graph, so often: for work that is shorter than its launch; no peers
    """

    title: str
    inputs: Mapping[str, Input]
    programs: Mapping[str, Callable[[Any, Vars], Sequence[Any]]]
    exact: Callable[[CaseRows], Sequence[Any]]
    torch: Callable[[Any, Vars], Callable[[], Any]] | None = None
    nbytes: int = 0
    flops: int = 0
    unchecked: frozenset[str] = frozenset()
    rewritten: frozenset[str] = frozenset()
    jax: Callable[..., Sequence[Any]] | None = None
    tuned: frozenset[str] = frozenset()
    kernels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tf32: bool = False
    captured: int = 0
    flag: str = "fuse_gemm_epilogue"
    compared: tuple[int, ...] = ()


class CaseRows:
    """Some rows of the arrays on the host, in float64; what `exact` computes with."""

    def __init__(self, gpu: Gpu, arrays: Vars, count: int) -> None:
        self.gpu, self.arrays = gpu, arrays
        middle = np.random.default_rng(0).integers(0, count, 16)
        self.picked = np.unique(
            np.concatenate((np.arange(min(8, count)), np.arange(max(0, count - 8), count), middle))
        )

    def of(self, name: str) -> np.ndarray:
        """The picked rows of an input."""
        return self.gpu.host(self.arrays[name], self.picked)

    def columns(self, name: str) -> np.ndarray:
        """The picked columns of a matrix."""
        return self.gpu.host(self.arrays[name], self.picked, axis=1)

    def whole(self, name: str) -> np.ndarray:
        return self.gpu.host(self.arrays[name])

    def device(self, name: str) -> Any:
        """The whole array on the GPU, floats in float64."""
        return self.gpu.wide(self.arrays[name])


class Gpu:
    """The device: arrays, minigraph's plans, PyTorch's tensors, and time."""

    def __init__(self) -> None:
        self.cupy = importlib.import_module("cupy")
        self.mg = importlib.import_module("minigraph")
        self.runtime = self.mg.cuda.runtime(self.mg.CUDAPlace(0))
        self.stream = self.cupy.cuda.Stream(non_blocking=True).use()  # that of all arms: graphs are captured from it
        with self.runtime.turn:
            assert self.runtime.stream is self.stream
        self.copied = [self.cupy.zeros(COPIED, self.cupy.uint8) for _ in range(2)]
        self.base = np.random.default_rng(0).normal(size=1 << 22)

    def facts(self) -> dict[str, Any]:
        runtime = self.cupy.cuda.runtime
        return {"name": runtime.getDeviceProperties(0)["name"].decode(), "driver": runtime.driverGetVersion(),
                "cublasLt": importlib.import_module("nvmath.bindings.cublasLt").get_version()}  # fmt: skip

    # arrays

    def make(self, wanted: Input, seed: int) -> Any:
        """Random numbers; a block of four million is repeated where more are wanted."""
        size = int(np.prod(wanted.shape))
        if wanted.below:
            rng = np.random.default_rng(seed)
            host = rng.integers(0, wanted.below, size).astype(wanted.dtype)
            if wanted.skew:
                often = np.cumsum(np.arange(1, wanted.below + 1) ** -wanted.skew)
                host = np.searchsorted(often[:-1], rng.uniform(0, often[-1], size)).astype(wanted.dtype)
            return self.cupy.asarray(host).reshape(wanted.shape)
        dtype = self.mg.types.as_dtype(wanted.dtype)
        block = (np.roll(self.base, 4099 * seed) * wanted.scale).astype(dtype)
        words = self.cupy.asarray(block.view(f"u{dtype.itemsize}"))
        whole = self.cupy.empty(size, words.dtype)
        for start in range(0, size, words.size):
            whole[start : start + words.size] = words[: size - start]
        return whole.view(dtype).reshape(wanted.shape)

    def host(self, array: Any, picked: Any = None, axis: int = 0) -> np.ndarray:
        """A device array, or some of its rows, as float64 (integers as they are)."""
        words = array.view(f"u{array.dtype.itemsize}")
        if picked is not None:
            words = self.cupy.ascontiguousarray(
                self.cupy.take(words, self.cupy.asarray(picked), axis=axis)
            )
        found = self.cupy.asnumpy(words).view(array.dtype)
        return found if found.dtype.kind in "iub" else found.astype(float)

    def wide(self, array: Any) -> Any:
        """A device array as float64 (integers as they are)."""
        if array.dtype.name == "bfloat16":  # the upper half of a float32
            array = (array.view("u2").astype("u4") << 16).view("f4")
        return array if array.dtype.kind in "iub" else array.astype("f8")

    # arms

    def planned(self, case: Case, arm: str, arrays: Vars) -> Planned:
        """minigraph's arm: the operators of one program, bound to arrays that a Scope owns."""
        program = self.mg.static.Program(case.title)
        block = program.global_block()
        variables = {
            name: block.create_var(name, a.shape, a.dtype, persistable=True)
            for name, a in arrays.items()
        }
        g = importlib.import_module("minigraph.program.builder").Builder(block)
        outputs = tuple(v.name for v in case.programs[arm](g, variables))
        if arm in case.rewritten:
            strategy = self.mg.static.BuildStrategy()
            setattr(strategy, case.flag, True)
            compiled = self.mg.static.CompiledProgram(program, build_strategy=strategy)
            program = compiled.program_for(outputs, place=self.mg.CUDAPlace(0))
        scope = self.mg.static.Scope()
        scope.arrays.update(arrays)
        with product_kernels.only(case.kernels[arm]) if arm in case.kernels else nullcontext():
            plan = self.plan(program, outputs, arm in case.tuned, case.tf32)
        return Planned(plan, plan.run({}, scope, return_numpy=False), scope)

    def plan(
        self, program: Any, outputs: Sequence[str], autotune: bool = False, tf32: bool = False, attention: str = "auto"
    ) -> Any:
        """A CudaPlan whose memory holds NaNs: what nobody writes shows."""
        plans = importlib.import_module("minigraph.runtime.cuda.plan")
        options = importlib.import_module("minigraph.runtime.options")
        options = options.RunOptions(autotune=autotune, attention=attention)
        made = plans.CudaPlan(program, {}, outputs, False, 0, self.runtime, tf32, options)
        made.arena.fill(0xFF)
        self.cupy.cuda.get_current_stream().synchronize()  # the arrays are there too
        made.faults.clear()
        return made

    def tensors(self, torch: Any, arrays: Vars) -> Vars:
        """PyTorch's tensors on the same memory."""
        made = {}
        for name, a in arrays.items():
            bits = torch.from_dlpack(a.view(np.int16) if a.dtype.itemsize == 2 else a)
            made[name] = bits.view(getattr(torch, a.dtype.name)) if a.dtype.itemsize == 2 else bits
        return made

    def results(self, torch: Any, found: Any, count: int) -> list[Any]:
        """The first of PyTorch's results, or its only one, as arrays on the same memory."""
        made = []
        for t in [found] if isinstance(found, torch.Tensor) else found[:count]:
            words = t.contiguous().view(torch.int16) if t.element_size() == 2 else t.contiguous()
            dtype = self.mg.types.as_dtype(str(t.dtype).removeprefix("torch."))
            made.append(self.cupy.from_dlpack(words).view(dtype))
        self.stream.synchronize()
        return made

    def copy(self) -> None:
        to, source = (a.data.ptr for a in self.copied)
        self.cupy.cuda.runtime.memcpyAsync(to, source, COPIED, 3, self.stream.ptr)

    def captured(self, calls: Sequence[Callable[[], Any]], repeats: int) -> Callable[[], None]:
        """A CUDA graph of the calls in turns, `repeats` in all."""
        with self.runtime.turn:
            assert self.runtime.stream is self.stream, "calls would go to another stream, and the graph be empty"
        self.stream.begin_capture()
        for i in range(repeats):
            calls[i % len(calls)]()
        graph = self.stream.end_capture()
        return lambda: graph.launch(self.stream)

    def milliseconds(self, calls: Sequence[Callable[[], Any]], repeats: int) -> float:
        """Mean time of one call over `repeats` calls back to back."""
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        start.record(self.stream)
        for i in range(repeats):
            calls[i % len(calls)]()
        end.record(self.stream)
        end.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, end)) / repeats

    def release(self, torch: Any) -> None:
        """Give unused memory back, so that neither library keeps what the other needs."""
        self.cupy.get_default_memory_pool().free_all_blocks()
        if torch is not None:
            torch.cuda.empty_cache()


@dataclass
class Planned:
    """A CudaPlan with its results of the first run."""

    plan: Any
    results: list[Any]
    scope: Any

    def __call__(self) -> None:
        for call in self.plan.calls:
            call()

    @property
    def remarks(self) -> list[str]:
        """What the kernels do otherwise than asked, and what autotune chose."""
        return [f"{op.type}: {text}" for op, text in self.plan.program.notes]

    def repeats_itself(self) -> bool:
        """Whether the results in memory are still the bits of the first run."""
        runtime = self.plan.runtime
        again = [
            runtime.fetch(self.plan.bound.buffers[i], False) for i in self.plan.schedule.fetched
        ]
        runtime.stream.synchronize()
        kinds = [f"u{a.dtype.itemsize}" for a in again]
        return all(
            bool((a.view(k) == b.view(k)).all())
            for a, b, k in zip(again, self.results, kinds, strict=True)
        )


@dataclass(frozen=True)
class GpuBench(OnGpu):
    """Cases that run in one process on CUDAPlace(0)."""

    name: str
    title: str
    cases: Callable[[], Sequence[Case]]
    peers: tuple[str, ...] = ("torch",)

    def run(self, peers: Sequence[str], rounds: int, command: str, only: str = "") -> None:
        """Time all cases, print the table and write bench/results/<name>.json."""
        gpu = Gpu()
        torch = importlib.import_module("torch") if "torch" in peers else None
        jax = Jax(gpu.cupy) if "jax" in peers else None
        cases = [case for case in self.cases() if only in case.title]
        if jax is not None:
            jax.prepare(cases)
        report = report_of(self, gpu, command, rounds, only) | {"cases": len(self.cases())}
        tasks = (({"title": case.title}, partial(measured, gpu, torch, case, rounds, jax)) for case in cases)
        measure(report, tasks, gpu, torch)
        end(report, table)


def measured(gpu: Gpu, torch: Any, case: Case, rounds: int, jax: Jax | None = None) -> dict[str, Any]:
    """Check a case, then time its arms in turns."""
    footprint = case.nbytes or sum(i.nbytes for i in case.inputs.values())
    sets = 1 if case.captured else min(MOST_SETS, max(2, -(-L2_BYTES // footprint)))
    arms: dict[str, list[Callable[[], Any]]] = {}
    plans: list[Planned] = []
    runs: dict[str, int] = {}  # in a graph; 0 where there is none
    errors: dict[str, float] = {}
    remarks: dict[str, list[str]] = {}
    exact: tuple[CaseRows, Sequence[Any]] | None = None
    for number in range(sets):
        arrays = {
            name: gpu.make(wanted, number + 7 * i)
            for i, (name, wanted) in enumerate(case.inputs.items())
        }
        for name in case.programs:
            plan = gpu.planned(case, name, arrays)
            plans.append(plan)
            several = len(plan.plan.calls) > 1
            runs[name] = case.captured or several * (sets if case.flops else RUNS)
            arms.setdefault(name, []).append(plan)
            if number == 0 and name not in case.unchecked:
                exact = exact or _exact(gpu, case, arrays)
                errors[name] = _checked(gpu, case, *exact, plan.results, name)
            if number == 0 and plan.remarks:
                remarks[name] = plan.remarks
        if torch is not None and case.torch is not None and not case.captured:
            with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream.ptr)):
                arm = case.torch(torch, gpu.tensors(torch, arrays))
                arms.setdefault("torch", []).append(arm)
                if number == 0 and case.compared:
                    rows, wanted = exact = exact or _exact(gpu, case, arrays)
                    found = gpu.results(torch, arm(), len(case.compared))
                    errors["torch"] = _checked(gpu, case, rows, [wanted[i] for i in case.compared], found, "torch")
        if jax is not None and case.jax is not None:
            arm = jax.arm(case.jax, arrays)
            arms.setdefault("jax", []).append(arm)
            if number == 0:
                found = jax.results(arm(), [r.dtype for r in plans[0].results])
                exact = exact or _exact(gpu, case, arrays)
                errors["jax"] = _checked(gpu, case, *exact, found, "jax")
    arms |= {name: [gpu.captured(arms[name], count)] for name, count in runs.items() if count}
    arms["copy"] = [gpu.copy]
    turns = turns_of(gpu, torch, arms)
    times = in_turns(turns, rounds)
    tired = without_rest(turns) if case.flops and not case.captured else {}
    for name, count in runs.items():
        times[name] = [ms / (count or 1) for ms in times[name]]
        tired |= {name: tired[name] / (count or 1)} if name in tired else {}
    for plan in plans:
        if not plan.repeats_itself():
            raise ArithmeticError("results changed from run to run")
    return {
        "title": case.title, "nbytes": case.nbytes, "flops": case.flops, "sets": sets, "relative_error": errors,
        "remarks": remarks, "milliseconds": {name: summarized(ms) for name, ms in times.items()},
        "milliseconds_without_rest": tired,
    }  # fmt: skip


def _exact(gpu: Gpu, case: Case, arrays: Vars) -> tuple[CaseRows, Sequence[Any]]:
    """The exact results, and of which rows they are."""
    rows = CaseRows(gpu, arrays, next(iter(case.inputs.values())).shape[0])
    return rows, case.exact(rows)


def _checked(gpu: Gpu, case: Case, rows: CaseRows, wanted: Sequence[Any], results: Sequence[Any], arm: str) -> float:
    """The largest relative error of the results; refused where it is not small, or not a number."""
    worst = 0.0
    for i, (found, exact) in enumerate(zip(results, wanted, strict=False)):
        if exact is None:
            continue
        if not isinstance(exact, np.ndarray):
            part = gpu.wide(found)
        else:
            part = gpu.host(found) if exact.shape == found.shape else gpu.host(found, rows.picked)
        if part.shape != exact.shape:
            raise ArithmeticError(
                f"{arm}: result {i} has shape {part.shape}, exact is {exact.shape}"
            )
        error = _distance(part, exact)
        if not error <= (TF32 if case.tf32 else TOLERANCE[found.dtype.name]):
            raise ArithmeticError(f"{arm}: result {i} is off by {error:.2g} relative to its norm")
        worst = max(worst, error)
    return worst


def _distance(found: Any, exact: Any) -> float:
    """||found - exact|| / ||exact||, NumPy's or CuPy's arrays."""
    return float(((found - exact) ** 2).sum()) ** 0.5 / max(float((exact**2).sum()) ** 0.5, 1e-300)


def turns_of(
    gpu: Gpu, torch: Any, arms: Mapping[str, Sequence[Callable[[], Any]]]
) -> dict[str, Callable[[], float]]:
    """{arm: what gives milliseconds of one turn}, after a warm-up that tells how often to repeat."""

    def timed(calls: Sequence[Callable[[], Any]], repeats: int) -> float:
        if isinstance(calls[0], JaxArm):
            gpu.stream.synchronize()
            return calls[0].milliseconds(calls, repeats)
        if torch is None:
            return gpu.milliseconds(calls, repeats)
        with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream.ptr)):
            return gpu.milliseconds(calls, repeats)

    made = {}
    for name, calls in arms.items():
        timed(calls, 2 * len(calls))
        once = timed(calls, len(calls))
        wanted = min(400, int(TURN_MS / max(once, 1e-3)))
        made[name] = partial(timed, calls, max(1, round(wanted / len(calls))) * len(calls))
    return made


def table(report: Mapping[str, Any]) -> str:
    """One line for each case: the first arm's time, the others relative to it, and what bounds it."""
    others = list(
        dict.fromkeys(
            a for r in report["rows"] for a in list(r.get("milliseconds", {}))[1:] if a != "copy"
        )
    )
    bytes_count = any(r.get("nbytes") for r in report["rows"])
    bound = f"{'floor ms':>9} {'% copy':>7}" if bytes_count else f"{'TFLOP/s':>8}"
    heads = " ".join(f"{name:>11}" for name in others)
    lines = [f"{headline(report)}; arm / first arm, above 1 is slower", f"{'':44} {'ms':>9} {heads} {bound}"]
    copies = []
    for r in report["rows"]:
        if "failed" in r:
            lines.append(f"{r['title']:44} FAILED {r['failed'][:150]}")
            continue
        ms = {name: f["median"] for name, f in r["milliseconds"].items()}
        first = next(iter(ms.values()))
        rate = 2 * COPIED / ms["copy"]  # bytes per millisecond
        copies.append(rate / 1e6)
        ratios = " ".join(
            f"{ms[name] / first:9.2f}" if name in ms else f"{'':9}" for name in others
        )
        floor = r["nbytes"] / rate
        ends = (
            f"{floor:9.4f} {100 * floor / first:7.1f}"
            if bytes_count
            else f"{r['flops'] / first / 1e9:8.0f}"
        )
        lines.append(f"{r['title']:44} {first:9.4f} {ratios} {ends}")
        if tired := r.get("milliseconds_without_rest"):
            first = next(iter(tired.values()))
            ratios = " ".join(f"{tired[name] / first:9.2f}" if name in tired else f"{'':9}" for name in others)
            lines.append(f"{'    without rest':44} {first:9.4f} {ratios}")
    if copies:
        lines.append(f"copy {min(copies):.0f} to {max(copies):.0f} GB/s, read and write counted")
    return "\n".join(lines)
