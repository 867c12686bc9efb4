"""Parameter updates: levels and pointer modes of minigraph, and PyTorch's optimizers, on one GPU.

Every arm updates arrays of its own. After the first step the parameters of all arms are compared, those of
minigraph bit by bit. Times are those of captured steps between events; PyTorch's include its host work
where the GPU waits for it, as a training loop would.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .gpu_report import Row, end, measure, medians, report_of, table_of
from .gpu_timing import COPIED, Gpu, GpuBench, turns_of
from .harness import summarized
from .turns import in_turns

LEVELS = {"for-loop": None, "foreach": "foreach_optimizer_ops", "fused": "fuse_all_optimizer_ops"}
MODES = ("table", "struct4k", "struct32k", "arena", "unified")

Shapes = list[tuple[int, ...]]
Values = list[tuple[Any, Any]]  # (parameter, gradient) on the GPU


def gpt2_shapes() -> Shapes:
    """The 148 tensors of GPT-2 with 124 M parameters."""
    layer: Shapes = [
        (768,), (768,), (768, 2304), (2304,), (768, 768), (768,),
        (768,), (768,), (768, 3072), (3072,), (3072, 768), (768,),
    ]  # fmt: skip
    return [(50257, 768), (1024, 768), *(shape for _ in range(12) for shape in layer), (768,), (768,)]


@dataclass(frozen=True)
class UpdateCase:
    """One row: an update operator and the shapes of its parameters.

    words  reads and writes of float32 for each parameter
    """

    title: str
    op: str
    shapes: Shapes
    words: int
    attrs: Mapping[str, Any]
    torch: Callable[..., Any]

    @property
    def size(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes)


def _adamw(torch: Any, params: Any, **how: Any) -> Any:
    return torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, **how)


def _momentum(torch: Any, params: Any, **how: Any) -> Any:
    return torch.optim.SGD(params, lr=1e-3, momentum=0.9, **how)


ADAMW, MOMENTUM = {"coeff": 0.01}, {"mu": 0.9}
CASES = (
    UpdateCase("AdamW, GPT-2, 148 tensors, 124 M", "adamw", gpt2_shapes(), 7, ADAMW, _adamw),
    UpdateCase("AdamW, 1,000 tensors of 2 x 3", "adamw", [(2, 3)] * 1000, 7, ADAMW, _adamw),
    UpdateCase("AdamW, 500 tensors of 256 x 256", "adamw", [(256, 256)] * 500, 7, ADAMW, _adamw),
    UpdateCase("SGD with momentum, GPT-2, 124 M", "momentum", gpt2_shapes(), 5, MOMENTUM, _momentum),
)  # fmt: skip


def _written(torch: Any, params: Any, foreach: bool = True, compiled: bool = False) -> Callable[[], None]:
    """The rule of WrittenUpdate: calls on lists, or a loop; the compiler gets the tensors as arguments."""

    @torch.no_grad()
    def lists(params: Any, grads: Any, moments: Any) -> None:
        u = torch._foreach_mul(moments, 0.9)
        torch._foreach_add_(u, grads, alpha=0.1)
        torch._foreach_sign_(u)
        torch._foreach_add_(u, params, alpha=0.01)
        torch._foreach_mul_(moments, 0.99)
        torch._foreach_add_(moments, grads, alpha=0.01)
        torch._foreach_add_(params, u, alpha=-1e-3)

    @torch.no_grad()
    def loop(params: Any, grads: Any, moments: Any) -> None:
        for p, g, m in zip(params, grads, moments, strict=True):
            u = torch.sign(m * 0.9 + g * 0.1) + p * 0.01
            m.copy_(m * 0.99 + g * 0.01)
            p.sub_(u * 1e-3)

    step, grads, moments = lists if foreach else loop, [p.grad for p in params], [torch.zeros_like(p) for p in params]
    step = torch.compile(step) if compiled else step
    return lambda: step(params, grads, moments)


WRITTEN = (
    UpdateCase("A user's rule like Lion, GPT-2, 124 M", "written", gpt2_shapes(), 5, {}, _written),
    UpdateCase("A user's rule like Lion, 100 tensors of 2 x 3", "written", [(2, 3)] * 100, 5, {}, _written),
)


class UpdateArm:
    """minigraph's arm: the updates of all parameters as one program, whose arrays a Scope owns.

    on_host   states begin on the host
    """

    def __init__(
        self, gpu: Gpu, case: UpdateCase, values: Values, flag: str | None, mode: str = "auto", on_host: bool = False
    ) -> None:  # fmt: skip
        mg, self.on_host = gpu.mg, on_host
        self.gpu, self.program, self.scope = gpu, mg.static.Program(case.title), mg.static.Scope()
        strategy = mg.static.BuildStrategy(multi_tensor_mode=mode, **({flag: True} if flag else {}))
        self._append(case, values)
        start = time.perf_counter()
        self.compiled = mg.static.CompiledProgram(self.program, build_strategy=strategy)
        plans = importlib.import_module("minigraph.runtime.cuda.plan")
        program = self.compiled.program_for((), place=mg.CUDAPlace(0))
        self.plan = plans.CudaPlan(program, {}, (), False, 0, gpu.runtime, False, self.compiled.options)
        self.plan.run({}, self.scope)
        gpu.runtime.stream.synchronize()
        self.seconds = time.perf_counter() - start

    def _append(self, case: UpdateCase, values: Values) -> None:
        block, cupy = self.program.global_block(), self.gpu.cupy
        g = importlib.import_module("minigraph.program.builder").Builder(block)
        chosen = {"amsgrad": False, "use_nesterov": False, **case.attrs}
        updates = importlib.import_module("minigraph.kernels.updates").update_of(case.op, chosen)
        arrays = self.scope.arrays

        def variable(name: str, array: Any) -> Any:
            arrays[name] = array
            return block.create_var(name, array.shape, array.dtype, persistable=True)

        zeros = np.zeros if self.on_host else cupy.zeros
        rate, self.params = variable("rate", np.array([1e-3], np.float32)), []
        for i, (p, g_) in enumerate(values):
            own = {"Param": variable(f"p{i}", cupy.array(p)), "Grad": variable(f"g{i}", cupy.array(g_))}
            states = {s: variable(f"{s}{i}", zeros(p.shape, np.float32)) for s in updates.states}
            betas = dict(zip(updates.powers, (0.9, 0.999), strict=False))
            states |= {s: variable(f"{s}{i}", np.array([beta])) for s, beta in betas.items()}
            out = {"ParamOut": own["Param"], **{f"{s}Out": v for s, v in states.items()}}
            g.emit(case.op, LearningRate=rate, **own, **states, **case.attrs, out=out)
            self.params.append(f"p{i}")

    def __call__(self) -> None:
        self.plan.run({}, self.scope)

    def results(self) -> list[Any]:
        """The parameters, on the GPU."""
        return [self.scope.arrays[name] for name in self.params]


class WrittenUpdate(UpdateArm):
    """A rule out of elementwise operators: p -= rate * (sign(0.9 m + 0.1 g) + 0.01 p), m = 0.99 m + 0.01 g."""

    def _append(self, case: UpdateCase, values: Values) -> None:
        mg, block, cupy = self.gpu.mg, self.program.global_block(), self.gpu.cupy
        self.params = [f"p{i}" for i in range(len(values))]

        def variable(name: str, array: Any) -> Any:
            self.scope.arrays[name] = cupy.array(array)
            return block.create_var(name, array.shape, array.dtype, persistable=True)

        with mg.static.program_guard(self.program), self.program.emitting("optimize"):
            rate = variable("rate", np.array([1e-3], np.float32))
            for i, (p, g) in enumerate(values):
                p, g, m = variable(f"p{i}", p), variable(f"g{i}", g), variable(f"m{i}", cupy.zeros(p.shape, np.float32))
                step = mg.sign(m * 0.9 + g * 0.1) + p * 0.01
                mg.assign(m * 0.99 + g * 0.01, output=m)
                mg.assign(p - step * rate, output=p)


def measured_written(gpu: Gpu, torch: Any, case: UpdateCase, rounds: int, compiled: bool) -> dict[str, Any]:
    """A rule that a user writes: one by one, joined for each tensor, joined for all; PyTorch's lists and compiler."""
    values = _arrays(gpu.cupy, case.shapes)
    flags = {"fused": "fuse_foreach", "for-loop": None, "each tensor fused": "fuse_elementwise"}
    own = {name: WrittenUpdate(gpu, case, values, flag) for name, flag in flags.items()}
    arms: dict[str, Sequence[Callable[[], Any]]] = {name: [arm] for name, arm in own.items()}
    seconds, errors = {name: arm.seconds for name, arm in own.items()}, {}
    expected = own["for-loop"].results()
    apart = max(float(abs(a - b).max()) for a, b in zip(own["fused"].results(), expected, strict=True))
    if not apart < 1e-5:
        raise ArithmeticError(f"fused differs from the operators one by one by {apart:.2g} after one step")
    failed: dict[str, str] = {}
    for name in ("torch foreach", "torch compiled", "torch compiled loop") if torch is not None else ():
        if name == "torch foreach" or compiled:
            try:
                with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream.ptr)):
                    params = [torch.from_dlpack(p).clone() for p, _ in values]
                    for p, (_, grad) in zip(params, values, strict=True):
                        p.grad = torch.from_dlpack(grad).clone()
                    how = {"foreach": name != "torch compiled loop", "compiled": name != "torch foreach"}
                    step = case.torch(torch, params, **how)
                    start = time.perf_counter()
                    step()
                    torch.cuda.synchronize()
                    seconds[name] = time.perf_counter() - start
                    errors[name] = _difference(gpu, params, expected)
                    arms[name] = [step]
            except Exception as problem:  # a compiler that fails must not cost the others
                failed[name] = f"{type(problem).__name__}: {problem}"[:300]
    for arm in own.values():
        arm()  # the second run is captured
    arms["copy"] = [gpu.copy]
    times = in_turns(turns_of(gpu, torch, arms), rounds)
    return {
        "title": case.title, "parameters": case.size, "nbytes": 4 * case.words * case.size,
        "operators": {name: len(arm.compiled.after.ops) for name, arm in own.items()},
        "launches": {name: len(arm.plan.calls) for name, arm in own.items()},
        "build_seconds": seconds, "difference_to_torch": errors, "failed_arms": failed,
        "remarks": {n: [t for _, t in a.plan.program.notes] for n, a in own.items()},
        "milliseconds": {name: summarized(ms) for name, ms in times.items()},
    }  # fmt: skip


