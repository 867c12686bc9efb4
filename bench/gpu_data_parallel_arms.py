"""One arm of gpu_data_parallel: `python -m bench.gpu_data_parallel_arms <framework> <row> <gpus> <rounds> <strategy>`.

Prints one JSON line: milliseconds of a step in each round, and the mean losses over all ranks of the first three steps.
"""

from __future__ import annotations

import importlib
import itertools
import json
import socket
import sys
from typing import Any

import numpy as np

from .gpu_data_parallel import batches_of, rows, timed
from .gpu_steps import BETAS, DECAY, EPSILON, RATE
from .gpu_steps_arms import Minigraph


class Parallel(Minigraph):
    """minigraph on several GPUs from one process; feeds lie on the GPU of their rank."""

    def __init__(self, row: Any, gpus: int, strategy: str) -> None:
        super().__init__(row, 0.0, {})
        static, places = self.mg.static, [self.mg.CUDAPlace(i) for i in range(gpus)]
        flags = {"reduce_strategy": getattr(static.BuildStrategy.ReduceStrategy, strategy)}
        main = self.program.before
        self.program = static.CompiledProgram(main).with_data_parallel(
            self.loss.name, static.BuildStrategy.all(**flags), places=places
        )
        self.runtimes = [self.mg.cuda.runtime(place) for place in places]
        dtype = self.mg.types.as_dtype(row.dtype)
        parts = [
            [{k: r.to_device(a.astype(dtype) if a.dtype.kind == "f" else a) for k, a in b.items()}
             for b in batches_of(row, rank, gpus)]
            for rank, r in enumerate(self.runtimes)
        ]  # fmt: skip
        self.steps_fed = [list(feeds) if gpus > 1 else feeds[0] for feeds in zip(*parts, strict=True)]
        self.feeds = itertools.cycle(self.steps_fed)

    def wait(self) -> None:  # type: ignore[override]
        for runtime in self.runtimes:
            runtime.stream.synchronize()

    def losses(self) -> list[float]:
        found = [self.exe.run(self.program, feed, [self.loss], scope=self.scope)[0] for feed in self.steps_fed[:3]]
        return [float(np.mean(np.asarray(loss, np.float64))) for loss in found]


def torch_rank(rank: int, name: str, gpus: int, rounds: int, port: int) -> None:
    """One process of DistributedDataParallel; rank 0 prints."""
    torch = importlib.import_module("torch")
    ddp = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    torch.cuda.set_device(rank)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    group = torch.distributed
    group.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=gpus)
    row = rows(packed=True)[name]
    half = getattr(torch, row.amp.get("dtype", "bfloat16"))
    kept = torch.float32 if row.amp or row.masters else getattr(torch, row.dtype)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = (torch.nn.Parameter(torch.tensor(w, device="cuda").to(kept)) for w in row.parameters())
            self.weights = torch.nn.ParameterList(made)

        def forward(self, batch: Any) -> Any:
            with torch.autocast("cuda", half, enabled=row.dtype == "bfloat16" or bool(row.amp)):
                return row.torch(torch, list(self.weights), batch, 0.0)

    net = Net()
    run = torch.compile(ddp(net, device_ids=[rank], gradient_as_bucket_view=True) if gpus > 1 else net)
    optimizer = torch.optim.AdamW(net.parameters(), RATE, BETAS, EPSILON, DECAY, fused=True)
    dtype = getattr(torch, row.dtype)
    batches = [
        {k: torch.tensor(a, device="cuda").to(dtype if a.dtype.kind == "f" else torch.int64) for k, a in b.items()}
        for b in batches_of(row, rank, gpus)
    ]
    feeds = itertools.cycle(batches)

    def work(batch: Any) -> Any:
        loss = run(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for batch in batches[:3]:
        loss = work(batch).detach().double()
        group.all_reduce(loss)
        losses.append(float(loss) / gpus)
    ms = timed(lambda: work(next(feeds)), torch.cuda.synchronize, rounds, agreed=agreed_steps(torch, group))
    if rank == 0:
        print(json.dumps({"ms": ms, "losses": losses}), flush=True)
    group.destroy_process_group()


def agreed_steps(torch: Any, group: Any) -> Any:
    """A function that gives all ranks rank 0's number of steps."""

    def agreed(steps: int) -> int:
        number = torch.tensor([steps], device="cuda")
        group.broadcast(number, 0)
        return int(number)

    return agreed


def main() -> None:
    framework, name, gpus, rounds, strategy = sys.argv[1:]
    if framework == "torch":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        spawn = importlib.import_module("torch.multiprocessing").spawn
        spawn(torch_rank, (name, int(gpus), int(rounds), port), nprocs=int(gpus))
        return
    arm = Parallel(rows()[name], int(gpus), strategy)
    losses = arm.losses()
    print(json.dumps({"ms": timed(arm.step, arm.wait, int(rounds)), "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
