"""How operators with blocks go on: which block runs, for which round, with which values.

Values are arrays of any device. `run(block, values, number)` runs a block for round `number` of a loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from minigraph.errors import KernelError, require
from minigraph.opdef.inner import as_flag

Run = Callable[[Any, Sequence[Any], int], list[Any]]


def loop(cond: Any, body: Any, values: Sequence[Any], more: Sequence[Any], run: Run, host: Callable[[Any], Any],
         history: list[list[Any]] | None = None, most: int | None = None) -> list[Any]:  # fmt: skip
    """The values that a loop carries, once the condition is False.

    more     what the blocks take besides
    host     brings a predicate to the host
    history  is given what each round began with
    most     rounds after which it is an error that the loop goes on, None for no such limit
    """
    values = list(values)
    for number in itertools.count():
        if not as_flag(host(run(cond, [*values, *more], number)[0])):
            break
        require(most is None or number < most, f"a loop goes on after {most} rounds", KernelError)
        if history is not None:
            history.append(values)
        values = run(body, [*values, *more], number)
    return values


def loop_gradient(
    block: Any, history: Sequence[Sequence[Any]], more: Sequence[Any], grads: Sequence[Any], sums: Sequence[Any],
    run: Run,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """(gradients of the values at the beginning, sums of those of `more`), from the last round to the first.

    grads   gradients of the values at the end;  sums: where these begin
    """
    grads, sums = list(grads), list(sums)
    for number in reversed(range(len(history))):
        results = run(block, [*history[number], *more, *grads, *sums], number)
        grads, sums = results[: len(grads)], results[len(grads) :]
    return grads, sums
