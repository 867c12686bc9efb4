"""Each test starts with empty default programs, an empty scope, names counted from zero and float32."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest

from minigraph import cuda
from minigraph.kernels.cpu import fused_blocks as blocks
from minigraph.program import Program, program_guard, unique_name
from minigraph.program.default_dtype import set_default_dtype
from minigraph.program.scope import Scope, scope_guard

# numba keeps machine code by source, not by the options it was compiled with: a test must not meet an earlier run's
if "PYTEST_XDIST_WORKER" not in os.environ:  # the workers share what one of them compiled
    MACHINE_CODE = tempfile.TemporaryDirectory(prefix="minigraph-numba-")
    os.environ["NUMBA_CACHE_DIR"] = MACHINE_CODE.name


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """What one test leaves in the globals is not seen by the next."""
    with program_guard(Program("main"), Program("startup")), scope_guard(Scope()), unique_name.guard():
        yield
    set_default_dtype("float32")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of some hundred elements, so that small programs are cut."""
    blocks.recipe.cache_clear()
    monkeypatch.setattr(blocks, "CACHED_BYTES", 4096)
    monkeypatch.setattr(blocks, "SMALLEST", 200)
    yield
    blocks.recipe.cache_clear()


@pytest.fixture
def in_float64() -> None:
    """Layers and data are float64 by default."""
    set_default_dtype("float64")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20221)


@pytest.fixture
def frozen() -> Iterator[None]:
    """What lived before is no part of the test's collections, which takes seconds where many tests were."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected lives to the end: nothing is gained by looking for garbage meanwhile, and later seldom."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.set_threshold(10_000)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if cuda.is_available():
        return
    skip = pytest.mark.skip(reason=f"no GPU: {cuda.why_not()}")
    for item in items:
        if item.get_closest_marker("gpu") is not None:  # not its keywords, which hold the folder, too
            item.add_marker(skip)