def _arrays(cupy: Any, shapes: Shapes) -> Values:
    """(parameter, gradient) of each shape: normal numbers, of which a block of four million is repeated."""
    block = cupy.asarray(np.random.default_rng(1).normal(size=1 << 22).astype(np.float32))
    sizes = [int(np.prod(shape)) for shape in shapes]
    whole = cupy.tile(block, -(-sum(sizes) // block.size))
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    parts = [(whole[at : at + n], whole[::-1][at : at + n]) for at, n in zip(starts, sizes, strict=True)]
    return [tuple(cupy.ascontiguousarray(a).reshape(s) for a in pair) for pair, s in zip(parts, shapes, strict=True)]


def torch_arms(torch: Any, case: UpdateCase, values: Values, compiled: bool) -> dict[str, Callable[[], Any]]:
    """PyTorch's optimizers on parameters of their own."""
    made: dict[str, Callable[[], Any]] = {}
    ways: dict[str, dict[str, Any]] = {
        "torch for-loop": {"foreach": False, "fused": False}, "torch foreach": {"foreach": True},
        "torch fused": {"fused": True},
    }  # fmt: skip
    if compiled:
        ways["torch compiled"] = {"foreach": True}
    for name, how in ways.items():
        params = []
        for p, grad in values:
            params.append(torch.nn.Parameter(torch.from_dlpack(p).clone()))
            params[-1].grad = torch.from_dlpack(grad).clone()
        optimizer = case.torch(torch, params, **how)
        step = torch.compile(optimizer.step) if name == "torch compiled" else optimizer.step
        made[name] = _TorchStep(step, params)
    return made


class _TorchStep:
    """A step of PyTorch, with its parameters."""

    def __init__(self, step: Callable[[], Any], params: list[Any]) -> None:
        self.step, self.params = step, params

    def __call__(self) -> None:
        self.step()


@dataclass(frozen=True)
class OptimizerBench(GpuBench):
    """The rows of CASES, and the time to build a fused step."""

    def run(self, peers: Sequence[str], rounds: int, command: str, only: str = "") -> None:
        """Measure, print the table and write bench/results/gpu_optimizers.json; peer torch-compile compiles, too."""
        gpu = Gpu()
        torch = importlib.import_module("torch") if "torch" in peers else None
        report = report_of(self, gpu, command, rounds, only)
        ways = [(measured, case) for case in CASES] + [(measured_written, case) for case in WRITTEN]
        tasks = (
            ({"title": case.title}, partial(way, gpu, torch, case, rounds, "torch-compile" in peers))
            for way, case in ways if only in case.title
        )  # fmt: skip
        measure(report, tasks, gpu, torch)
        end(report, partial(table_of, lines_of=lines_of))


def measured(gpu: Gpu, torch: Any, case: UpdateCase, rounds: int, compiled: bool) -> dict[str, Any]:
    """Check all arms after a step, then time them in turns."""
    values = _arrays(gpu.cupy, case.shapes)
    own: dict[str, UpdateArm] = {"fused": UpdateArm(gpu, case, values, LEVELS["fused"])}
    warm = UpdateArm(gpu, case, values, LEVELS["fused"]).seconds  # its kernels are loaded
    own |= {f"fused {mode}": UpdateArm(gpu, case, values, LEVELS["fused"], mode) for mode in MODES}
    own |= {level: UpdateArm(gpu, case, values, flag) for level, flag in LEVELS.items() if level != "fused"}
    expected = own["fused"].results()
    for name, arm in own.items():
        if not all(bool((a == b).all()) for a, b in zip(arm.results(), expected, strict=True)):
            raise ArithmeticError(f"{name} differs from fused after one step")
    arms: dict[str, Sequence[Callable[[], Any]]] = {name: [arm] for name, arm in own.items()}
    errors = {}
    if torch is not None:
        with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream.ptr)):
            for name, arm in torch_arms(torch, case, values, compiled).items():
                arm()
                torch.cuda.synchronize()
                errors[name] = _difference(gpu, arm.params, expected)
                if not errors[name] < 1e-5:
                    raise ArithmeticError(f"{name} differs from minigraph by {errors[name]:.2g} after one step")
                arms[name] = [arm]
    for arm in own.values():
        arm()  # the second run is captured
    arms["copy"] = [gpu.copy]
    times = in_turns(turns_of(gpu, torch, arms), rounds)
    return {
        "title": case.title, "parameters": case.size, "nbytes": 4 * case.words * case.size,
        "operators": {name: len(arm.compiled.after.ops) for name, arm in own.items()},
        "launches": {name: len(arm.plan.calls) for name, arm in own.items()},
        "build_seconds": {"first": own["fused"].seconds, "kernels loaded": warm},
        "difference_to_torch": errors, "remarks": {n: [t for _, t in a.plan.program.notes] for n, a in own.items()},
        "milliseconds": {name: summarized(ms) for name, ms in times.items()},
    }  # fmt: skip


