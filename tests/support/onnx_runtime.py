"""ONNX files in other people's hands: onnx.checker, onnxruntime, and the evaluator of onnx in NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minigraph.types import bfloat16

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

BFLOAT16 = 16  # TensorProto.DataType


def checked(path: str | Path) -> Any:
    """The message in a file that onnx.checker accepts, types and shapes inferred."""
    onnx.checker.check_model(str(path), full_check=True)
    return onnx.load(str(path))


def session(path: str | Path) -> Any:
    """The file as onnxruntime would serve it, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def served(path: str | Path, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What onnxruntime computes from these inputs."""
    serving = session(path)
    binding = serving.io_binding()
    for name, array in feed.items():
        binding.bind_ortvalue_input(name, _as_value(array))
    for output in serving.get_outputs():
        binding.bind_output(output.name)
    serving.run_with_iobinding(binding)
    return [_as_array(value) for value in binding.get_outputs()]


def computed(path: str | Path, feed: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], str]:
    """(what onnxruntime computes, its name), or onnx's evaluator where that one has no kernel for these types."""
    try:
        return served(path, feed), "onnxruntime"
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return evaluated(path, feed), "onnx"


def evaluated(path: str | Path, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What onnx's own evaluator computes: all operators in all types, in NumPy."""
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        return [np.asarray(x) for x in ReferenceEvaluator(str(path)).run(None, dict(feed))]


def _as_value(array: np.ndarray) -> Any:
    if array.dtype == bfloat16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def _as_array(value: Any) -> np.ndarray:
    if "bfloat16" not in value.data_type():
        return value.numpy()
    count = int(np.prod(value.shape()))
    raw = (ctypes.c_uint16 * count).from_address(value.data_ptr()) if count else []
    return np.array(raw, np.uint16).view(bfloat16).reshape(value.shape())
