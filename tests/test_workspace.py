"""Workspaces: as large as what runs needs, before memory is laid out."""

from __future__ import annotations

import numpy as np
import pytest

from minigraph.bound import BoundProgram
from minigraph.builder import Builder
from minigraph.kernels.cuda.binder import Binder, Choice, Gemm
from minigraph.kernels.cuda.buffer import Buffer
from minigraph.kernels.cuda.workspace import Algorithm, fit_workspaces
from minigraph.program import Program
from minigraph.types import float32

MIB = 1 << 20


def binder_of(*variants):
    """A Binder with one product, and a Choice whose variants are lists of numbers of columns."""
    binder = Binder()
    binder.begin(0)
    operands = [Buffer((64, 64), float32) for _ in range(3)]

    def products(columns):
        for n in columns:
            binder.gemm(*operands, m=1, n=n, k=1)

    products([1])
    binder.choose({str(i): lambda columns=columns: products(columns) for i, columns in enumerate(variants)})
    return binder


@pytest.mark.parametrize(
    ("needs", "every", "fitted"),
    [
        ({1: 0, 2: 300, 3: 200, 4: 900}, False, (0, 300)),  # the first variant runs: the larger of its products
        ({1: 0, 2: 300, 3: 200, 4: 900}, True, (0, 900)),
        ({1: 5, 2: None, 3: 200, 4: 900}, False, (5, 900)),  # the library has no product of the first
        ({1: 5, 2: 100, 3: None, 4: 900}, True, (5, 900)),
        ({1: None, 2: None, 3: None, 4: None}, False, (MIB, MIB)),  # an error later, which says more
    ],
)
def test_what_runs_decides(needs, every, fitted):
    binder = binder_of([2, 3], [4])
    chosen = {n: None if nbytes is None else Algorithm(nbytes, b"%d" % n) for n, nbytes in needs.items()}
    fit_workspaces(binder.calls, lambda call: chosen[call.n], every)
    single, choice = binder.calls
    assert isinstance(single, Gemm) and isinstance(choice, Choice)
    shared = {id(c.workspace): c.workspace.nbytes for calls in choice.variants.values() for c in calls}
    assert (single.workspace.nbytes, *shared.values()) == fitted
    runs = [c for calls in choice.variants.values() for c in calls if c.algorithm is not None]
    assert all(c.algorithm == b"%d" % c.n for c in runs)
    assert bool(runs) == (fitted != (MIB, MIB))


def test_the_layout_has_no_more_than_is_needed():
    program = Program()
    x = program.global_block().create_var("x", [8192, 64], "float32", is_data=True)
    Builder(program.global_block()).matmul(x, x, trans_y=True)
    full, fitted = (
        BoundProgram(program, {"x": x.type}, [], fit=fit)
        for fit in (None, lambda binder: fit_workspaces(binder.calls, lambda call: Algorithm(3 * MIB)))
    )
    assert full.arena_bytes - fitted.arena_bytes == (32 - 3) * MIB
    assert max(b.nbytes for b, _ in fitted.blocks if b.dtype == np.uint8) == 3 * MIB
