"""Accuracy and area under the curve as operators of a program."""

from __future__ import annotations

import numpy as np

from minigraph.errors import AttrError, DTypeError, ProgramError, call_site, require
from minigraph.errors.kinds import NOT_OFFERED, RANK
from minigraph.nn.functional.loss import picked
from minigraph.program import Variable, default_main_program, default_startup_program, unique_name
from minigraph.program.builder import Builder, builder_of, whole
from minigraph.tensor import arange, cast, concat, cumsum, floor, matmul, reshape, sum, where
from minigraph.tensor.arguments import variable
from minigraph.types import INTS, TensorType, float32, float64, int32, int64

COLUMNS = 64  # of the table in which thresholds are counted


@whole
def accuracy(
    input: Variable, label: Variable, k: int = 1, correct: Variable | None = None, total: Variable | None = None
) -> Variable:
    """The share of rows whose label is among the k classes with the largest scores, float32 of rank 0.

    input           scores [N, C]; of equal ones the first counts as the larger one, NaN as the largest
    label           class numbers [N, 1] or [N]
    correct, total  int32 Variables of one element into which the two numbers are written
    """
    call = "accuracy"
    x, label = variable(input, call, "input"), variable(label, call, "label")
    require(isinstance(k, int) and k >= 1, f"k must be an int >= 1, is {k!r}", AttrError)
    if x.ndim != 2 or label.ndim not in (1, 2):
        raise RANK(f"input {x} must be [N, C], label {label} [N, 1] or [N]", call=call, site=call_site())
    g = builder_of(x)
    hits = rank(x, label) < k
    for out, count in ((correct, hits), (total, g.fill_any_like(hits, value=1, dtype=int32))):
        if out is not None:
            number = cast(g.reduce_sum(cast(count, int32)), int32)
            g.assign(reshape(number, list(out.shape)), out={"Out": variable(out, call, "correct or total")})
    share = g.reduce_mean(cast(hits, float32))
    share.stop_gradient = True
    return share


def rank(x: Variable, label: Variable) -> Variable:
    """How many classes come before the label's by their scores on the last axis of x, [..., 1]."""
    g, axis = builder_of(x), x.ndim - 1
    label = label if label.ndim == x.ndim else g.unsqueeze(label, axes=[axis])
    if x.shape[axis] >= 0:
        own, _ = picked(x, label, axis)
        classes = arange(x.shape[axis], dtype=label.dtype)
    else:  # a run knows how many; a label that is none of them counts as a miss
        classes = g.arange_like(x, axis=axis, dtype=label.dtype)
        own = sum(where(g.equal(classes, label), x, 0.0), axis, keepdim=True)
    after = g.logical_and(g.equal(x, own), g.greater_equal(classes, label))
    before = g.logical_not(g.logical_or(g.less_than(x, own), after))  # NaN is neither
    return g.reduce_sum(before, axis=[axis], keepdim=True)


