"""A GPU that is not there, for the tests of this folder that ask for `stub`."""

from __future__ import annotations

import pytest

from tests.support import gpu_stub


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> gpu_stub.StubRuntime:
    """The stub's runtime stands behind `CUDAPlace(0)`."""
    if gpu_stub.cuda_host.COMPILER is None:
        pytest.skip("kernels on a CPU need g++")
    return gpu_stub.installed(monkeypatch)
