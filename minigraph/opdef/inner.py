"""InnerBlock: what an operator knows of a block that is one of its attributes.

program/blocks/subprogram.py has the blocks themselves. An operator with blocks is a function of its inputs:
each block takes them, all or the loop variables first, and returns arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import COUNT
from minigraph.types import TensorType, bool_

Rng = tuple[int, ...]
WORD = 0xFFFFFFFF


class InnerBlock:
    """Operators that run where and when another operator says so.

    input_types, output_types  of what it takes and returns, as declared
    """

    input_types: list[TensorType]
    output_types: list[TensorType]

    def evaluate(self, arrays: Sequence[np.ndarray], rng: Rng, lifted: bool) -> list[np.ndarray]:
        """What it returns for these inputs, by the references of its operators."""
        raise NotImplementedError

    def gradient(self, wanted: Sequence[int], outputs: Sequence[int], summed: int = 0) -> InnerBlock:
        """The block of the gradients of the inputs `wanted`; it also takes those of the results `outputs`.

        summed  for so many of `wanted`, the last ones, it also takes a sum, to which it adds the gradient
        """
        raise NotImplementedError

    def check_takes(self, name: str, given: Sequence[TensorType]) -> None:
        """These fit what the block was built for."""
        own = self.input_types
        require(len(own) == len(given), f"{name} takes {len(own)} values, {len(given)} are given", COUNT)
        for i, (wanted, t) in enumerate(zip(own, given, strict=True)):
            require(wanted.accepts(t), f"{name} was built for {wanted} as its input {i}, which is {t}")


def inner_blocks(attrs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name, block) of the attributes that are blocks."""
    return ((name, value) for name, value in attrs.items() if isinstance(value, InnerBlock))


def check_flag(name: str, t: TensorType) -> None:
    """A predicate is bool and has one element."""
    require(t.dtype == bool_, f"{name} must be bool, is {t}", DTypeError, "compare it with something: x > 0")
    require(t.size in (1, -1), f"{name} must have one element, is {t}", COUNT, "mg.all or mg.any make it one")


def as_flag(array: np.ndarray) -> bool:
    """The value of a predicate."""
    require(array.size == 1, f"a predicate must have one element, it has shape {list(array.shape)}", COUNT)
    return bool(array.reshape(()))


def joined(types: Sequence[TensorType]) -> TensorType:
    """The type that takes all of these, of which only sizes differ: those are not known."""
    first = types[0]
    shape = first.shape
    for t in types[1:]:
        require(t.dtype == first.dtype and t.ndim == first.ndim, f"{first} and {t} differ in more than sizes")
        shape = tuple(a if a == b else -1 for a, b in zip(shape, t.shape, strict=True))
    return first if shape == first.shape else first.with_shape(shape)


def in_round(rng: Rng, number: int) -> Rng:
    """How random numbers are counted in round `number` of a loop: each round draws others."""
    return (rng[0], rng[1], mixed(rng[2], number))


def mixed(step: int, number: int) -> int:
    """A count for round `number` of a loop in step `step`: 31 bits, far apart for near ones."""
    x = (step * 0x9E3779B1 + (number + 1) * 0x85EBCA6B) & WORD
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & WORD
    return (x ^ (x >> 16)) >> 1