@whole
def auc(
    input: Variable, label: Variable, curve: str = "ROC", num_thresholds: int = 2**12 - 1, topk: int = 1,
    slide_steps: int = 1, ins_tag_weight: Variable | None = None,
) -> tuple[Variable, Variable, list[Variable]]:  # fmt: skip
    """The area under the ROC curve of all runs so far and of the last ones: (auc, batch_auc, states), float64.

    input           probabilities, of the positive class in the last column: [N, 2] or [N, 1]
    label           0 or 1, int [N, 1] or [N]
    num_thresholds  probabilities are told apart in steps of 1 / num_thresholds
    slide_steps     batch_auc is that of so many last runs, 0: of all
    states          [batch positive, batch negative, positive, negative]: persistable int64 counts by threshold,
                    [slide_steps, num_thresholds + 1] and [1, num_thresholds + 1]; set them to 0 to begin anew
    It is 0 until both labels were seen. topk has no effect, as in Paddle.
    """
    call = "auc"
    x, label = variable(input, call, "input"), variable(label, call, "label")
    require(curve == "ROC", f"curve {curve!r} is not there, only ROC", NOT_OFFERED)
    require(num_thresholds >= 1, f"num_thresholds must be at least 1, is {num_thresholds}", AttrError)
    require(slide_steps >= 0, f"slide_steps must not be negative, is {slide_steps}", AttrError)
    require(label.dtype in INTS, f"label must be an int, is {label}", DTypeError)
    if x.ndim != 2 or x.shape[1] not in (1, 2):
        raise RANK(f"input must be [N, 2] or [N, 1], is {x}", call=call, site=call_site())
    if ins_tag_weight is not None:
        raise ProgramError("ins_tag_weight is not there", call=call, site=call_site(), hint="leave rows out first")
    counts = _counts(x, reshape(label, [-1, 1]), num_thresholds)
    names = [unique_name.generate(f"auc_{kind}") for kind in ("batch_pos", "batch_neg", "pos", "neg")]
    rows = max(slide_steps, 1)
    states = [_zeros(n, (r, num_thresholds + 1)) for n, r in zip(names, (rows, rows, 1, 1), strict=True)]
    g = builder_of(x)
    for i, batch in enumerate(counts):
        window = states[i]
        if slide_steps == 0:
            new = g.elementwise_add(window, batch)
        else:
            new = batch if rows == 1 else concat([g.slice(window, axes=[0], starts=[1], ends=[rows]), batch])
        g.assign(new, out={"Out": window})
        g.assign(g.elementwise_add(states[2 + i], batch), out={"Out": states[2 + i]})
    return _area(states[2], states[3]), _area(states[0], states[1]), states


def _counts(x: Variable, label: Variable, thresholds: int) -> tuple[Variable, Variable]:
    """How many positive and how many negative rows fall between two thresholds, int64 [1, thresholds + 1].

    A place is row * COLUMNS + column of a table: the product of two narrow one-hot matrices counts all places at once.
    """
    g = builder_of(x)
    place = floor(g.slice(x, axes=[1], starts=[x.shape[1] - 1], ends=[x.shape[1]]) * float(thresholds))
    place = cast(reshape(place, [-1]), float32)
    row = floor(place * (1 / COLUMNS))
    column = place - row * float(COLUMNS)
    depth = thresholds // COLUMNS + 1
    of_row = g.one_hot(cast(row, int32), depth=depth, dtype=float32)
    of_column = g.one_hot(cast(column, int32), depth=COLUMNS, dtype=float32)
    positive = cast(label != 0, float32)
    tables = [matmul(of_row, of_column * weight, transpose_x=True) for weight in (positive, 1 - positive)]
    lines = [reshape(cast(table, int64), [1, depth * COLUMNS]) for table in tables]
    first, second = (g.slice(line, axes=[1], starts=[0], ends=[thresholds + 1]) for line in lines)
    return first, second


def _area(positive: Variable, negative: Variable) -> Variable:
    """The area under the curve of counts [runs, thresholds + 1]: rows of equal places count half."""
    p, n = (cast(sum(counts, axis=0), float64) for counts in (positive, negative))
    above = sum(p) - cumsum(p)
    pairs = sum(p) * sum(n)
    some = pairs > 0
    return where(some, sum(n * (above + p * 0.5)) / where(some, pairs, 1.0), 0.0)


def _zeros(name: str, shape: tuple[int, ...]) -> Variable:
    """A persistable int64 variable that the startup program sets to 0."""
    startup, type = default_startup_program().global_block(), TensorType(shape, np.dtype(int64))
    begin = startup.create_var(name, type=type, persistable=True)
    Builder(startup).fill_constant(shape=shape, value=0, dtype=int64, out={"Out": begin})
    state = default_main_program().global_block().create_var(name, type=type, persistable=True)
    state.stop_gradient = True
    return state
