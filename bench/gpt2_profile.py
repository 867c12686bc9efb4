"""Where a step of GPT-2 spends its time: classes of calls, each beside the least time that it could take.

    products          what `product` calls and our own kernels for products take; floor: their operations at the rate
                      of one large product, measured in the same run
    attention         floor: its operations at that rate
    the others        floor: the bytes that they read and write at the bandwidth of a copy, measured in the same run
    gaps              the step's time without all of that; below 0 where calls run beside each other
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from .gpt2 import Network

PRODUCTS = ("matmul", "matmul_accumulate", "fused_gemm_epilogue", "fused_gemm_epilogue_grad", "matmul_grad")
CLASSES = ("products", "attention", "norms", "column sums", "pointwise", "loss", "update")


def class_of(kernel: Any) -> str:
    """Which of CLASSES a Kernel belongs to."""
    name, op = kernel.name, kernel.op
    kind = op.type if op is not None else ""
    if name.startswith("product ") or kind in PRODUCTS:
        return "column sums" if name.startswith("columns") else "products"
    if "attention" in kind:
        return "attention"
    if any("cross_entropy" in member for member in kernel.members):
        return "loss"
    if op is not None and "optimizer" in op.opdef.traits:
        return "update"
    if any(member.startswith("layer_norm") for member in kernel.members):
        return "norms"
    return "column sums" if name == "columns" else "pointwise"


def floors(kernels: Sequence[Any], network: Network, flops: float, bandwidth: float) -> dict[str, float]:
    """Milliseconds that each class needs at the least; `flops` and `bandwidth` for a second."""
    nbytes: dict[str, float] = defaultdict(float)
    parts: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for kernel in kernels:
        parts[class_of(kernel), id(kernel.op)].append(kernel)
    for (name, _), own in parts.items():
        nbytes[name] += moved(name, own)
    found = {name: nbytes[name] / bandwidth * 1e3 for name in CLASSES}
    return {
        **found, "products": network.product_flops / flops * 1e3, "attention": network.attention_flops / flops * 1e3
    }  # fmt: skip


def moved(name: str, kernels: Sequence[Any]) -> float:
    """Bytes that one operator's kernels of a class read and write.

    `nbytes` of a kernel counts an array once that it reads and writes over: the scores of a loss, what an output takes
    over from an input, states of an optimizer. Of the last two the operator knows that they are an input and an output.
    """
    found = sum(kernel.nbytes * (2 if kernel.name == "loss_and_gradient" else 1) for kernel in kernels)
    op = kernels[0].op
    if op is None or name not in ("norms", "pointwise", "update"):
        return found
    unread = {"Param"} if op.inputs.get("MasterParam") else set()  # its 16 bits are only written
    every = [*(v for slot, given in op.inputs.items() if slot not in unread for v in given), *op.output_vars]
    return max(found, sum(math.prod(v.shape) * v.dtype.itemsize for v in every))


def by_class(profile: Any) -> tuple[dict[str, dict[str, float]], list[Any]]:
    """({class: milliseconds of a run, number of calls}, the calls of the last run), medians over the runs."""
    times: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = {}
    kernels: list[Any] = []
    for run in profile.runs:
        total: dict[str, float] = defaultdict(float)
        kernels = [call.kernel for call in run.calls]
        for call in run.calls:
            total[class_of(call.kernel)] += call.seconds * 1e3
        for name in CLASSES:
            times[name].append(total[name])
            counts[name] = sum(class_of(kernel) == name for kernel in kernels)
    return {n: {"ms": round(statistics.median(times[n]), 4), "calls": counts[n]} for n in CLASSES if times[n]}, kernels


def profiled(arm: Any, step_ms: float, network: Network, rates: tuple[float, float], runs: int = 3) -> dict[str, Any]:
    """The classes of minigraph's step with their floors at the rates of `ceilings`, and what is left of `step_ms`."""
    flops, bandwidth = rates
    with arm.mg.profiler.Profiler() as profile:
        for _ in range(runs):
            arm.step()
            arm.wait()
    classes, kernels = by_class(profile)
    for name, floor in floors(kernels, network, flops, bandwidth).items():
        classes[name]["floor_ms"] = round(floor, 4)
    gaps = step_ms - sum(found["ms"] for found in classes.values())
    slow: dict[str, list[float]] = defaultdict(list)
    for call in profile.runs[-1].calls:
        slow[f"{call.op.type if call.op is not None else 'results'}: {call.kernel.name}"].append(call.seconds * 1e3)
    calls = {name: [len(ms), round(sum(ms), 4)] for name, ms in sorted(slow.items(), key=lambda item: -sum(item[1]))}
    return {
        "product_tflops": round(flops / 1e12, 1), "copy_tb_per_s": round(bandwidth / 1e12, 3), "classes": classes,
        "gaps_ms": round(gaps, 4), "calls": calls,
    }  # fmt: skip


def ceilings(arm: Any, gpu: Any, n: int = 8192) -> tuple[float, float]:
    """(operations in a second of a large product in bfloat16, bytes in a second of a copy, read and written)"""
    mg, count = arm.mg, 8
    program = mg.static.Program("ceilings")
    with mg.static.program_guard(program, mg.static.Program()):
        x = mg.static.data("x", [n, n], "bfloat16")
        for _ in range(count):
            made = mg.matmul(x, x)  # nothing but shapes joins them: each is computed
            made.persistable = True
    block = np.random.default_rng(0).normal(size=(n, 256)).astype(mg.types.as_dtype("bfloat16"))
    feed, scope, best = {"x": arm.runtime.to_device(np.tile(block, n // 256))}, mg.static.Scope(), math.inf
    for _ in range(6):
        start = time.perf_counter()
        arm.exe.run(program, feed, scope=scope)
        arm.wait()
        best = min(best, time.perf_counter() - start)
    copied = gpu.copied[0].nbytes
    return count * 2 * n**3 / best, 2 * copied / (gpu.milliseconds([gpu.copy], 16) * 1e-3)
