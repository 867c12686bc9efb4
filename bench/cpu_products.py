"""The large products of the MLP's step on a CPU: our machine code and NumPy's OpenBLAS beside MKL and oneDNN.

    pip install mkl onednn-cpu-gomp     whichever is not there is left out
    python -m bench.cpu_products        writes bench/results/cpu_products.json

Each library computes with one thread, as it does under minigraph: `one core` has a product whole, `two cores` halves of
its columns, which minigraph's threads share. Libraries take turns at each product; medians and best times. All
results are compared with float64 first.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from minigraph.kernels import parallel
from minigraph.kernels.cpu import strips
from minigraph.kernels.workers import Task

from .harness import machine, now, write_report

PRODUCTS = {  # rows, summed, columns, and whether the first or the second operand is a transposed array
    "x W1": (256, 784, 1024, False, False), "h W2": (256, 1024, 1024, False, False),
    "dh W2^T": (256, 1024, 1024, False, True), "x^T dh": (784, 256, 1024, True, False),
    "h^T dh": (1024, 256, 1024, True, False),
}  # fmt: skip
ROUNDS, TOLERANCE = 25, 1e-4  # relative to the largest element of the product
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112  # of CBLAS
CORES = "one core", "two cores"
PACKAGES = {"MKL": "mkl", "oneDNN": "onednn-cpu-gomp"}

Gemm = Callable[[np.ndarray, np.ndarray, np.ndarray], Any]


def layout(x: np.ndarray) -> tuple[bool, int, int]:
    """(whether it is a transposed view, address, elements from one row in memory to the next)."""
    turned = x.strides[1] != x.itemsize
    return turned, x.__array_interface__["data"][0], x.strides[0 if not turned else 1] // x.itemsize


def with_mkl(library: ctypes.CDLL) -> Gemm:
    whole, real, address = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    library.cblas_sgemm.argtypes = [whole] * 6 + [real, address, whole, address, whole, real, address, whole]

    def gemm(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        (ta, a_at, a_step), (tb, b_at, b_step), (_, at, step) = map(layout, (a, b, out))
        library.cblas_sgemm(
            ROW_MAJOR, TRANSPOSED if ta else PLAIN, TRANSPOSED if tb else PLAIN, *out.shape, a.shape[1],
            1.0, a_at, a_step, b_at, b_step, 0.0, at, step,
        )  # fmt: skip

    return gemm


def with_onednn(library: ctypes.CDLL) -> Gemm:
    letter, whole, real, address = ctypes.c_char, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    scaled = [real, address, whole, address, whole, real, address, whole]
    library.dnnl_sgemm.argtypes = [letter] * 2 + [whole] * 3 + scaled

    def gemm(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        (ta, a_at, a_step), (tb, b_at, b_step), (_, at, step) = map(layout, (a, b, out))
        library.dnnl_sgemm(
            b"T" if ta else b"N", b"T" if tb else b"N", *out.shape, a.shape[1],
            1.0, a_at, a_step, b_at, b_step, 0.0, at, step,
        )  # fmt: skip

    return gemm


def minigraphs(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """By our machine code."""
    strips.multiply([(a, b, out, None)])


def libraries() -> dict[str, Gemm]:
    """Ours, NumPy's, and those whose wheels have put a library into the environment's folder."""
    found: dict[str, Gemm] = {"OpenBLAS": lambda a, b, out: np.matmul(a, b, out=out)}
    if strips.faster(*operands(64, 64, 256, False, False)):
        found["minigraph"] = minigraphs
    for name, pattern, make in (("MKL", "libmkl_rt.so*", with_mkl), ("oneDNN", "libdnnl.so*", with_onednn)):
        for path in sorted(Path(sys.prefix, "lib").glob(pattern))[:1]:
            found[name] = make(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))
    return found


def operands(rows: int, inner: int, columns: int, first: bool, second: bool) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=size).astype(np.float32) for size in (
        (inner, rows) if first else (rows, inner), (columns, inner) if second else (inner, columns)))  # fmt: skip
    return a.T if first else a, b.T if second else b, np.empty((rows, columns), np.float32)


def measured(gemm: Gemm, cores: str, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> float:
    """Seconds of one product; on one core the processor's, which other work of the machine hardly changes."""
    half = out.shape[1] // 2
    one = cores == "one core"
    parts, clock = ((slice(None),), time.thread_time) if one else ((slice(half), slice(half, None)), time.perf_counter)
    start = clock()
    parallel.for_each(parts, lambda part: gemm(a, b[:, part], out[:, part]))
    return clock() - start


def row(name: str, found: dict[str, Gemm]) -> dict[str, Any]:
    a, b, out = operands(*PRODUCTS[name])
    expected, times = a.astype(float) @ b.astype(float), {}
    for library, gemm in found.items():
        for cores in CORES:
            out.fill(np.nan)
            measured(gemm, cores, a, b, out)
            worst = np.abs(out - expected).max() / np.abs(expected).max()
            if not worst < TOLERANCE:
                raise SystemExit(f"{library} computes {name} with an error of {worst:.1e}")
            times[library, cores] = []
    for turn in range(ROUNDS):
        for key in times if turn % 2 else reversed(times):
            times[key].append(measured(found[key[0]], key[1], a, b, out))
    flops = 2 * out.size * a.shape[1]
    return {"product": name, "gflop": flops / 1e9, "milliseconds": {
        cores: {library: {"median": round(1e3 * statistics.median(s), 4), "best": round(1e3 * min(s), 4)}
                for (library, where), s in times.items() if where == cores} for cores in CORES
    }}  # fmt: skip


def versions(found: dict[str, Gemm]) -> dict[str, str]:
    """Of the libraries, and of NumPy."""
    loaded = {i["internal_api"]: str(i["version"]) for i in threadpool_info() if i["user_api"] == "blas"}
    wheels = {name: importlib.metadata.version(PACKAGES[name]) for name in found if name in PACKAGES}
    return {"numpy": np.__version__} | loaded | wheels


def main() -> None:
    found = libraries()
    parallel.REST, strips.cores = 0, lambda: 1
    helpers, limited = parallel._helpers(), Task(partial(threadpool_limits, 1))
    with threadpool_limits(1):
        helpers.at_least(1)
        helpers.take(limited)  # a library on OpenMP knows one number for each thread
        limited.wait()
        rows = [row(name, found) for name in PRODUCTS]
    sums = {
        cores: {library: {which: round(sum(r["milliseconds"][cores][library][which] for r in rows), 3)
                          for which in ("median", "best")} for library in found} for cores in CORES
    }  # fmt: skip
    gflop = sum(r["gflop"] for r in rows)
    for cores, each in sums.items():
        for library, ms in each.items():
            rates = ", ".join(f"{which} {t:6.2f} ms {1e3 * gflop / t:5.0f} GFLOP/s" for which, t in ms.items())
            print(f"{cores:10} {library:10} {rates}")
    report = {
        "bench": "cpu_products", "title": "The large products of the MLP's step, float32, by several libraries",
        "command": "python -m bench.cpu_products", "machine": machine(),
        "date": now(),
        "versions": versions(found),
        "gflop": gflop, "sums": sums, "rows": rows,
    }  # fmt: skip
    print(f"written to {write_report(report)}")


if __name__ == "__main__":
    main()
