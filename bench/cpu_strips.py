"""The MLP's step with large products by our machine code and by BLAS, in turns in one process.

    python -m bench.cpu_strips        writes bench/results/cpu_strips.json

Processor time is that of all threads of the process. Other work on the machine changes it far less than the time that
passes, which is there, too.
"""

from __future__ import annotations

import time
from typing import Any

from minigraph.kernels.cpu import product, strips

from .harness import machine, now, summarized, versions, write_report
from .mlp_cpu import TOLERANCE, minigraph_arm

ROUNDS, STEPS, FIRST = 30, 5, 2  # of each arm; steps in a turn, and before its first timed one
ARMS = {"machine code": strips.faster, "BLAS": lambda *_: False}


def main() -> None:
    if strips._machine_code() is None:
        raise SystemExit("this processor computes all products by BLAS, or numba is not installed")
    steps, reference = dict[str, Any](), list[float]()
    for arm, faster in ARMS.items():
        product.faster = faster
        check, steps[arm] = minigraph_arm(fused=True)
        losses = check()
        reference = reference or losses
        if max(abs(a - b) for a, b in zip(losses, reference, strict=True)) > TOLERANCE:
            raise SystemExit(f"losses differ: {losses} and {reference}")
    times: dict[str, dict[str, list[float]]] = {arm: {"processor": [], "passed": []} for arm in ARMS}
    for _ in range(ROUNDS):
        for arm, faster in ARMS.items():
            product.faster = faster
            for n in range(FIRST + STEPS):
                used, passed = time.process_time(), time.perf_counter()
                steps[arm]()
                if n >= FIRST:
                    times[arm]["processor"].append(1e3 * (time.process_time() - used))
                    times[arm]["passed"].append(1e3 * (time.perf_counter() - passed))
    report = {
        "bench": "cpu_strips", "title": "MLP 784-1024-1024-10, batch 256, AdamW, float32: who computes large products",
        "command": "python -m bench.cpu_strips", "machine": machine(), "date": now(), "versions": versions(),
        "milliseconds": {arm: {what: summarized(ms) for what, ms in each.items()} for arm, each in times.items()},
    }  # fmt: skip
    for arm, each in times.items():
        ms = {what: summarized(taken) for what, taken in each.items()}
        print(f"{arm:14}", ", ".join(f"{what} {s['median']:.2f} (p10 {s['p10']:.2f})" for what, s in ms.items()), "ms")
    print(f"written to {write_report(report)}")


if __name__ == "__main__":
    main()
