"""The checks of gpu_suite under pytest; skipped with the reason where there is no GPU."""

from __future__ import annotations

import threading

import pytest

from minigraph import cuda
from tests.gpu import suite as gpu_suite
from tests.gpu.check import Check
from tests.kernels.test_cuda_compile import NO_GPU_FORM

# without a GPU one of them is skipped and says why for all
CHECKS = gpu_suite.all_checks() if cuda.is_available() else gpu_suite.all_checks()[:1]


@pytest.mark.gpu
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_gpu(check):
    check.run()


def test_checks_of_kernels_are_of_operators_that_have_some():
    named = {check.name.split("/")[1] for check in gpu_suite.all_checks() if check.name.startswith("kernels/")}
    assert named, "no check"
    assert not named & NO_GPU_FORM.keys()


def test_an_error_in_any_thread_of_a_check_counts():
    """As in the one that watches over NCCL, whose end nobody else notices."""

    def fall():
        raise ZeroDivisionError("nobody waits for this")

    def check():
        thread = threading.Thread(target=fall)
        thread.start()
        thread.join()

    found = gpu_suite.run_check(Check("threads", check))
    assert "ZeroDivisionError" in found["error"]
    assert gpu_suite.run_check(Check("none", lambda: None))["error"] is None
