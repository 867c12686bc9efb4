"""What is said where no GPU can be used: packages that are missing or broken, no driver, GPUs that are too old."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from minigraph import CUDAPlace, cuda, static
from minigraph.errors import PlaceError

WHY_NOT, RUNTIME = cuda.why_not, cuda.runtime


class Broken:
    """A package that raises what is not an ImportError."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "cupy":
            raise RuntimeError("libcudart.so.13 is damaged")


def library(monkeypatch: pytest.MonkeyPatch, capabilities: Any) -> None:
    """CuPy and nvmath of a machine with GPUs of these compute capabilities, or where asking for them raises."""

    def count() -> int:
        if isinstance(capabilities, Exception):
            raise capabilities
        return len(capabilities)

    device: Callable[[int], Any] = lambda index: SimpleNamespace(compute_capability=capabilities[index])  # noqa: E731
    cupy: Any = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=count), Device=device)
    for name in ("nvmath", "nvmath.bindings", "nvmath.bindings.cublasLt"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "cupy", cupy)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """The functions themselves, whatever a stub has put in their place, asked anew."""
    monkeypatch.setattr(cuda, "why_not", WHY_NOT.__wrapped__)
    monkeypatch.setattr(cuda, "runtime", RUNTIME)


def refused(place: CUDAPlace, fact: str) -> None:
    with pytest.raises(PlaceError, match=fact) as error:
        static.Executor(place)
    assert "hint: use mg.CPUPlace()" in str(error.value)


@pytest.mark.parametrize("missing", ["cupy", "nvmath.bindings.cublasLt"])
def test_a_missing_package_is_named(monkeypatch, missing):
    library(monkeypatch, ["90"])
    assert cuda.is_available() and cuda.why_not() is None
    monkeypatch.setitem(sys.modules, missing, None)
    assert not cuda.is_available() and cuda.device_count() == 0
    refused(CUDAPlace(0), rf"CUDAPlace\(0\) cannot be used: {missing} cannot be imported")


def test_a_package_that_is_broken_is_named(monkeypatch):
    library(monkeypatch, ["90"])
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert not cuda.is_available()
    refused(CUDAPlace(0), r"cupy cannot be imported \(libcudart.so.13 is damaged\)")


def test_no_driver_and_no_gpu(monkeypatch):
    library(monkeypatch, RuntimeError("cudaErrorInsufficientDriver"))
    refused(CUDAPlace(0), "CUDA finds no usable GPU: cudaErrorInsufficientDriver")
    library(monkeypatch, [])
    refused(CUDAPlace(0), "CUDA finds no GPU")
    library(monkeypatch, ["90"])
    refused(CUDAPlace(1), "there are 1 GPUs, counted from 0")


def test_gpus_that_lack_bfloat16(monkeypatch):
    said = r"GPU 0 has compute capability 7.5, bfloat16 and asynchronous copies need 8.0"
    library(monkeypatch, ["75", "70"])
    assert not cuda.is_available()
    refused(CUDAPlace(0), said)
    library(monkeypatch, ["75", "100"])
    assert cuda.is_available()
    with pytest.raises(PlaceError, match=said):
        cuda.runtime(CUDAPlace(0))
