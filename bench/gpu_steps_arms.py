"""The arms of gpu_steps: minigraph's, PyTorch's and JAX's way to run a StepRow."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import product_kernels
from .gpu_steps import BETAS, DECAY, EPSILON, RATE, StepRow

ONE_BY_ONE = 8  # steps of tens of launches that fit into the GPU's queue


class StepArm:
    """step() gives work to the GPU, wait() until it is done.

    queued  steps that fit into the GPU's queue, so that the host need not wait for it
    """

    step: Callable[[], Any]
    wait: Callable[[], Any]
    queued: int = 64

    def peaks(self) -> tuple[float | None, float | None]:
        """MiB that a step needs beside inputs, parameters, states: without and with workspaces of products."""
        raise NotImplementedError

    def result(self) -> list[float]:
        """What must agree between arms: three losses, or the norms of all gradients."""
        raise NotImplementedError


def norm(array: Any) -> float:
    return float(np.linalg.norm(np.asarray(array, np.float64)))


class Built(NamedTuple):
    """A row's programs; `grads` where nothing trains, else an optimizer."""

    main: Any
    startup: Any
    parameters: Sequence[Any]
    loss: Any
    grads: Sequence[Any]
    optimizer: Any


def built(mg: Any, row: StepRow, drop: float) -> Built:
    """A row's programs; needs no GPU."""
    mg.enable_static()
    mg.set_default_dtype(row.dtype)
    mg.cuda.set_float32_matmul_precision("high")
    main, startup = mg.static.Program(row.name), mg.static.Program()
    main.random_seed = startup.random_seed = 7
    grads, optimizer = [], None
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        first = cast(row.batch(np.random.default_rng(0)), mg.types.as_dtype(row.dtype))
        data = {k: mg.static.data(k, list(a.shape), a.dtype.name) for k, a in first.items()}
        for name in row.wrt:
            data[name].stop_gradient = False
        loss = row.static(mg, data, drop)
        parameters = main.all_parameters()
        if row.trains:
            optimizer = mg.optimizer.AdamW(RATE, *BETAS, epsilon=EPSILON, weight_decay=DECAY)
            optimizer = mg.static.amp.decorate(optimizer, **row.amp) if row.amp else optimizer
            optimizer.minimize(loss)
        else:
            grads = mg.static.gradients([loss], [*parameters, *(data[name] for name in row.wrt)])
            for v in (loss, *grads):
                v.persistable = True  # the Scope keeps it, as peers keep a tensor: nothing of it is dead code
    mg.set_default_dtype("float32")
    return Built(main, startup, parameters, loss, grads, optimizer)


def cast(batch: Mapping[str, np.ndarray], dtype: np.dtype) -> dict[str, np.ndarray]:
    """The batch with its numbers in `dtype`; ids stay."""
    return {k: a.astype(dtype) if a.dtype.kind == "f" else a for k, a in batch.items()}


