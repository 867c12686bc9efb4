"""The last layer with its loss by PyTorch and by Liger-Kernel, for gpu_linear_cross_entropy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

PEERS = ("torch", "compile", "liger")
SUMS = {"liger": None, "liger, float32 sums": "float32"}  # arms of Liger-Kernel and the type of their sums


def functions(torch: Any, peers: Sequence[str], compiled: bool) -> dict[str, Callable[..., Any]]:
    """{arm: (x, w, label) -> loss} of the peers; torch.compile where `compiled` says so."""
    found: dict[str, Callable[..., Any]] = {}
    if "torch" in peers:
        found["torch"] = of_torch(torch)
    if "compile" in peers and compiled:
        found["compile"] = torch.compile(of_torch(torch))
    if "liger" in peers:
        found |= {name: liger(torch, kind) for name, kind in SUMS.items()}
    return found


def liger(torch: Any, weight: str | None) -> Callable[..., Any]:
    """(x, w, label) -> loss by Liger-Kernel; the sums of its weight gradient are of this type, or of w's."""
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    kind = None if weight is None else getattr(torch, weight)

    def forward(x: Any, w: Any, label: Any) -> Any:
        bias = class_weight = softcap = None
        return module.LigerFusedLinearCrossEntropyFunction.apply(
            x, w, label, bias, class_weight, -100, 0.0, 0.0, "mean", softcap, False, kind
        )[0]  # fmt: skip

    return forward


def of_torch(torch: Any) -> Callable[..., Any]:
    """(x, w, label) -> loss by PyTorch's linear layer and cross entropy of float32 scores."""
    return lambda x, w, label: torch.nn.functional.cross_entropy((x @ w.t()).float(), label)
