"""Masks of texts that have several lengths."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, require
from minigraph.program import Variable
from minigraph.program.builder import whole
from minigraph.tensor import arange, cast, less_than, max, unsqueeze
from minigraph.tensor.arguments import variable
from minigraph.tensor.waiting.calls import wait


@whole
def sequence_mask(x: Variable, maxlen: Any = None, dtype: Any = "int64", name: str | None = None) -> Variable:
    """1 at the first x places of a new last axis of size `maxlen`, 0 behind them; x [...] holds ints.

    maxlen  the largest int in x for None, which a run decides; an int needs no such wait
    """
    x = variable(x, "sequence_mask")
    if maxlen is None:
        return wait("functional.sequence_mask", {"x": x, "maxlen": max(x), "dtype": dtype, "name": name}, ["maxlen"])
    fits = isinstance(maxlen, int) and maxlen > 0
    require(fits, f"maxlen must be an int > 0, is {maxlen!r}", AttrError)
    return cast(less_than(arange(maxlen, dtype=x.dtype.name), unsqueeze(x, -1)), dtype, name=name)
