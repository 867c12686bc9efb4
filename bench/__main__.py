"""The command line of the comparisons."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import (
    gpu_attention,
    gpu_data_parallel,
    gpu_fusion,
    gpu_gelu,
    gpu_gelu_steps,
    gpu_gemm,
    gpu_gpt2,
    gpu_gpt2_loss,
    gpu_kernels,
    gpu_linear_cross_entropy,
    gpu_loader,
    gpu_mixed_precision,
    gpu_mlp_gemm,
    gpu_optimizers,
    gpu_packed_attention,
    gpu_paged,
    gpu_steps_run,
    gpu_tf32,
    mlp_cpu,
    optimizer_cpu,
)
from .harness import CpuBench, compare, not_installed

BENCHES: dict[str, Any] = {
    m.BENCH.name: m.BENCH
    for m in (
        mlp_cpu, gpu_gemm, gpu_gelu, gpu_mlp_gemm, gpu_tf32, gpu_kernels, gpu_fusion, gpu_linear_cross_entropy,
        gpu_optimizers, gpu_paged, gpu_steps_run, gpu_gelu_steps, gpu_mixed_precision, gpu_gpt2, gpu_gpt2_loss,
        gpu_loader, gpu_attention, gpu_packed_attention, gpu_data_parallel, optimizer_cpu,
    )
}


CHILDREN = {"checkpoint_child", "gpu_data_parallel_arms", "harness"}  # processes that others start


def programs() -> Iterator[tuple[str, str]]:
    """Modules that run by themselves, each with the first line of its docstring."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        text = path.read_text(encoding="utf-8")
        if 'if __name__ == "__main__":' in text and path.stem not in CHILDREN:
            yield path.stem, text.removeprefix('"""').partition("\n")[0]


def listed() -> None:
    """Print all comparisons; a reader such as `head` may stop early."""
    try:
        for name, bench in BENCHES.items():
            print(f"{name:12} {bench.title}; peers: {', '.join(bench.peers)}")
        print("\nprograms of their own:")
        for name, first_line in programs():
            print(f"python -m bench.{name:16} {first_line}")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes when it ends


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("benches", nargs="*", metavar="bench", help="list, all, or names")
    parser.add_argument(
        "--peers", default="", help="other frameworks, as `list` shows them, joined by commas: torch,jax"
    )
    parser.add_argument("--rounds", type=int, default=15, help="how often each arm has its turn")
    parser.add_argument("--steps", type=int, default=10, help="timed steps in a turn (on a CPU)")
    parser.add_argument("--threads", type=int, default=2, help="cores for each arm (on a CPU)")
    parser.add_argument("--alone", action="store_true", help="rounds beside other work do not count (on a CPU)")
    parser.add_argument("--file", default="", help="what it is called in bench/results, of one bench (on a CPU)")
    parser.add_argument("--only", default="", help="cases whose title contains this (on a GPU)")
    options = parser.parse_intermixed_args()
    peers = {p for b in BENCHES.values() for p in b.peers}
    for name in options.benches:
        if name in peers:
            parser.error(f"{name} is a peer, not a bench; peers are joined by commas: --peers torch,jax")
        if name not in ("list", "all", *BENCHES):
            parser.error(f"there is no bench {name}; there are list, all, {', '.join(BENCHES)}")
    wanted = {p for p in options.peers.split(",") if p}
    if not options.benches and wanted:
        parser.error("--peers needs the name of a bench, or all, besides")
    if "list" in options.benches or not options.benches:
        listed()
        return 0
    command = f"python -m bench {shlex.join(sys.argv[1:])}"
    named = [b for b in BENCHES.values() if b.name in options.benches or "all" in options.benches]
    unknown = wanted - {p for b in named for p in b.peers}
    if unknown:
        raise SystemExit(
            f"no peer {', '.join(sorted(unknown))} in {', '.join(b.name for b in named)}"
        )
    for bench in named:
        missing = bench.missing()
        if missing and "all" not in options.benches:
            raise SystemExit(f"{bench.name} cannot run: {missing}")
        if missing:
            print(f"{bench.name} left out: {missing}")
            continue
        peers = [p for p in bench.peers if p in wanted]
        if absent := not_installed(peers):
            raise SystemExit(f"{bench.name} cannot run: {absent}")
        if not isinstance(bench, CpuBench):
            bench.run(peers, options.rounds, command, options.only)
        else:
            compare(
                bench, peers, options.rounds, options.steps, options.threads, command, options.file, options.alone
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