class Minigraph(StepArm):
    """`flags` for the BuildStrategy, None for a Program as it is; `ahead`: its plan is made before the startup runs."""

    def __init__(
        self, row: StepRow, drop: float, flags: dict[str, Any] | None, on_host: bool = False, ahead: bool = False
    ) -> None:  # fmt: skip
        mg = self.mg = importlib.import_module("minigraph")
        memory = importlib.import_module("minigraph.runtime.memory")
        self.most_live, self.Life = memory.most_live, memory.Life
        self.lives = importlib.import_module("minigraph.runtime.cuda.layout.order").lives
        self.every_call = importlib.import_module("minigraph.kernels.cuda.record.call").every_call
        main, startup, parameters, self.loss, self.grads, optimizer = built(mg, row, drop)
        self.program = main
        if flags is not None and not flags.get("allow_cuda_graph_capture", True):
            self.queued = ONE_BY_ONE
        if flags is not None:
            every = flags.pop("all", True)
            strategy = mg.static.BuildStrategy.all(**flags) if every else mg.static.BuildStrategy(**flags)
            self.program = mg.static.CompiledProgram(main, build_strategy=strategy)
        dtype = mg.types.as_dtype(row.dtype)
        batches = [cast(b, dtype) for b in row.batches()]
        self.exe, self.scope, self.row = mg.static.Executor(mg.CUDAPlace(0)), mg.static.Scope(), row
        if ahead:
            self.exe.prepare(self.program, batches[0], scope=self.scope)
        self.runtime = mg.cuda.runtime(mg.CUDAPlace(0))
        self.exe.run(startup, scope=self.scope)
        for p, value in zip(parameters, row.parameters(), strict=True):
            assert p.shape == value.shape, (p, value.shape)
            self.scope.write(p.name, value.astype(dtype, copy=False))
        if row.amp:  # these are the first values of the float32 copies, too
            optimizer.amp_init(mg.CUDAPlace(0), self.scope, rewrite_master_weight=True)
        on_gpu = [{k: self.runtime.to_device(a) for k, a in b.items()} for b in batches]
        self.batches = batches if on_host else on_gpu
        self.feeds = itertools.cycle(self.batches)

    def wait(self) -> None:  # type: ignore[override]
        self.runtime.stream.synchronize()

    def step(self) -> None:  # type: ignore[override]
        self.exe.run(self.program, feed=next(self.feeds), scope=self.scope)

    @property
    def plan(self) -> Any:
        """The plan of `step`."""
        return next(reversed(self.exe._plans.values()))

    def peaks(self) -> tuple[float, float]:  # type: ignore[override]
        self.step()
        bound = self.plan.bound
        fed = {id(bound.buffers[i]) for i in bound.schedule.feeds.values()}
        workspaces = {id(c.workspace) for c in self.every_call(bound.binder.calls) if hasattr(c, "epilogue")}
        blocks = [(b, life) for b, life in bound.blocks if id(b) not in fed]
        if not self.row.trains:  # the Scope keeps gradients; they count from when they are written, as PyTorch's do
            gradients = {id(bound.outside[g.name]) for g in self.grads}
            units, numbered = bound.units
            for n, (first, _) in self.lives(bound.order, [unit.blocks for unit in units]).items():
                if id(numbered[n]) in gradients:
                    blocks.append((numbered[n], self.Life(numbered[n].nbytes, first, len(bound.order))))
        whole = self.most_live([life for _, life in blocks])
        return self.most_live([life for b, life in blocks if id(b) not in workspaces]) / 2**20, whole / 2**20

    def choices(self) -> list[str]:
        """What `explain` says of the kernels of `step`: under autotune the times of what could run instead."""
        return [f"{op.type}: {text}" for op, text in self.program.program_for((), place=self.exe.place).notes]

    @property
    def arena(self) -> float:
        """MiB of the arena, workspaces and copies of feeds included."""
        return self.plan.bound.arena_bytes / 2**20

    def result(self) -> list[float]:
        if self.row.trains:
            return [
                float(self.exe.run(self.program, b, [self.loss], scope=self.scope)[0]) for b in self.batches[:3]
            ]
        for _ in range(3):  # the third one is a launch of the graph
            found = self.exe.run(self.program, self.batches[0], self.grads, scope=self.scope)
        return [norm(g.astype(np.float64)) for g in found]


class Without(Minigraph):
    """minigraph without some of its kernels for products; the plans of `step` and `result` are made without them."""

    def __init__(self, row: StepRow, drop: float) -> None:
        self.names = row.without
        super().__init__(row, drop, {})

    def step(self) -> None:  # type: ignore[override]
        with product_kernels.without(self.names):
            super().step()

    def result(self) -> list[float]:
        with product_kernels.without(self.names):
            return super().result()


