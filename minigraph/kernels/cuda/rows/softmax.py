"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minigraph.kernels.cuda.record.binder import Binder

from .rows import RowOperator, bind_rows


def softmax(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Out = exp(X - max) / sum; reads X once where a row fits a block's registers or shared memory."""
    X = ins["X"]
    bind_rows(binder, RowOperator("rows/softmax.cu", {"KIND": "SOFTMAX"}), X, X, outs["Out"], attrs["axis"])


def log_softmax(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Out = X - max - log(sum)"""
    X = ins["X"]
    bind_rows(binder, RowOperator("rows/softmax.cu", {"KIND": "LOG_SOFTMAX"}), X, X, outs["Out"], attrs["axis"])


def softmax_grad(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """X_grad = Out * (Out_grad - sum(Out * Out_grad))"""
    operator = RowOperator("rows/softmax.cu", {"KIND": "SOFTMAX_GRAD"}, inputs=2)
    bind_rows(binder, operator, ins["Out"], ins["Out_grad"], outs["X_grad"], attrs["axis"])


def log_softmax_grad(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """X_grad = Out_grad - exp(Out) * sum(Out_grad)"""
    operator = RowOperator("rows/softmax.cu", {"KIND": "LOG_SOFTMAX_GRAD"}, inputs=2)
    bind_rows(binder, operator, ins["Out"], ins["Out_grad"], outs["X_grad"], attrs["axis"])
