"""Factors, inverses and solutions: bind functions of ops/linalg. The host's LAPACK computes them while the GPU waits.

docs/decisions/049-linear-algebra-is-computed-by-the-host.md says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.kernels.cuda.record.binder import Binder


def by_reference(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """The reference on the values of the inputs; its results are the outputs."""
    reference, wanted = binder.reference, [out is not None for out in outs.values()]
    assert reference is not None

    def compute(runs: int, *arrays: np.ndarray) -> Sequence[np.ndarray]:
        results = reference(*arrays, **attrs)
        results = results if isinstance(results, tuple) else (results,)
        return [result for result, is_wanted in zip(results, wanted, strict=True) if is_wanted]

    binder.host([*ins.values()], compute, [out for out in outs.values() if out is not None])


cholesky = lu = pivots_to_matrix = qr = eigh = svd = pinv = by_reference
solve = triangular_solve = determinant = slogdeterminant = by_reference
