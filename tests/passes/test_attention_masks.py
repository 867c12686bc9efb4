"""What passes/attention/masks.py reads from how a mask is made, against the mask itself, computed."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.ir.convert import to_graph
from minigraph.passes.attention.masks import Index, StepFunction, value_of
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor

COMPARISONS = (mg.less_than, mg.less_equal, mg.greater_than, mg.greater_equal, mg.equal, mg.not_equal)


class Masks:
    """Random expressions of triangles and places; `read` counts those that are read as what they are."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)

    def places(self, rows: int, columns: int) -> Any:
        """Numbers that run along rows, columns or both."""
        how = self.r.randrange(6)
        i, j = mg.arange(rows)[:, None], mg.arange(self.r.choice((0, 1)), columns + 1)[:columns]
        if how == 0:
            return i
        if how == 1:
            return j
        if how == 2:
            return mg.expand(mg.unsqueeze(j, 0), [rows, -1])
        if how == 3:
            return j - i
        if how == 4:
            return mg.abs(mg.scale(i - j, self.r.choice((1, -1)), bias=self.r.choice((0, 1))))
        return mg.transpose(mg.expand(mg.unsqueeze(mg.arange(rows), 0), [columns, rows]), [1, 0])

    def triangle(self, rows: int, columns: int) -> Any:
        diagonal, lower = self.r.randint(-2, 2), self.r.random() < 0.5
        how = self.r.randrange(4)
        if how == 0:  # of one row or column, which broadcasts
            rows, columns = self.r.choice(((1, columns), (rows, 1), (rows, columns)))
        if how == 1:
            whole = np.tri(rows, columns, diagonal) if lower else np.triu(np.ones((rows, columns)), diagonal)
            return mg.assign(whole * self.r.choice((1.0, -5.0)))
        wide = how == 2
        x = mg.full([rows + 3 * wide, columns + 2 * wide], self.r.choice((1.0, 2.0, -math.inf)), "float64")
        x = (mg.tril if lower else mg.triu)(x, diagonal)
        return x[self.r.randrange(4):][:rows, -columns:] if wide else x

    def mask(self, rows: int, columns: int, depth: int) -> Any:
        """float64, of a shape that broadcasts to [rows, columns]."""
        r = self.r
        how = r.choice(("triangle", "places")) if depth == 0 else r.choice(
            ("triangle", "places", "compared", "negated", "joined", "scaled", "chosen", "log", "turned", "spread")
        )  # fmt: skip
        if how == "triangle":
            return self.triangle(rows, columns)
        if how == "places":
            a, b = self.places(rows, columns), r.choice((self.places(rows, columns), r.randint(-1, 3)))
            return mg.cast(r.choice(COMPARISONS)(a, b), "float64")
        x = self.mask(rows, columns, depth - 1)
        if how == "compared":
            return mg.cast(r.choice(COMPARISONS)(x, float(r.choice((0, 1, -5)))), "float64")
        if how == "negated":
            return mg.cast(mg.logical_not(mg.cast(x, "bool")), "float64")
        if how == "scaled":
            return r.choice((lambda: 1 - x, lambda: x * -3, lambda: mg.scale(x, 2.0, bias=1.0)))()
        if how == "log":
            return mg.log(mg.abs(x))
        if how == "turned":
            return mg.transpose(mg.expand(x, [rows, columns]), [1, 0]) if rows == columns else x
        if how == "spread":
            return mg.expand(x, [rows, columns])
        y = self.mask(rows, columns, depth - 1)
        if how == "joined":
            join = r.choice((mg.add, mg.multiply, mg.maximum, mg.minimum, mg.logical_and, mg.logical_or))
            if join in (mg.logical_and, mg.logical_or):
                return mg.cast(join(mg.cast(x, "bool"), mg.cast(y, "bool")), "float64")
            return join(x, y)
        return mg.where(mg.cast(x, "bool"), y, r.choice((0.0, -math.inf, self.mask(rows, columns, depth - 1))))


def said(found: StepFunction | Index, shape: tuple[int, ...]) -> np.ndarray:
    """The array that a Value describes."""
    i, j = np.arange(shape[-2])[:, None], np.arange(shape[-1])
    if isinstance(found, Index):
        value = found.rows * i + found.columns * j + found.start
        return abs(value) if found.absolute else value
    inside = (j - i >= found.bounds[0]) & (j - i <= found.bounds[1])
    return np.where(inside, found.inside, found.outside)


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_random_masks_are_what_they_are_read_as(first):
    parted = 0
    for seed in range(first, first + 100):
        masks = Masks(seed)
        rows, columns = masks.r.choice(((4, 4), (5, 5), (3, 6), (6, 3), (1, 4)))
        main = mg.static.Program()
        with mg.static.program_guard(main, mg.static.Program()):
            mask = masks.mask(rows, columns, masks.r.choice((0, 1, 2, 3)))
        with np.errstate(all="ignore"):
            exact = Executor().run(main, {}, [mask], scope=Scope())[0]
        graph = to_graph(main, [mask.name])
        found = value_of(graph.vars[mask.name, 0])
        if found is not None:
            read = np.broadcast_to(said(found, exact.shape), exact.shape).astype(exact.dtype)
            np.testing.assert_array_equal(read, exact, f"seed {seed}")
            parted += isinstance(found, StepFunction) and found.constant is None
    assert parted >= 25, parted


def test_a_triangle_of_one_row_is_none_of_all_rows():
    """[1, S] that broadcasts to [S, S]: all rows are like the first one."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        mask = mg.tril(mg.ones([1, 4])) + mg.zeros([4, 4])
    graph = to_graph(main, [mask.name])
    assert value_of(graph.vars[mask.name, 0]) is None
