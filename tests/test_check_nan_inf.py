"""check_nan_inf: on a CPU, and on a stub of the GPU; the flag in its three spellings."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import gpu_nan
import gpu_stub
import numpy as np
import pytest
from gpu_nan import Trained, checking, kept, refused

import minigraph as mg
from minigraph import cuda, flags
from minigraph.errors import AttrError, KernelError, NonFiniteError
from minigraph.executor import Executor
from minigraph.program import Program, program_guard
from minigraph.scope import Scope
from minigraph.static import BuildStrategy, CompiledProgram

needs_compiler = pytest.mark.skipif(gpu_stub.cuda_host.COMPILER is None, reason="kernels on a CPU need g++")
ON_STUB = "relu", "layer_norm", "reshape", "transpose", "concat", "softmax", "memory_efficient_attention", "adamw"


@pytest.fixture(autouse=True)
def flags_as_they_were(monkeypatch):
    monkeypatch.setattr(flags, "values", flags.values)


@pytest.fixture
def stub(monkeypatch):
    for name in ("why_not", "device_count", "runtime", "device_array"):
        monkeypatch.setattr(cuda, name, getattr(cuda, name))  # put back afterwards
    return gpu_stub.install()


@pytest.mark.parametrize("op_type", gpu_nan.op_types())
def test_what_an_operator_is_given_shows(op_type):
    gpu_nan.planted(op_type, Executor)


@pytest.mark.parametrize("run", gpu_nan.PROGRAMS, ids=lambda run: run.__name__)
def test_programs(run):
    run(Executor)


@needs_compiler
@pytest.mark.parametrize("op_type", ON_STUB)
def test_what_an_operator_is_given_shows_on_the_stub(stub, op_type):
    gpu_nan.planted(op_type, gpu_nan.GpuExecutor)


@needs_compiler
@pytest.mark.parametrize("run", gpu_nan.PROGRAMS, ids=lambda run: run.__name__)
def test_programs_on_the_stub(stub, run):
    run(partial(Executor, gpu_nan.PLACE))
