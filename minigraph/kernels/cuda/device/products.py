"""Products: which algorithm of cuBLASLt computes a product, before and after addresses are known. Needs a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from nvmath.bindings import cublasLt as lt

from minigraph.kernels.cuda.record.buffer import Buffer, alignment, lies_as
from minigraph.kernels.cuda.record.call import Unsupported
from minigraph.kernels.cuda.record.calls import Gemm
from minigraph.kernels.cuda.record.moved import unplaced
from minigraph.kernels.cuda.record.workspace import Algorithm, Chosen

from .cublaslt import LtPlan

PROBED_ROWS = 1024


class Products:
    """cuBLASLt on one GPU.

    memory   the Memory of that GPU, for trials with NaN
    tried    whether an algorithm keeps a NaN, by all that its kernel may depend on: how many rows there are does not
    """

    def __init__(self, memory: Any) -> None:
        self.memory, self.handle = memory, lt.create()
        self.tried: dict[Any, bool] = {}

    def chosen(self, tf32: bool) -> Chosen:
        """What answers which algorithm would run, asked for each kind of product once; None where there is none."""
        known: dict[Any, Algorithm | None] = {}

        def chosen(call: Gemm) -> Algorithm | None:
            key = question(call)
            if key not in known:
                known[key] = self._algorithm(unplaced(call), tf32)
            return known[key]

        return chosen

    def _algorithm(self, call: Gemm, tf32: bool) -> Algorithm | None:
        try:
            plan = LtPlan(self.handle, call, tf32)
        except Unsupported:
            return None
        if call.tried_first:  # the first that keeps a NaN will run
            return Algorithm(max(plan.needs.values()), plan.algorithm, tuple(plan.candidates))
        return Algorithm(plan.needed, plan.algorithm)

    def plan(self, call: Gemm, tf32: bool) -> LtPlan:
        """The plan of a product at its addresses; Unsupported where there is no algorithm."""
        plan = LtPlan(self.handle, call, tf32, call.algorithm if lies_as_assumed(call) else None)
        return self._one_that_keeps_nan(plan, tf32) if call.tried_first else plan

    def _one_that_keeps_nan(self, plan: LtPlan, tf32: bool) -> LtPlan:
        """The first candidate that keeps a NaN: some 16-bit algorithms compute relu(NaN) = 0."""
        others = plan.call.others if plan.accepted else ()
        for one in (plan, *(LtPlan(self.handle, plan.call, tf32, form) for form in others)):
            for candidate in one.candidates:
                one.choose(candidate)
                key = tf32, candidate, _but_for_rows(one.call)
                if key not in self.tried:
                    self.tried[key] = self._keeps_nan(one)
                if self.tried[key]:
                    return one
        raise Unsupported("every algorithm turns NaN into 0")

    def _keeps_nan(self, plan: LtPlan) -> bool:
        """Whether a product with a bias of NaN is NaN, tried on memory of its own."""
        call, memory = plan.call, self.memory
        bias = memory.to_device(np.full(call.n, np.nan, call.c.dtype))
        out = memory.empty((call.m, call.n), call.c.dtype)
        plan.probe(bias.data.ptr, out.data.ptr, memory.stream.ptr)
        rows = Buffer((min(call.m, PROBED_ROWS), call.n), call.c.dtype, out.data.ptr)
        results = memory.fetch(rows, as_numpy=True)
        memory.stream.synchronize()
        return bool(np.isnan(results).all())


def question(call: Gemm) -> tuple[Any, ...]:
    """What the library's answer about a product depends on: sizes, types and how operands lie where `unplaced`."""
    room = call.workspace.nbytes if call.workspace else 0
    return (
        call.m, call.n, call.k, call.trans_a, call.trans_b, call.epilogue, call.aux_ld, call.beta, call.batch,
        call.strides, room, *((b.dtype, lies_as(b)) for b in call.operands),
    )  # fmt: skip


def _but_for_rows(call: Gemm) -> tuple[Any, ...]:
    """A product at its addresses, whatever its number of rows; where A is stored by columns, these are a length."""
    m = call.m if call.trans_a else None
    return (
        m, call.n, call.k, call.trans_a, call.trans_b, call.epilogue, call.beta, call.batch,
        *((b.dtype, alignment(b.address)) for b in call.operands),
    )  # fmt: skip


def lies_as_assumed(call: Gemm) -> bool:
    """Whether operands lie as well as those of `unplaced`: what was chosen then can run."""
    return all(alignment(b.address) >= lies_as(b) for b in call.operands)
