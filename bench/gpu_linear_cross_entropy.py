"""The last layer of a language model with its loss on a GPU: forward and backward, bfloat16, time and memory.

Arms: minigraph is the operator that gives loss and gradients at once, weight gradient in float32, with its default
chunks of 4096 rows; "chunk N" takes N rows at a time, of which Liger-Kernel takes 256 in the first case; "bfloat16
sums" adds the weight gradient up in bfloat16; "program" is matmul and cross_entropy as a user writes them, with
fuse_linear_cross_entropy, weight gradient rounded to bfloat16 at the end; "unfused" is the same program without the
pass; "tuned" is the operator with autotune.
torch is eager, compile is torch.compile, for the first case only. liger is Liger-Kernel's function, weight gradient
summed in bfloat16, or in float32 and cast to bfloat16 at the end; what it needs for that counts as beyond.
Work: 6 * rows * H * V FLOP for the three products. Memory: what an arm has beyond inputs, loss and gradients; by rows
both planned and measured, as what the card has less of.
"the step" is the pull request's (Liger-Kernel 1239): dW += dlogits^T x for one chunk of rows, bfloat16 into float32,
in its three ways old, fallback and fast, by minigraph and by PyTorch; its memory counts dW and inputs besides.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .gpu_linear_cross_entropy_peers import PEERS, functions
from .gpu_linear_cross_entropy_step import STEP_ARMS, run_all, step_program, torch_peak, torch_steps
from .gpu_report import Row, Task, end, measure, medians, report_of, table_of
from .gpu_timing import Gpu, Input
from .harness import OnGpu, summarized
from .turns import in_turns, without_rest

TOLERANCE = 1e-2  # of ||found - exact|| / ||exact||
OF_LIGER = 5e-2  # the same where a gradient is rounded to bfloat16 after each of many small chunks
CHECKED = 64  # classes whose weight gradients are compared
MEMORY_ROWS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
MIB = 2**20


class LastLayer(NamedTuple):
    """Sizes of a case, and the chunks that are timed besides the default."""

    classes: int
    inner: int
    rows: int
    chunks: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return f"V {self.classes}, H {self.inner}, {self.rows} rows"

    @property
    def flops(self) -> int:
        return 6 * self.classes * self.inner * self.rows


HEADS = (
    LastLayer(131072, 4096, 8192, (256, 1024, 4096, 8192)),
    LastLayer(128256, 4096, 1024), LastLayer(128256, 4096, 4096, (4096,)),
)  # fmt: skip
STEP = LastLayer(131072, 4096, 2048)
STEP_TOLERANCE = 1e-5  # of ||found - exact|| / ||exact||, where nothing is rounded to 16 bits


class LastLayerArm(NamedTuple):
    """What is timed: a launch, its results for the check, and its memory in bytes."""

    launch: Callable[[], Any]
    results: Callable[[], Sequence[Any]]
    nbytes: int


def inputs(head: LastLayer) -> dict[str, Input]:
    return {
        "x": Input((head.rows, head.inner), "bfloat16"),
        "w": Input((head.classes, head.inner), "bfloat16", scale=head.inner**-0.5),
        "label": Input((head.rows,), "int64", below=head.classes),
    }


def operator(g: Any, v: dict[str, Any], chunk_bytes: int | None, **attrs: Any) -> Sequence[Any]:
    """Loss of the rows, DX and DW of their mean."""
    if chunk_bytes is not None:
        attrs["chunk_bytes"] = chunk_bytes
    rows = v["x"].shape[0]
    seed = g.fill_constant(shape=(rows, 1), value=1 / rows, dtype="float32")
    loss, _, _, dx, dw, *_ = g.fused_linear_cross_entropy(
        v["x"], v["w"], v["label"], None, seed, trans_w=True, needs=["DX", "DW"], **attrs
    )
    return g.reduce_mean(loss), dx, dw


def written(mg: Any, v: dict[str, Any]) -> Sequence[Any]:
    """The same as a user writes it."""
    loss = mg.nn.functional.cross_entropy(
        mg.cast(mg.matmul(v["x"], v["w"], transpose_y=True), "float32"), v["label"]
    )
    return loss, *mg.static.gradients([loss], [v["x"], v["w"]])


def arm(
    gpu: Gpu, arrays: dict[str, Any], kind: str, chunk_bytes: int | None = None, tuned: bool = False, **attrs: Any
) -> LastLayerArm:
    """A bound program on these arrays."""
    mg = gpu.mg
    program, outputs = _program(gpu, {n: (a.shape, a.dtype) for n, a in arrays.items()}, kind, chunk_bytes, **attrs)
    scope = mg.static.Scope()
    scope.arrays.update(arrays)
    plan = gpu.plan(program, outputs, tuned)
    plan.run({}, scope, return_numpy=False)

    def results() -> list[Any]:
        fetched = [gpu.runtime.fetch(plan.bound.buffers[i], False) for i in plan.schedule.fetched]
        gpu.runtime.stream.synchronize()
        return fetched

    return LastLayerArm(partial(run_all, plan), results, _beyond(plan.bound))


def _program(gpu: Gpu, types: dict[str, Any], kind: str, chunk_bytes: int | None, **attrs: Any) -> Any:
    """(program, names of loss, DX and DW)"""
    mg = gpu.mg
    main = mg.static.Program("head")
    block = main.global_block()
    with mg.static.program_guard(main, mg.static.Program()):
        v = {n: block.create_var(n, *t, persistable=True, stop_gradient=n == "label") for n, t in types.items()}
        g = importlib.import_module("minigraph.program.builder").Builder(block)
        found = operator(g, v, chunk_bytes, **attrs) if kind == "operator" else written(mg, v)
        outputs = tuple(o.name for o in found)
    if kind == "program":
        strategy = mg.static.BuildStrategy(fuse_linear_cross_entropy=True)
        main = mg.static.CompiledProgram(main, build_strategy=strategy).program_for(outputs, place=mg.CUDAPlace(0))
    return main, outputs


def _beyond(bound: Any) -> int:
    """Bytes of the arena that hold neither loss nor gradients."""
    placed = {id(b) for b, _ in bound.offsets}
    fetched = [bound.buffers[i] for i in bound.schedule.fetched]
    return bound.arena_bytes - sum(b.nbytes for b in fetched if id(b) in placed)


def planned_memory(gpu: Gpu, head: LastLayer) -> dict[str, float]:
    """{rows: MiB beyond inputs, loss and gradients} as the memory plan says; nothing is run."""
    made = {}
    for rows in MEMORY_ROWS:
        types = {n: (i.shape, i.dtype) for n, i in inputs(head._replace(rows=rows)).items()}
        program, outputs = _program(gpu, types, "operator", None)
        settling = gpu.runtime.settling(False)
        make = importlib.import_module("minigraph.runtime.cuda.bind").bind_program
        bound = make(program, {}, outputs, device=gpu.runtime.device, settling=settling)
        made[str(rows)] = round(_beyond(bound) / MIB, 2)
    return made


def measured_memory(gpu: Gpu, torch: Any, head: LastLayer) -> dict[str, float]:
    """{rows: MiB beyond inputs, loss and gradients} that the card has less of while the operator runs once more."""
    made: dict[str, float] = {}
    for rows in (MEMORY_ROWS[0], *MEMORY_ROWS):  # the first one loads kernels
        sized = head._replace(rows=rows)
        arrays = {n: gpu.make(wanted, i) for i, (n, wanted) in enumerate(inputs(sized).items())}
        gpu.cupy.cuda.Device().synchronize()
        gpu.release(torch)
        before, _ = gpu.cupy.cuda.runtime.memGetInfo()
        found = arm(gpu, arrays, "operator")
        gpu.stream.synchronize()
        gpu.release(torch)  # the copies that its first run has returned
        found.launch()
        gpu.stream.synchronize()
        after, _ = gpu.cupy.cuda.runtime.memGetInfo()
        gradients = rows * head.inner * 2 + head.classes * head.inner * 4
        made[str(rows)] = round((before - after - gradients) / MIB, 2)
        del arrays, found
        gc.collect()
        gpu.release(torch)
    return made


def torch_arm(torch: Any, gpu: Gpu, arrays: dict[str, Any], function: Callable[..., Any]) -> LastLayerArm:
    """Loss and gradients by PyTorch."""
    v = gpu.tensors(torch, arrays)
    x, w = v["x"].detach().requires_grad_(), v["w"].detach().requires_grad_()
    kept: list[Any] = []

    def launch() -> None:
        x.grad = w.grad = None
        loss = function(x, w, v["label"])
        loss.backward()
        kept[:] = [loss.detach()]

    for _ in range(3):
        launch()
    torch.cuda.synchronize()
    x.grad = w.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    launch()
    torch.cuda.synchronize()
    beyond = torch.cuda.max_memory_allocated() - before - x.nbytes - w.nbytes

    def results() -> list[Any]:
        bits = [t.detach().float() for t in (kept[0], x.grad, w.grad)]
        return [gpu.cupy.from_dlpack(t.contiguous()) for t in bits]

    return LastLayerArm(launch, results, beyond)


class Exact:
    """Loss of the mean, DX, and DW of some classes in float64, computed on the GPU a few rows at a time."""

    def __init__(self, gpu: Gpu, arrays: dict[str, Any]) -> None:
        cupy = self.cupy = gpu.cupy
        self.gpu = gpu
        x, w, label = (gpu.wide(arrays[n]) for n in ("x", "w", "label"))
        rows = x.shape[0]
        picked = np.random.default_rng(1).integers(0, w.shape[0], CHECKED // 2)
        self.classes = cupy.concatenate([cupy.asarray(picked), label[: CHECKED // 2]])
        self.dx, total = cupy.empty_like(x), 0.0
        self.dw = cupy.zeros((CHECKED, x.shape[1]))
        for start in range(0, rows, 512):
            at = slice(start, start + 512)
            z = x[at] @ w.T
            own = cupy.arange(z.shape[0]), label[at]
            top = z.max(axis=1, keepdims=True)
            lse = top + cupy.log(cupy.exp(z - top).sum(axis=1, keepdims=True))
            total += float((lse[:, 0] - z[own]).sum())
            d = cupy.exp(z - lse)
            d[own] -= 1
            d /= rows
            self.dx[at] = d @ w
            self.dw += d[:, self.classes].T @ x[at]
        self.loss = total / rows

    def errors(self, results: Sequence[Any]) -> list[float]:
        """||found - exact|| / ||exact|| of loss, DX and DW."""
        loss, dx, dw = results
        words = self.cupy.take(dw.view(f"u{dw.dtype.itemsize}"), self.classes, axis=0)
        found = self.gpu.wide(loss).reshape(-1)[:1], self.gpu.wide(dx), self.gpu.wide(words.view(dw.dtype))
        exact = self.cupy.asarray([self.loss]), self.dx, self.dw
        return [float(((f - e) ** 2).sum() / (e**2).sum()) ** 0.5 for f, e in zip(found, exact, strict=True)]


def timed(gpu: Gpu, arms: dict[str, LastLayerArm], rounds: int, torch: Any) -> dict[str, Any]:
    """Milliseconds of every arm, arms in turns; and without any rest between them."""

    def once(launch: Callable[[], Any]) -> float:
        if torch is None:
            return gpu.milliseconds([launch], 1)
        with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream.ptr)):
            return gpu.milliseconds([launch], 1)

    turns = {name: partial(once, made.launch) for name, made in arms.items()}
    for turn in turns.values():
        turn()
    return {
        "milliseconds": {name: summarized(ms) for name, ms in in_turns(turns, rounds).items()},
        "milliseconds_without_rest": {name: round(ms, 4) for name, ms in without_rest(turns).items()},
    }


def measured(gpu: Gpu, torch: Any, peers: Sequence[str], head: LastLayer, rounds: int) -> dict[str, Any]:
    """One row: check every arm, then time all."""
    arrays = {n: gpu.make(wanted, 7 * i) for i, (n, wanted) in enumerate(inputs(head).items())}
    row_bytes = head.classes * 2
    arms = {"minigraph": arm(gpu, arrays, "operator")}
    arms |= {f"chunk {c}": arm(gpu, arrays, "operator", c * row_bytes) for c in head.chunks}
    arms["bfloat16 sums"] = arm(gpu, arrays, "operator", accumulate_dtype="bfloat16")
    arms["tuned"] = arm(gpu, arrays, "operator", tuned=True)
    arms["program"] = arm(gpu, arrays, "program")
    arms["unfused"] = arm(gpu, arrays, "unfused")
    if torch is not None:
        with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream.ptr)):
            for name, function in functions(torch, peers, head is HEADS[0]).items():
                arms[name] = torch_arm(torch, gpu, arrays, function)
    exact = Exact(gpu, arrays)
    errors = {name: exact.errors(made.results()) for name, made in arms.items()}
    for name, found in errors.items():
        if not max(found) <= (OF_LIGER if name == "liger" else TOLERANCE):
            raise ArithmeticError(f"{name} is off by {found} relative to the norms of loss, DX, DW")
    times = timed(gpu, arms, rounds, torch)
    for name, made in arms.items():
        if not name.startswith(PEERS) and exact.errors(made.results()) != errors[name]:
            raise ArithmeticError(f"{name}: results changed from run to run")
    return {
        "title": head.title, "flops": head.flops, "relative_errors_of_loss_dx_dw": errors,
        "mib_beyond_gradients": {name: round(made.nbytes / MIB, 2) for name, made in arms.items()},
        **times,
    }  # fmt: skip


def the_step(gpu: Gpu, rounds: int, torch: Any) -> dict[str, Any]:
    """dW += dlogits^T x in three ways, and the fast one with autotune: time, error, and all memory beyond dW and x."""
    types = {"d": Input((STEP.rows, STEP.classes), "bfloat16"), "x": Input((STEP.rows, STEP.inner), "bfloat16")}
    arrays = {n: gpu.make(wanted, i) for i, (n, wanted) in enumerate(types.items())}
    arrays["acc"] = gpu.cupy.zeros((STEP.classes, STEP.inner), "f4")
    scope = gpu.mg.static.Scope()
    scope.arrays.update(arrays)
    plans = {arm: gpu.plan(step_program(gpu.mg, way, STEP), ()) for arm, way in STEP_ARMS.items()}
    plans["tuned"] = gpu.plan(step_program(gpu.mg, "fast", STEP), (), autotune=True)
    arms = {
        name: LastLayerArm(partial(run_all, plan), partial(plan.run, {}, scope), plan.bound.arena_bytes)
        for name, plan in plans.items()
    }
    failed: dict[str, str] = {}
    if torch is not None:
        with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream.ptr)):
            for name, run in torch_steps(torch, gpu.tensors(torch, arrays)).items():
                try:
                    arms[name] = LastLayerArm(run, run, torch_peak(torch, run))
                except (RuntimeError, TypeError) as problem:  # a PyTorch without this form
                    failed[name] = f"{type(problem).__name__}: {problem}"[:200]
    some = slice(0, CHECKED)
    d = gpu.wide(gpu.cupy.ascontiguousarray(arrays["d"].view("u2")[:, some]).view(arrays["d"].dtype))
    exact, errors = d.T @ gpu.wide(arrays["x"]), {}
    for name, made in arms.items():
        scope.arrays["acc"].fill(0)
        gpu.cupy.cuda.Device().synchronize()
        made.results()
        gpu.cupy.cuda.Device().synchronize()
        found = scope.arrays["acc"][some].astype("f8")
        errors[name] = float(((found - exact) ** 2).sum() / (exact**2).sum()) ** 0.5
        if not errors[name] < (TOLERANCE if name.endswith("old") else STEP_TOLERANCE):
            raise ArithmeticError(f"the step, {name}, is off by {errors[name]:.2g}")
    times = timed(gpu, arms, rounds, torch)
    return {
        "title": f"the step, chunk of {STEP.rows} rows", "flops": 2 * STEP.classes * STEP.inner * STEP.rows,
        "relative_errors": errors, "failed_arms": failed,
        "mib_beyond_gradients": {name: round(made.nbytes / MIB, 2) for name, made in arms.items()},
        **times,
    }  # fmt: skip


class GpuHeads(OnGpu):
    """The comparison, with the interface of GpuBench."""

    name = "gpu_linear_cross_entropy"
    title = "last layer and its loss, bfloat16"
    peers = PEERS

    def run(self, peers: Sequence[str], rounds: int, command: str, only: str = "") -> None:
        """Time all cases, print the table and write bench/results/<name>.json."""
        gpu = Gpu()
        remarks = []
        if "liger" in peers and importlib.util.find_spec("liger_kernel") is None:
            remarks.append("liger is left out: pip install --no-deps liger_kernel")
            peers = [p for p in peers if p != "liger"]
        torch = importlib.import_module("torch") if peers else None
        tasks: list[Task] = [
            ({"title": head.title}, partial(measured, gpu, torch, peers, head, rounds)) for head in HEADS
        ]
        tasks.append(({"title": "the step"}, partial(the_step, gpu, rounds, torch)))
        report = report_of(self, gpu, command, rounds, only) | {"remarks": remarks}
        measure(report, (task for task in tasks if only in task[0]["title"]), gpu, torch)
        end(
            report, table, planned_mib_beyond_gradients_by_rows=planned_memory(gpu, HEADS[0]),
            measured_mib_beyond_gradients_by_rows=measured_memory(gpu, torch, HEADS[0]) if only in "memory" else {},
        )  # fmt: skip


def lines_of(row: Row) -> Iterator[str]:
    """One line for each arm: time, rate, memory."""
    yield f"{row['title']:30} {'ms':>9} {'TFLOP/s':>9} {'no rest':>9} MiB beyond gradients"
    for name, ms in medians(row).items():
        rate, mib = row["flops"] / ms / 1e9, row["mib_beyond_gradients"][name]
        yield f"    {name:26} {ms:9.3f} {rate:9.0f} {row['milliseconds_without_rest'][name]:9.3f} {mib:9.1f}"


def table(report: dict[str, Any]) -> str:
    """The rows, and memory by rows."""
    lines = [table_of(report, lines_of)]
    for how in ("planned", "measured"):
        by_rows = report[f"{how}_mib_beyond_gradients_by_rows"]
        lines.append(f"{how} MiB by rows: " + ", ".join(f"{n}: {mib}" for n, mib in by_rows.items()))
    lines += report["remarks"]
    return "\n".join(lines)


BENCH = GpuHeads()