def _difference(gpu: Gpu, params: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference of an element."""
    return max(
        float(abs(gpu.cupy.from_dlpack(p.detach()) - e).max()) for p, e in zip(params, expected, strict=True)
    )


def lines_of(row: Row) -> Iterator[str]:
    """The arms of a row: ms, launches, what share of the copy's bandwidth."""
    ms = medians(row)
    rate = 2 * COPIED / ms.pop("copy")  # bytes per millisecond
    floor = row["nbytes"] / rate
    build = ", ".join(f"{name} {s:.3f} s" for name, s in row["build_seconds"].items())
    moved = f"{row['nbytes'] / 1e9:.3f} GB, copy {rate / 1e6:.0f} GB/s, floor {floor:.4f} ms"
    yield f"{row['title']}; {moved}; built in {build}"
    for name, t in ms.items():
        launches, share = row["launches"].get(name, ""), 100 * floor / t
        yield f"  {name:18} {t:9.4f} ms {launches:>6} launches {share:6.1f} % {t / ms['fused']:7.2f}"
    for name, reason in row.get("failed_arms", {}).items():
        yield f"  {name:18} failed: {reason[:90]}"


BENCH = OptimizerBench("gpu_optimizers", "Parameter updates", lambda: (), ("torch", "torch-compile"))
