"""Three ways to add a chunk's product into a float32 weight gradient, for gpu_linear_cross_entropy."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

STEP_ARMS = {"old": "old", "fallback": "fallback", "minigraph": "fast"}  # and the ways of the pull request


def step_program(mg: Any, way: str, head: Any) -> Any:
    """acc += d^T x in one of the pull request's three ways.

    old       a product of 16 bits, converted to float32 and added: rounded, with 6 V H bytes for a moment
    fallback  a product of operands converted to float32 that adds to acc
    fast      a product of 16-bit operands that adds to acc in float32
    """
    program = mg.static.Program(way)
    block = program.global_block()
    types = {"d": ((head.rows, head.classes), "bfloat16"), "x": ((head.rows, head.inner), "bfloat16"),
             "acc": ((head.classes, head.inner), "float32")}  # fmt: skip
    d, x, acc = (block.create_var(n, *t, persistable=True) for n, t in types.items())
    g = importlib.import_module("minigraph.program.builder").Builder(block)
    if way == "old":
        g.elementwise_add(acc, g.cast(g.matmul(d, x, trans_x=True), dtype="float32"), out={"Out": acc})
        return program
    if way == "fallback":
        d, x = g.cast(d, dtype="float32"), g.cast(x, dtype="float32")
    g.matmul_accumulate(d, x, acc, trans_x=True, out={"Out": acc})
    return program


def torch_steps(torch: Any, v: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """The same three ways as the pull request's PyTorch code has them."""
    d, x, acc = v["d"], v["x"], v["acc"]
    return {
        "torch, old": lambda: acc.add_((d.t() @ x).float()),
        "torch, fallback": lambda: acc.addmm_(d.float().t(), x.float()),
        "torch, fast": lambda: torch.addmm(acc, d.t(), x, out_dtype=torch.float32, out=acc),
    }


def run_all(plan: Any) -> None:
    """The calls of a plan that ran before; until then it has none."""
    assert plan.calls
    for call in plan.calls:
        call()


def torch_peak(torch: Any, run: Callable[[], Any]) -> int:
    """Bytes that a call takes beside what is there."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
