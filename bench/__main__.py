"""The command line of the comparisons."""

from __future__ import annotations

import argparse
import shlex
import sys

from . import mlp_cpu
from .harness import compare

BENCHES = {"mlp_cpu": mlp_cpu.BENCH}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("bench", choices=["list", "all", *BENCHES])
    parser.add_argument("--peers", nargs="*", default=[], help="other frameworks, as `list` shows them")
    parser.add_argument("--rounds", type=int, default=15, help="how often each arm has its turn")
    parser.add_argument("--steps", type=int, default=10, help="timed steps in a turn")
    parser.add_argument("--threads", type=int, default=2, help="cores for each arm")
    options = parser.parse_args()
    if options.bench == "list":
        for name, bench in BENCHES.items():
            peers = ", ".join(sorted({arm.peer for arm in bench.arms.values() if arm.peer}))
            print(f"{name:12} {bench.title}; peers: {peers}")
        return 0
    command = f"python -m bench {shlex.join(sys.argv[1:])}"
    for name in BENCHES if options.bench == "all" else [options.bench]:
        compare(BENCHES[name], options.peers, options.rounds, options.steps, options.threads, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
