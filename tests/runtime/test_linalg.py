"""Linear algebra on a stub of the GPU: the host takes part, and a singular matrix changes nothing that lasts."""

from __future__ import annotations

import pytest

from minigraph import cuda
from tests.gpu import linalg as gpu_linalg
from tests.support import gpu_stub

pytestmark = pytest.mark.skipif(gpu_stub.cuda_host.COMPILER is None, reason="kernels on a CPU need g++")


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    for name in ("why_not", "device_count", "runtime", "device_array"):
        monkeypatch.setattr(cuda, name, getattr(cuda, name))  # put back afterwards
    return gpu_stub.install()


@pytest.mark.parametrize("check", [*gpu_linalg.checks()], ids=lambda check: check.name)
def test_check(check):
    check.run()
