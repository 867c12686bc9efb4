"""Einstein's sums: products of tensors summed over axes that are named by letters, as matrix products."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, NamedTuple

from minigraph.errors import AttrError, ShapeError, require
from minigraph.errors.kinds import CONFLICT, COUNT, INNER
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.types import normalize_axis

from .arguments import output_prefix, variable, variables
from .grids import diagonal
from .manipulation import flatten, reshape, squeeze, transpose, unsqueeze
from .math import matmul, multiply, sum

Label = Hashable  # a letter, or the number of an axis of `...` counted from the last one


class Labelled(NamedTuple):
    """A Variable whose axes have labels, each another one."""

    value: Variable
    labels: tuple[Label, ...]

    def size(self, label: Label) -> int:
        return self.value.shape[self.labels.index(label)]

    def ordered(self, labels: Sequence[Label]) -> Labelled:
        """With its axes in the order of the labels."""
        order = [self.labels.index(label) for label in labels]
        value = self.value if order == [*range(len(order))] else transpose(self.value, order)
        return Labelled(value, tuple(labels))

    def summed(self, kept: Collection[Label]) -> Labelled:
        """Summed over the labels that nobody needs."""
        axes = [axis for axis, label in enumerate(self.labels) if label not in kept]
        value = sum(self.value, axes) if axes else self.value
        return Labelled(value, tuple(label for label in self.labels if label in kept))


@whole
def einsum(equation: str, *operands: Any) -> Variable:
    """Sums of products: einsum("bij,bjk->bik", x, y) multiplies matrices.

    equation  a term of letters, one for each axis, for each operand, and after `->` that of the result. Letters
              that the result lacks are summed; one that stands twice in a term means the diagonal. `...` stands for
              further axes, which broadcast. Without `->` the result has the letters that stand once, in order.
    """
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    parts = variables(list(given), "einsum", "operands")
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    require(len(terms) == len(parts), f"{equation!r} has {len(terms)} terms for {len(parts)} operands", AttrError)
    labelled = [_labelled(equation, term, v) for term, v in zip(terms, parts, strict=True)]
    used = [label for part in labelled for label in part.labels]
    dots = sorted({label for label in used if isinstance(label, int)})
    if arrow:
        out = _labels(equation, right, len(dots), dots)
    else:
        letters = sorted(set(left) - {",", "."})
        out = (*dots, *(letter for letter in letters if left.count(letter) == 1))
    unknown = [label for label in out if label not in used]
    require(not unknown, f"{equation!r}: the result has {unknown}, no operand does", AttrError)
    require(len(set(out)) == len(out), f"{equation!r}: a letter stands twice in the result", CONFLICT)
    return _contracted(labelled, out, "einsum", None)


def _labels(equation: str, term: str, count: int, dots: Sequence[int] | None = None) -> tuple[Label, ...]:
    """The labels of a term whose `...` stands for so many axes, with the numbers `dots` or the last ones."""
    before, found, after = term.partition("...")
    require((before + after).isalpha() or not before + after, f"{equation!r}: {term!r} is no term", AttrError)
    if not found:
        return tuple(term)
    return (*before, *(range(-count, 0) if dots is None else dots), *after)


def _labelled(equation: str, term: str, v: Variable) -> Labelled:
    """The operand of a term; of a letter that stands twice the diagonal."""
    letters = len(term.replace("...", ""))
    fits = letters <= v.ndim if "..." in term else letters == v.ndim
    require(fits, f"{equation!r}: {term!r} has {letters} letters, the operand is {v}", COUNT)
    labels = _labels(equation, term, v.ndim - letters)
    while len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        first = labels.index(twice)
        second = labels.index(twice, first + 1)
        require(v.shape[first] == v.shape[second], f"{equation!r}: sizes of {twice!r} differ in {v}", ShapeError)
        v = diagonal(v, 0, first, second)
        labels = (*(label for axis, label in enumerate(labels) if axis not in (first, second)), twice)
    return Labelled(v, labels)


def _contracted(parts: list[Labelled], out: tuple[Label, ...], call: str, name: str | None) -> Variable:
    """The product of all parts, summed over all labels but `out`."""
    parts = _without_ones(parts, call)
    given, done = parts[0].value, parts[0]
    for place, part in enumerate(parts[1:], 2):
        needed = {*out, *(label for later in parts[place:] for label in later.labels)}
        pair = done.summed({*needed, *part.labels}), part.summed({*needed, *done.labels})
        done = _product(*pair, needed, out)
    done = done.summed(out)
    missing = [label for label in out if label not in done.labels]  # of size 1 in every part
    if missing:
        done = Labelled(unsqueeze(done.value, [*range(len(missing))]), (*missing, *done.labels))
    result = done.ordered(out).value
    g = builder_of(result)
    same = len(parts) == 1 and result is given
    return g.assign(result, name=output_prefix(call, name)) if same or name else result


def _without_ones(parts: list[Labelled], call: str) -> list[Labelled]:
    """The parts without axes of size 1, along which they broadcast; other sizes of one label must agree."""
    kept = []
    for part in parts:
        for label in part.labels:
            sizes = {p.size(label) for p in parts if label in p.labels} - {-1, 1}
            require(len(sizes) < 2, f"{call}: axis {label!r} has the sizes {sorted(sizes)}", INNER)
        axes = [axis for axis, size in enumerate(part.value.shape) if size == 1]
        value = squeeze(part.value, axes) if axes else part.value
        kept.append(Labelled(value, tuple(label for axis, label in enumerate(part.labels) if axis not in axes)))
    return kept


def _product(x: Labelled, y: Labelled, needed: Collection[Label], out: Sequence[Label]) -> Labelled:
    """x * y, summed over the labels of both that nobody needs."""
    both = [label for label in x.labels if label in y.labels]
    batch = [label for label in both if label in needed]
    inner = [label for label in both if label not in needed]
    rows, columns = ([label for label in p.labels if label not in both] for p in (x, y))
    if rows and columns and {rows[0], columns[0]} <= {*out} and out.index(rows[0]) > out.index(columns[0]):
        x, y, rows, columns = y, x, columns, rows
    if not batch and len(inner) == len(columns) == 1 and x.labels[-1:] == (*inner,):  # rows may be any axes
        right, trans_y = _matrix(y, batch, columns, inner)
        return Labelled(matmul(x.value, right, transpose_y=not trans_y), (*rows, *columns))
    unknown = [[p.size(label) for label in group].count(-1) for p, group in ((x, rows), (y, columns))]
    hard = max(unknown) > 1 or (unknown == [1, 1] and len(rows) > 1)  # a shape has one size to find
    if not inner or hard:
        every = [*batch, *rows, *columns, *inner]
        wide = multiply(_beside(x, every), _beside(y, every))
        return Labelled(wide, tuple(every)).summed([*batch, *rows, *columns])
    left, trans_x = _matrix(x, batch, rows, inner)
    right, trans_y = _matrix(y, batch, columns, inner)
    value = matmul(left, right, trans_x, not trans_y)
    if len(rows) != 1 or len(columns) != 1:
        sizes = [x.size(label) for label in rows] + [y.size(label) for label in columns]
        same = len(batch) + (len(rows) == 1)  # axes that stay where they are
        copied = [0] * same + sizes[same - len(batch) :]
        value = reshape(value, copied)
    return Labelled(value, (*batch, *rows, *columns))


def _beside(part: Labelled, labels: Sequence[Label]) -> Variable:
    """The part with an axis for each label, of size 1 where it has none."""
    own = part.ordered([label for label in labels if label in part.labels])
    absent = [place for place, label in enumerate(labels) if label not in part.labels]
    return unsqueeze(own.value, absent) if absent else own.value


def _matrix(part: Labelled, batch: list[Label], outer: list[Label], inner: list[Label]) -> tuple[Variable, bool]:
    """Matrices [batch, outer, inner] as one axis each, or the other way round where that is how it lies: True."""
    turned = (*batch, *inner, *outer) == part.labels and bool(outer)
    groups = (inner, outer) if turned else (outer, inner)
    value = part.ordered([*batch, *groups[0], *groups[1]]).value
    start = len(batch) + len(groups[0])
    if len(groups[1]) > 1:
        value = flatten(value, start, start + len(groups[1]) - 1)
    if len(groups[0]) > 1:
        value = flatten(value, len(batch), start - 1)
    if not groups[0]:
        value = unsqueeze(value, [len(batch)])
    return value, turned


@whole
def tensordot(x: Variable, y: Variable, axes: Any = 2, name: str | None = None) -> Variable:
    """Sums of products over axes of both: the last `axes` ones of x with the first ones of y.

    axes  or a list of axes, the same of both, or a list of two such lists
    """
    x, y = variable(x, "tensordot"), variable(y, "tensordot", "y")
    if isinstance(axes, int):
        require(0 <= axes <= min(x.ndim, y.ndim), f"axes {axes} is more than {x} and {y} have", AttrError)
        pair = [*range(x.ndim - axes, x.ndim)], [*range(axes)]
    else:
        lists = [[a] if isinstance(a, int) else [*a] for a in axes]
        nested = any(not isinstance(a, int) for a in axes)
        first, second = (lists * 2)[:2] if nested else ([*axes], [*axes])
        most = max(len(first), len(second))
        pair = first + second[len(first) : most], second + first[len(second) : most]
    of_x, of_y = ([normalize_axis(a, v.ndim) for a in own] for own, v in zip(pair, (x, y), strict=True))
    left: list[Label] = [("x", axis) for axis in range(x.ndim)]
    right: list[Label] = [("y", axis) for axis in range(y.ndim)]
    for a, b in zip(of_x, of_y, strict=True):
        right[b] = left[a]
    out = [label for label in (*left, *right) if (label in left) != (label in right)]
    return _contracted([Labelled(x, tuple(left)), Labelled(y, tuple(right))], tuple(out), "tensordot", name)


__all__ = ["einsum", "tensordot"]
