"""One test for each operator, of a check of each of its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def of_every_call(cases: Iterable[Any], marks: Any = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A check of one case as a test of each operator, which names all cases that fail.

    cases  calls, or tuples of a call and what else the check is given
    """
    of_op: dict[str, list[tuple[Any, ...]]] = {}
    for case in cases:
        case = case if isinstance(case, tuple) else (case,)
        of_op.setdefault(case[0].opdef.type, []).append(case)

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @pytest.mark.parametrize("op_type", [pytest.param(op_type, marks=marks) for op_type in of_op])
        def test(op_type):
            problems, skipped = [], []
            for case in of_op[op_type]:
                try:
                    check(*case)
                except pytest.skip.Exception as reason:
                    skipped.append(str(reason))
                except Exception as problem:  # one bad case must not hide the others
                    problem.add_note("-".join(map(str, case)))
                    problems.append(problem)
            if problems:
                raise ExceptionGroup(f"{len(problems)} of {len(of_op[op_type])} cases", problems)
            if len(skipped) == len(of_op[op_type]):
                pytest.skip(skipped[0])

        test.__doc__ = check.__doc__
        return test

    return decorate
