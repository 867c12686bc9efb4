"""Factors, inverses and solutions: bind functions of ops/linalg. The host's LAPACK computes them while the GPU waits.

docs/decisions/051-linear-algebra-is-computed-by-the-host.md says why. A matrix that has no answer is a fault, which
leaves the Scope as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.linalg import NoAnswerError
from minigraph.types import int64

WRONG = "the number of a matrix that has no answer: it is singular, or not positive definite"


def _by_reference(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any], refuses: bool = True
) -> None:  # fmt: skip
    """The reference on the values of the inputs; its results are the outputs, NaN where it refuses."""
    reference, wanted = binder.reference, [out is not None for out in outs.values()]
    goals = [out for out in outs.values() if out is not None]
    assert reference is not None
    found = [binder.scratch((2,), int64)] if refuses else []

    def compute(runs: int, *arrays: np.ndarray) -> Sequence[np.ndarray]:
        try:
            results = reference(*arrays, **attrs)
        except NoAnswerError as problem:
            return [*(np.full(out.shape, np.nan, out.dtype) for out in goals), np.array([1, problem.number])]
        results = results if isinstance(results, tuple) else (results,)
        results = [result for result, is_wanted in zip(results, wanted, strict=True) if is_wanted]
        return [*results, *([np.zeros(2, int64)] if refuses else [])]

    binder.host([*ins.values()], compute, [*goals, *found])
    if refuses:
        binder.launch("linalg/linalg.cu", "refuse", 1, 32, *found, *binder.report(WRONG))


cholesky = qr = eigh = svd = pinv = solve = triangular_solve = _by_reference
lu = pivots_to_matrix = determinant = slogdeterminant = partial(_by_reference, refuses=False)
