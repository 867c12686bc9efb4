"""Linear algebra on a stub of the GPU: the host takes part, and a singular matrix changes nothing that lasts."""

from __future__ import annotations

import pytest

from tests.gpu import linalg as gpu_linalg

pytestmark = pytest.mark.usefixtures("stub")


@pytest.mark.parametrize("check", [*gpu_linalg.checks()], ids=lambda check: check.name)
def test_check(check):
    check.run()
