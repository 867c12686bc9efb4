"""Masks of texts that have several lengths."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, call_site, require
from minigraph.errors.kinds import RUN_TIME
from minigraph.program import Variable
from minigraph.program.builder import whole
from minigraph.tensor import arange, cast, less_than, unsqueeze
from minigraph.tensor.arguments import variable


@whole
def sequence_mask(x: Variable, maxlen: Any = None, dtype: Any = "int64", name: str | None = None) -> Variable:
    """1 at the first x places of a new last axis of size `maxlen`, 0 behind them; x [...] holds ints.

    maxlen  an int: memory is planned before a run
    """
    x = variable(x, "sequence_mask")
    if maxlen is None or isinstance(maxlen, Variable):
        raise RUN_TIME(
            "maxlen must be known: memory is planned before a run", call="sequence_mask", site=call_site(),
            hint="the size to which the sequences are padded: maxlen=ids.shape[1]",
        )  # fmt: skip
    fits = isinstance(maxlen, int) and maxlen > 0
    require(fits, f"maxlen must be an int > 0, is {maxlen!r}", AttrError)
    return cast(less_than(arange(maxlen, dtype=x.dtype.name), unsqueeze(x, -1)), dtype, name=name)


__all__ = ["sequence_mask"]
