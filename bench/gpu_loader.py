"""Batches that a DataLoader reads while a GPU trains: GPT-2's step with them, and from arrays that are there.

    python -m bench gpu_loader

GPT-2 124 M as in gpu_gpt2. A sample is cut from a shard of 1 MiB that zlib unpacks first, so one thread takes longer
for a batch of 16 than the GPU for a step. Arms: the same batch on the card, or on the host, again and again; a
DataLoader whose threads read ahead; one that reads in the caller's thread. The GPU waits for batches as much as the
third arm takes longer than the second.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from minigraph.io import DataLoader, Dataset

from .gpt2 import Network, row
from .gpu_gpt2 import SIZES
from .gpu_report import end, headline, report_of
from .gpu_steps_arms import Minigraph, StepArm, timed
from .gpu_timing import Gpu
from .harness import OnGpu, summarized
from .turns import in_turns

SHARDS, SHARD_BYTES = 64, 1 << 20
STEPS = 12  # of a turn


class Shards(Dataset):
    """Random words [block + 1] out of packed shards; the same for the same index."""

    def __init__(self, network: Network) -> None:
        rng = np.random.default_rng(3)
        words = (rng.integers(0, network.words, SHARD_BYTES // 4, np.int32) for _ in range(SHARDS))
        self.packed, self.length = [zlib.compress(w.tobytes(), 1) for w in words], network.block + 1

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, i: int) -> np.ndarray:  # type: ignore[override]
        shard = np.frombuffer(zlib.decompress(self.packed[i % SHARDS]), np.int32)
        start = i * 7919 % (shard.size - self.length)
        return shard[start : start + self.length].astype(np.int64)


class Fed(StepArm):
    """The steps of one minigraph arm with feeds of its own."""

    def __init__(self, arm: Minigraph, feeds: Iterator[Mapping[str, Any]]) -> None:
        self.arm, self.feeds, self.wait = arm, feeds, arm.wait

    def step(self) -> None:  # type: ignore[override]
        self.arm.exe.run(self.arm.program, feed=next(self.feeds), scope=self.arm.scope)


def batches(data: Shards, network: Network, **how: Any) -> Iterator[dict[str, np.ndarray]]:
    """Feeds without end."""
    loader = DataLoader(data, ["words"], return_list=False, batch_size=network.batch, shuffle=True, seed=1, **how)
    return (feed for _ in itertools.count() for (feed,) in loader)


def reading(data: Shards, network: Network, workers: int) -> float:
    """Milliseconds in which a DataLoader alone brings a batch."""
    found = batches(data, network, num_workers=workers)
    next(found)
    start = time.perf_counter()
    for _ in range(2 * STEPS):
        next(found)
    return (time.perf_counter() - start) / (2 * STEPS) * 1e3


class LoaderBench(OnGpu):
    """What `python -m bench gpu_loader` runs."""

    name, title, peers = "gpu_loader", "GPT-2's step with a DataLoader, ms", ()

    def run(self, peers: Sequence[str], rounds: int, command: str, only: str = "") -> None:
        """Measure, print the table and write bench/results/gpu_loader.json."""
        gpu, (title, network) = Gpu(), SIZES["gpt2_124m"]
        report = report_of(self, gpu, command, rounds, only)
        own, data, workers = Minigraph(row("gpt2", title, network), 0.0, {}), Shards(network), os.cpu_count() or 1
        host = {"words": np.stack([data[i] for i in range(network.batch)])}
        feeds = {
            "on the card": itertools.cycle(own.batches), "on the host": itertools.repeat(host),
            "read ahead": batches(data, network, num_workers=workers),
            "read by the caller": batches(data, network, use_buffer_reader=False),
        }  # fmt: skip
        arms = {name: Fed(own, one) for name, one in feeds.items()}
        for arm in arms.values():
            timed(arm, 3)  # plans of device and host feeds are two
        turns: dict[str, Callable[[], float]] = {name: partial(timed, arm, STEPS) for name, arm in arms.items()}
        found = {name: summarized(ms) for name, ms in in_turns(turns, rounds).items()}
        alone = {"threads": workers, "ms": round(reading(data, network, workers), 2)}
        one = {"threads": 0, "ms": round(reading(data, network, 0), 2)}
        report["rows"] = [{"title": title, "milliseconds": found, "a_batch_alone": [alone, one]}]
        end(report, table)


def table(report: Mapping[str, Any]) -> str:
    """Milliseconds of each arm, and those of a batch without a step."""
    lines = [headline(report)]
    for found in report["rows"]:
        lines.append(found["title"])
        lines += [f"  {name:20} {ms['median']:9.3f} ms" for name, ms in found["milliseconds"].items()]
        lines += [f"  a batch alone, {a['threads']:2} threads {a['ms']:9.2f} ms" for a in found["a_batch_alone"]]
    return "\n".join(lines)


BENCH = LoaderBench()
