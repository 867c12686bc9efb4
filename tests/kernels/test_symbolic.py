"""Symbols compute what their sizes would, and conditions fail where a function would have done something else."""

from __future__ import annotations

import math
import operator
import random
from typing import Any, NamedTuple

import numpy as np
import pytest

from minigraph.kernels.cuda.record.binder import blocks_for, i64
from minigraph.kernels.cuda.record.symbolic import (
    NO_SYMBOLS,
    Questions,
    Scalar,
    SizeSymbol,
    Trace,
    decision,
    program,
)
from minigraph.types import TensorType, float32


class Cut(NamedTuple):
    rows: int
    parts: int


@decision()
def rows_for(shape: tuple[int, int], most: int) -> int:
    return next((rows for rows in (64, 32, 16) if rows <= most and shape[0] >= 4 * rows), 8)


@decision(free=("parts",))
def cut_for(n: int) -> Cut:
    return Cut(64 if n > 300 else 32, -(-n // 50))


def worked(n: Any, k: Any) -> list[Any]:
    """What bind functions do with sizes."""
    size = math.prod((n, k, 4))
    lanes = min(32, 1 << max(blocks_for(n, 4) - 1, 0).bit_length())
    pack = next(p for p in (4, 2, 1) if size % p == 0 and (n * k) % p == 0)
    waves, rest = divmod(n * 3, 132)
    cut, aligned = cut_for(n + k), (n * 12) & -(n * 12)
    return [
        size // pack, blocks_for(size // pack, 256), lanes, pack, math.ceil(waves * 1.5), rest, max(n, k), aligned,
        min(256, aligned), rows_for((n, k), 64), cut.rows, cut.parts * 2, n / k, 2 + k, 7 - n, 100 // k, k**2, n >> 1,
        "wide" if n in (1, 7, 256) else "narrow", len(range(k % 3)), [n] * (k == 5), not (n - 7), (n, k) == (k, n),
    ]  # fmt: skip


def symbols_of(trace: Trace) -> list[Any]:
    return list(trace.symbols)


def concrete(made: Any, values: Any) -> Any:
    if isinstance(made, list):
        return [concrete(x, values) for x in made]
    return values[made.node] if isinstance(made, SizeSymbol) else made


def test_a_function_on_symbols_is_the_function_wherever_its_guards_hold():
    r, held = random.Random(0), 0
    for _ in range(150):
        sizes = r.randint(1, 600), r.choice((1, 5, 10, r.randint(1, 600)))
        trace = Trace(sizes)
        made, found = worked(*trace.symbols), program(trace)
        assert concrete(made, found(sizes)) == worked(*sizes)
        for _ in range(40):
            others = (r.randint(1, 600), sizes[1]) if r.random() < 0.7 else (r.randint(1, 600), r.randint(1, 600))
            values = found(others)
            if values is not None:
                held += others != sizes
                assert concrete(made, values) == worked(*others)
    assert held > 100, "some hold for others"


def test_a_tree_of_traces_gives_what_one_of_them_gives() -> None:
    r, questions, each = random.Random(1), Questions[Any](), list[Any]()

    def drawn() -> tuple[int, int]:
        return r.randint(1, 600), r.choice((1, 5, 10, r.randint(1, 60)))

    for _ in range(120):
        trace = Trace(drawn())
        made = worked(*trace.symbols)
        questions.add(trace.steps, made)
        each.append(program(trace))
    held = 0
    for _ in range(400):
        sizes = drawn()
        found = questions.fitting(sizes)
        assert (found is None) == all(one(sizes) is None for one in each)
        if found is not None:
            assert concrete(*found) == worked(*sizes)
            held += 1
    assert 100 < held < 400 and len(questions.roots) == 1, "they begin alike"


def test_traces_of_other_functions_do_not_share_a_tree() -> None:
    questions = Questions[str]()
    functions = {"twice": lambda n: n * 2 > 7, "more": lambda n: n + 2 > 7, "half": lambda n: n * 2.0 > 7}
    for name, function in functions.items():
        trace = Trace((9,))
        function(*trace.symbols)
        questions.add(trace.steps, name)
    assert len(questions.roots) == 3
    assert questions.fitting((4,)) == ("twice", [4, 2, 8, 7, True]) and questions.fitting((3,)) is None



@pytest.mark.parametrize("ask", [
    lambda n: n > 5, lambda n: n == 8, lambda n: n != 8, lambda n: bool(n - 8), lambda n: range(n),
    lambda n: {8: 1}.get(n), lambda n: float(n), lambda n: f"{n:4d}", lambda n: int(n), lambda n: math.gcd(n, 4),
    lambda n: np.zeros(n), lambda n: np.int64(n), lambda n: cut_for(n * 40),
])  # fmt: skip
def test_what_depends_on_an_answer_holds_for_the_same_answer_only(ask):
    trace = Trace((8,))
    ask(*trace.symbols)
    found = program(trace)
    assert found((8,)) is not None and found((3,)) is None


def test_a_text_that_is_used_is_fixed_and_one_that_is_not_is_no_guard():
    trace = Trace((8, 9))
    n, k = symbols_of(trace)
    text, _ = f"rows of {n * 2}, {[n]}", f"{k} is no multiple"
    assert program(trace)((3, 3)) is not None
    assert trace.text(text) == "rows of 16, [8]"
    found = program(trace)
    assert found((8, 3)) is not None and found((3, 9)) is None


def test_symbols_are_equal_where_they_are_the_same_and_types_with_them_can_be_looked_up():
    trace, other = Trace((8, 8)), Trace((8, 8))
    n, k = symbols_of(trace)
    known = {TensorType((n, 4), float32): "n"}
    assert known[TensorType((n, 4), float32)] == "n" and TensorType((symbols_of(other)[0], 4), float32) not in known
    assert program(trace)((1, 2)) is not None, "nothing was asked"
    assert n == k and n != "8" and n != None and n != other.symbols[0]  # noqa: E711
    assert program(trace)((1, 2)) is None and program(trace)((2, 2)) is not None


def test_an_argument_of_a_symbol_has_its_type():
    trace = Trace((8,))
    made = i64(symbols_of(trace)[0] * 3)
    assert isinstance(made, Scalar) and (made.kind, made.nbytes, made.dtype) == (np.int64, 8, np.dtype("int64"))
    assert type(i64(24)) is np.int64


@pytest.mark.parametrize("use", [
    lambda n, m: n | 1, lambda n, m: n + m, lambda n, m: operator.matmul(n, 2), lambda n, m: n + "1",
    lambda n, m: n < m, lambda n, m: n.shape, lambda n, m: next(iter(n)),
])  # fmt: skip
def test_what_a_symbol_does_not_know_is_an_error(use):
    with pytest.raises(NO_SYMBOLS):
        use(Trace((8,)).symbols[0], Trace((8,)).symbols[0])
