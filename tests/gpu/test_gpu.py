"""The checks of gpu_suite under pytest; skipped with the reason where there is no GPU."""

from __future__ import annotations

import pytest

from tests.gpu import suite as gpu_suite

CHECKS = gpu_suite.all_checks()


@pytest.mark.gpu
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_gpu(check):
    check.run()
