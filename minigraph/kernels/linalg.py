"""Functions of np.linalg as operators compute them: in float64, with one error for a matrix that has no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigraph.errors import KernelError
from minigraph.errors.kinds import NO_ANSWER


class NoAnswerError(KernelError):
    """A matrix is singular or not positive definite; `number` counts it among those of the call."""

    code = NO_ANSWER.code
    number = 0


def computed(function: Callable[..., Any], *arrays: np.ndarray, **options: Any) -> Any:
    """What a function of np.linalg says of matrices in the last two axes, computed in float64.

    Of a first matrix with a NaN or an infinity it is NaN, as of other operators, also where LAPACK gives up.
    """
    wide = [x.astype(np.float64) for x in arrays]
    try:
        return function(*wide, **options)
    except np.linalg.LinAlgError as problem:
        bad = np.asarray(~np.isfinite(wide[0]).all(axis=(-2, -1)))
        if not bad.any():
            error = NoAnswerError(f"matrix {(number := _first(function, wide, options))} of {list(arrays[0].shape)}"
                                  f" has no answer: {problem}")  # fmt: skip
            error.number = number
            raise error from None
    unit = np.where(bad[..., None, None], np.eye(*wide[0].shape[-2:]), wide[0])
    found = computed(function, unit, *wide[1:], **options)
    for result in found if isinstance(found, tuple) else (found,):
        result[bad] = np.nan
    return found


def _first(function: Callable[..., Any], arrays: list[np.ndarray], options: dict[str, Any]) -> int:
    """The number of the first matrix that the function does not take."""
    for number, place in enumerate(np.ndindex(arrays[0].shape[:-2])):
        try:
            function(*(x[place] for x in arrays), **options)
        except np.linalg.LinAlgError:
            return number
    raise AssertionError("each matrix has an answer, all together have none")