class Torch(StepArm):
    """mode: eager, graph, compile or reduce-overhead; parameters in `dtype`, or float32 with `masters`.

    Rows with `amp` run under autocast with float32 parameters, and with a GradScaler where that is float16.
    """

    def __init__(self, row: StepRow, drop: float, mode: str, masters: bool) -> None:
        torch = self.torch = importlib.import_module("torch")
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        self.row, self.wait, self.mode = row, torch.cuda.synchronize, mode
        self.queued = self.queued if mode == "graph" else ONE_BY_ONE
        dtype = getattr(torch, row.dtype)
        kept = torch.float32 if masters else dtype
        self.parameters = [
            torch.tensor(w, device="cuda").to(kept).requires_grad_() for w in row.parameters()
        ]
        self.batches = [
            {k: torch.tensor(a, device="cuda").to(dtype if a.dtype.kind == "f" else torch.int64) for k, a in b.items()}
            for b in row.batches()
        ]
        for b in self.batches:
            for name in row.wrt:
                b[name].requires_grad_()
        self.feeds = itertools.cycle(self.batches)
        self.optimizer = torch.optim.AdamW(
            self.parameters, RATE, BETAS, EPSILON, DECAY, fused=True, capturable=mode == "graph"
        )
        half = getattr(torch, row.amp.get("dtype", "bfloat16"))
        self.scaler = torch.amp.GradScaler("cuda", enabled=bool(row.amp) and half == torch.float16)

        def loss(p: Any, b: Any) -> Any:
            with torch.autocast("cuda", half, enabled=bool(row.amp)):
                return row.torch(torch, p, b, drop)

        if mode in ("compile", "reduce-overhead"):
            self.loss = torch.compile(loss, mode="default" if mode == "compile" else mode)
        else:
            self.loss = loss
        if mode == "graph":
            self._capture()

    def _work(self, batch: Any) -> Any:
        loss = self.loss(self.parameters, batch)
        for t in (*self.parameters, *(batch[n] for n in self.row.wrt)):
            t.grad = None
        self.scaler.scale(loss).backward()
        if self.row.trains:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss

    def _capture(self) -> None:
        torch = self.torch
        saved = [p.detach().clone() for p in self.parameters]
        self.static = {k: t.detach().clone().requires_grad_(t.requires_grad) for k, t in self.batches[0].items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._work(self.static)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.captured_loss = self._work(self.static)
        with torch.no_grad():
            for p, s in zip(self.parameters, saved, strict=True):
                p.copy_(s)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def _run(self, batch: Any) -> Any:
        if self.mode != "graph":
            return self._work(batch)
        with self.torch.no_grad():
            for k, t in self.static.items():
                t.copy_(batch[k])
        self.graph.replay()
        return self.captured_loss

    def step(self) -> None:  # type: ignore[override]
        self._run(next(self.feeds))

    def peaks(self) -> tuple[float | None, float | None]:
        """Its workspaces are tensors that stay from the first product on: freed before, they count too."""
        if self.mode in ("graph", "reduce-overhead"):  # their pools are not in the allocator's figures
            return None, None
        self.step()
        without = self._high_water()
        clear = getattr(self.torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is None:
            return without, None
        clear()
        return without, self._high_water()

    def _high_water(self) -> float:
        cuda = self.torch.cuda
        for t in (*self.parameters, *(b[n] for b in self.batches for n in self.row.wrt)):
            t.grad = None
        cuda.synchronize()
        before = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        self.step()
        cuda.synchronize()
        return (cuda.max_memory_allocated() - before) / 2**20

    def result(self) -> list[float]:
        if self.row.trains:
            return [float(self._run(b)) for b in self.batches[:3]]
        self._run(self.batches[0])
        inputs = self.static if self.mode == "graph" else self.batches[0]
        return [norm(t.grad.double().cpu()) for t in (*self.parameters, *(inputs[n] for n in self.row.wrt))]


class JaxStepArm(StepArm):
    """jit with donated parameters and states; float32 parameters beside those of `dtype` with `masters`."""

    def __init__(self, row: StepRow, drop: float, masters: bool) -> None:
        jax = self.jax = importlib.import_module("jax")
        jax.config.update("jax_default_matmul_precision", "tensorfloat32" if row.dtype == "float32" else None)
        jnp, self.row = jax.numpy, row
        kept = "float32" if masters else row.dtype
        self.parameters = [jnp.asarray(w).astype(kept) for w in row.parameters()]
        self.batches = [
            {k: jnp.asarray(a).astype(row.dtype if a.dtype.kind == "f" else "int32") for k, a in b.items()}
            for b in row.batches()
        ]
        if drop:
            for i, b in enumerate(self.batches):
                b["key"] = jax.random.key(i)
        self.feeds = itertools.cycle(self.batches)
        zeros = [jnp.zeros(w.shape, "float32") for w in self.parameters]
        self.state = (self.parameters, zeros, [z.copy() for z in zeros], jnp.zeros((), "float32"))
        loss_of = lambda p, b: row.jax(jax, p, b, drop)  # noqa: E731

        def train(state: Any, batch: Any) -> Any:
            p, m, v, t = state
            loss, grads = jax.value_and_grad(loss_of)(p, batch)
            t = t + 1
            new = [self._adamw(*one, t) for one in zip(p, grads, m, v, strict=True)]
            return (*[[n[i] for n in new] for i in range(3)], t), loss

        def gradients(p: Any, batch: Any) -> Any:
            wrt = {n: batch[n] for n in row.wrt}
            found = jax.value_and_grad(lambda p, w: loss_of(p, {**batch, **w}), argnums=(0, 1))(p, wrt)
            return found

        if row.trains:
            self.compiled = jax.jit(train, donate_argnums=0).lower(self.state, self.batches[0]).compile()
        else:
            self.compiled = jax.jit(gradients).lower(self.parameters, self.batches[0]).compile()
        analysis = self.compiled.memory_analysis()
        outputs = 0 if row.trains else analysis.output_size_in_bytes
        self.temporary = (analysis.temp_size_in_bytes + outputs) / 2**20
        self.latest: Any = None

    def _adamw(self, p: Any, g: Any, m: Any, v: Any, t: Any) -> Any:
        jnp, (b1, b2) = self.jax.numpy, BETAS
        g, wide = g.astype("float32"), p.astype("float32")
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        step = (m / (1 - b1**t)) / (jnp.sqrt(v / (1 - b2**t)) + EPSILON)
        return (wide * (1 - RATE * DECAY) - RATE * step).astype(p.dtype), m, v

    def _run(self, batch: Any) -> Any:
        if self.row.trains:
            self.state, self.latest = self.compiled(self.state, batch)
        else:
            self.latest = self.compiled(self.parameters, batch)
        return self.latest

    def step(self) -> None:  # type: ignore[override]
        self._run(next(self.feeds))

    def peaks(self) -> tuple[float | None, float | None]:
        """XLA's temporaries and outputs; workspaces are among its temporaries."""
        return None, self.temporary

    def wait(self) -> None:  # type: ignore[override]
        self.jax.block_until_ready((self.latest, self.state))

    def result(self) -> list[float]:
        if self.row.trains:
            return [float(self._run(b)) for b in self.batches[:3]]
        _, (grads, inputs) = self._run(self.batches[0])
        return [norm(g.astype("float32")) for g in (*grads, *(inputs[n] for n in self.row.wrt))]


def arms(row: StepRow, peers: list[str], drop: float) -> Iterator[tuple[str, Callable[[], StepArm]]]:
    """(title, how to make it) of every arm; minigraph's captured one first."""
    yield "captured", lambda: Minigraph(row, drop, {})
    yield "autotuned", lambda: Minigraph(row, drop, {"autotune": True})
    yield "fused", lambda: Minigraph(row, drop, {"allow_cuda_graph_capture": False})
    yield "plain captured", lambda: Minigraph(row, drop, None)
    yield "plain", lambda: Minigraph(row, drop, {"all": False, "allow_cuda_graph_capture": False})
    yield "captured, host feeds", lambda: Minigraph(row, drop, {}, on_host=True)
    if row.without:
        yield f"captured, without {', '.join(row.without)}", lambda: Without(row, drop)
    if "torch" in peers:
        for mode in ("eager", "graph", "compile", "reduce-overhead"):
            yield f"torch {mode}", lambda mode=mode: Torch(row, drop, mode, row.masters)
        if row.masters:
            yield "torch compile, all bf16", lambda: Torch(row, drop, "compile", masters=False)
    if "jax" in peers and not row.amp:
        yield "jax", lambda: JaxStepArm(row, drop, row.masters)


def timed(arm: StepArm, steps: int) -> float:
    """Milliseconds per step, behind a few that wake the host and the clocks from a rest."""
    for _ in range(steps // 8):
        arm.step()
    arm.wait()
    start = time.perf_counter()
    for _ in range(steps):
        arm.step()
    arm.wait()
    return (time.perf_counter() - start) / steps * 1e3


def host_time(arm: StepArm, bursts: int) -> dict[str, float]:
    """Microseconds that `step` keeps the host, while the GPU's queue has room for all that it is given.

    Each burst begins when the GPU has nothing to do, and has `queued` steps. Of all steps of all bursts the
    median, the 90th percentile and the mean, which tells how many steps a second the host can give.
    """
    found = []
    for _ in range(bursts):
        arm.wait()
        stamps = [time.perf_counter()]
        for _ in range(arm.queued):
            arm.step()
            stamps.append(time.perf_counter())
        found += np.diff(stamps).tolist()
    arm.wait()
    us = np.array(found) * 1e6
    shown = {"median": np.median(us), "p90": np.percentile(us, 90), "mean": us.mean()}
    return {**{name: round(float(x), 2) for name, x in shown.items()}, "steps_in_a_burst": arm.queued}
