"""Which variants and algorithms run, and how large workspaces are, before memory is laid out."""

from __future__ import annotations

from functools import partial

import pytest

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.calls import Choice, Copy, Gemm
from minigraph.kernels.cuda.record.workspace import Algorithm, Settling, settled, settling
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.memory_report import memory_report
from minigraph.runtime.options import DEFAULT
from minigraph.types import CUDAPlace, float32
from tests.support import gpu_stub

MIB = 1 << 20


def recorded(*variants, epilogue="DEFAULT", **facts):
    """A Binder with one product, and a Choice whose variants are lists of numbers of columns; 0 is a copy."""
    binder = Binder(**facts)
    binder.begin(0)
    operands = [Buffer((64, 64), float32) for _ in range(3)]

    def record(columns):
        for n in columns:
            if n == 0:
                binder.copy(operands[0], operands[1])
            else:
                binder.gemm(*operands, m=1, n=n, k=1, epilogue=epilogue)

    record([1])
    binder.choose({str(i): partial(record, columns) for i, columns in enumerate(variants)})
    return binder


def chosen(needs):
    return lambda call: None if needs[call.n] is None else Algorithm(needs[call.n], b"%d" % call.n)


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
def test_what_may_run_decides_how_large_workspaces_are(needs, every, fitted):
    binder = recorded([2, 3], [4])
    single, choice = binder.calls
    settled(binder.calls, chosen(needs), every)
    products = [c for calls in choice.variants.values() for c in calls]
    assert (single.workspace.nbytes, *{c.workspace.nbytes for c in products}) == fitted
    runs = [c for c in products if c.algorithm is not None]
    assert all(c.algorithm == b"%d" % c.n for c in runs)
    assert bool(runs) == (fitted != (MIB, MIB))


@pytest.mark.parametrize(
    ("variants", "needs", "facts", "opened"),
    [
        ([[2, 0], [3]], {1: 0, 2: 0}, {}, [1, 2, 0]),
        ([[0], [3]], {1: 0, 3: 0}, {}, [1, 0]),  # a kernel without products
        ([[2, 0], [3]], {1: 0, 2: None, 3: 0}, {}, [1, None]),  # the report says why it is not the first
        ([[2, 0], [3]], {1: 0, 2: 0}, {"epilogue": "RELU_BIAS"}, [1, None]),  # known when NaN was tried
        ([[2, 0], [3]], {1: 0, 2: 0, 3: 0}, {"every": True}, [1, None]),  # autotune measures them
    ],
)
def test_a_choice_is_the_variant_that_will_run_where_that_is_sure(variants, needs, facts, opened):
    binder = recorded(*variants, epilogue=facts.pop("epilogue", "DEFAULT"))
    found = settled(binder.calls, chosen(needs), **facts)
    kinds = [None if isinstance(c, Choice) else 0 if isinstance(c, Copy) else c.n for c in found]
    assert kinds == opened


@pytest.mark.parametrize(
    ("needs", "epilogue", "ways"),
    [
        ({1: 0, 2: 0, 3: 0, 4: 0}, "DEFAULT", ["0"]),
        ({1: 0, 2: 0, 3: None, 4: 0}, "DEFAULT", ["0", "1"]),  # the library lacks a product of the first
        ({1: 0, 2: 0, 3: None, 4: None}, "DEFAULT", ["0", "1", "2"]),
        ({1: 0, 2: 0, 3: 0, 4: 0}, "RELU_BIAS", ["0", "1", "2"]),  # nobody has tried NaN yet; a copy can run
    ],
)
def test_what_comes_after_a_variant_that_will_run_is_not_recorded(needs, epilogue, ways):
    _, choice = recorded([2, 3], [4], [0], [4], epilogue=epilogue, sure=settling(chosen(needs)).sure).calls
    assert list(choice.variants) == ways
    _, choice = recorded([2, 3], [4], [0], [4], epilogue=epilogue).calls
    assert list(choice.variants) == ["0", "1", "2", "3"], "nobody is asked"


def test_a_choice_inside_a_variant_is_opened_too():
    binder = Binder()
    binder.begin(0)
    a, b, c = (Buffer((64, 64), float32) for _ in range(3))

    def inner():
        binder.choose({"kernel": lambda: binder.copy(a, b), "product": lambda: binder.gemm(a, b, c, m=1, n=2, k=1)})
        binder.zero(c)

    binder.choose({"both": inner})
    assert [type(call).__name__ for call in settled(binder.calls, chosen({2: 0}))] == ["Copy", "Fill"]


def product_of_rows():
    program = Program()
    x = program.global_block().create_var("x", [8192, 64], "float32", is_data=True)
    Builder(program.global_block()).matmul(x, x, trans_y=True)
    return program, {"x": x.type}


def test_the_layout_has_no_more_than_is_needed():
    full, fitted = (
        bind_program(*product_of_rows(), [], settling=own)
        for own in (Settling(), settling(lambda call: Algorithm(3 * MIB, b"")))
    )
    assert full.arena_bytes - fitted.arena_bytes == (32 - 3) * MIB
    assert all(isinstance(c, Gemm) for c in fitted.binder.calls)


def test_scratch_of_variants_that_do_not_run_has_no_memory():
    program = Program()
    g = Builder(program.global_block())
    x, w, b = (program.global_block().create_var(n, s, "float32", is_data=True) for n, s in
               (("x", [512, 256]), ("w", [256, 256]), ("b", [256])))  # fmt: skip
    out, _ = g.fused_gemm_epilogue(x, w, b, activation="none")
    g.fused_gemm_epilogue_grad(out, x, w, needs={"DX", "DY", "DBias"})
    types = {v.name: v.type for v in (x, w, b)}
    own = Settling(lambda calls, note: settled(calls, lambda call: Algorithm(0, b"")))
    bound = bind_program(program, types, [], settling=own)
    assert not any(isinstance(c, Choice) for c in bound.binder.calls)
    values = {id(buffer) for buffer in bound.buffers}
    touched = {id(b) for call in bound.binder.calls for b in call.buffers()}
    scratches = {id(s): s for own in bound.binder.scratches for s in own if s.nbytes}
    assert scratches.keys() - touched, "variants that do not run asked for some"
    laid_out = {id(block) for block, _ in bound.blocks}
    assert laid_out <= values | touched
    assert scratches.keys() & touched <= laid_out


def test_a_report_has_the_workspaces_of_the_gpu_that_is_there(monkeypatch):
    program, types = product_of_rows()

    def planned(place):
        return memory_report(program, types, (), place, DEFAULT).planned

    without = planned(CUDAPlace(0))
    gpu_stub.installed(monkeypatch)
    assert without - planned(CUDAPlace(0)) == 32 * MIB - 256
    assert planned(CUDAPlace(1)) == without, "there is one GPU"
