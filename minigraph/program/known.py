"""Numbers that a Variable holds in every run: what attributes need to know while the program is built.

    mg.reshape(x, [mg.shape(x)[0], -1])     the size of an axis, also where only a run knows it
    mg.full([n, 3], 0.0)                    n = mg.assign(4) + 1, from constants and sizes alone
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import AttrError, call_site
from minigraph.errors.kinds import RUN_TIME
from minigraph.opdef import OPS

from .variable import Variable

RESHAPING = frozenset({"assign", "cast", "concat", "flatten", "gather", "reshape", "slice", "split", "squeeze", "stack",
                       "unsqueeze"})  # fmt: skip  # what moves numbers as they are


class Size(NamedTuple):
    """The size of an axis that only a run knows."""

    variable: Variable
    axis: int

    def is_of(self, x: Variable, axis: int) -> bool:
        """Whether it is this size of x; == would compare values of Variables."""
        return self.variable is x and self.axis == axis


class SizeProduct(NamedTuple):
    """A product of sizes that only a run knows, and numbers."""

    factors: tuple[Any, ...]


def _times(a: Any, b: Any) -> Any:
    """The product of two numbers, Sizes or Products."""
    if not isinstance(a, (Size, SizeProduct)) and not isinstance(b, (Size, SizeProduct)):
        return a * b
    return SizeProduct(tuple(f for e in (a, b) for f in (e.factors if isinstance(e, SizeProduct) else (e,))))


def _products(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x * y of arrays with Sizes among their elements."""
    x, y = np.broadcast_arrays(x, y)
    return _objects([_times(*e) for e in zip(x.reshape(-1), y.reshape(-1), strict=True)]).reshape(x.shape)


class _Unknown(Exception):
    """A value depends on a run."""


PLAIN = frozenset({int, float, str, bool, type(None), np.dtype, type(np.dtype("float32")), type(np.dtype("int64"))})


def holds_variables(attrs: Mapping[str, Any]) -> bool:
    """Whether a value of an attribute is a Variable, or a list with one in it."""
    if PLAIN.issuperset(map(type, attrs.values())):
        return False
    for value in attrs.values():
        kind = type(value)
        if kind in PLAIN or ((kind is list or kind is tuple) and PLAIN.issuperset(map(type, value))):
            continue
        if any(isinstance(v, Variable) for v in (value if isinstance(value, (list, tuple)) else (value,))):
            return True
    return False


def with_known(op_type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a call with the numbers that Variables among them hold; one that a run decides is refused."""
    found = {}
    for name, value in attrs.items():
        try:
            found[name] = known(value)
        except AttrError as problem:
            raise AttrError(f"attribute {name}: {problem.fact}", site=problem.site, hint=problem.hint) from None
    for name, value in found.items():
        if OPS[op_type].attrs[name].kind in ("int", "int | None") and isinstance(value, list) and len(value) == 1:
            found[name] = value = value[0]  # Paddle's numbers have the shape [1]
        entries = value if isinstance(value, list) else [value]
        if op_type == "reshape" and name == "shape":
            found[name] = _new_shape(inputs["X"][0], entries)
        elif (size := next((e for e in entries if isinstance(e, (Size, SizeProduct))), None)) is not None:
            of = isinstance(size, Size)
            fact = f"the size of axis {size.axis} of {size.variable}" if of else "a product of sizes"
            raise RUN_TIME(
                f"{name} is {fact}, which only a run knows", site=call_site(),
                hint="mg.full, mg.arange, mg.reshape and mg.expand take sizes of Variables, mg.full_like all of one",
            )  # fmt: skip
    return found


def with_own_sizes(x: Variable, sizes: list[Any]) -> list[Any]:
    """A shape for reshape: 0 copies a size of x in its place, -1 is a product that all of x has room for."""
    named = [0 if isinstance(s, Size) and s.is_of(x, i) else s for i, s in enumerate(sizes)]
    products = [s for s in named if isinstance(s, SizeProduct)]
    fits = len(products) == 1 and _whole(x, [s for s in named if s is not products[0]], products[0])
    return [-1 if fits and isinstance(s, SizeProduct) else s for s in named]


def _whole(x: Variable, others: list[Any], product: SizeProduct) -> bool:
    """Whether a product and the other sizes of a shape are all sizes of x, each once."""
    sizes = [Size(x, i) if s == 0 else s for i, s in enumerate(others)] + list(product.factors)
    axes = [s.axis for s in sizes if isinstance(s, Size) and s.variable is x]
    numbers = [s for s in sizes if not isinstance(s, (Size, SizeProduct))]
    unknown = [i for i, size in enumerate(x.shape) if size == -1]
    return (
        len(axes) + len(numbers) == len(sizes) and sorted(axes) == unknown
        and np.prod(numbers) == np.prod([size for size in x.shape if size != -1])
    )  # fmt: skip


def _new_shape(x: Variable, sizes: list[Any]) -> list[Any]:
    """A shape for reshape: 0 copies a size of x in its place, one other unknown size may be -1."""
    named = with_own_sizes(x, sizes)
    left = [s for s in named if isinstance(s, (Size, SizeProduct))]
    if len(left) + named.count(-1) > 1:
        raise RUN_TIME(
            f"two sizes of the new shape of {x} are known only at run time", site=call_site(),
            hint="a size of x in its own place is 0, one other size may be -1",
        )  # fmt: skip
    if any(isinstance(s, SizeProduct) for s in left):
        raise RUN_TIME(
            f"a size of the new shape is a product that is not what is left of {x}", site=call_site(),
            hint="-1 in its place takes what is left",
        )  # fmt: skip
    return [-1 if isinstance(s, Size) else s for s in named]


def known(value: Any) -> Any:
    """`value` with the number or list that each Variable in it holds; sizes that only a run knows are a Size."""
    if isinstance(value, (list, tuple)) and any(isinstance(v, Variable) for v in value):
        return [e for v in value for e in _entries(v)]
    if not isinstance(value, Variable):
        return value
    found = _entries(value)
    return found if value.ndim else found[0]


def known_number(value: Any) -> Any:
    """`known` where one number is wanted, as an array of one element is."""
    found = known(value)
    return found[0] if isinstance(value, Variable) and isinstance(found, list) and len(found) == 1 else found


def values_of(x: Variable, most: int = 4096) -> np.ndarray | None:
    """The array that x holds in every run; None where a run decides it, or where it has more than `most` elements."""
    if not x.type.is_static or x.type.size > most:
        return None
    try:
        values = _value(x)
    except _Unknown:
        return None
    return None if values.dtype == object else values


def _entries(value: Any) -> list[Any]:
    """The numbers of a Variable, or the value itself."""
    if not isinstance(value, Variable):
        return [value]
    try:
        return [e.item() if isinstance(e, np.generic) else e for e in _value(value).reshape(-1)]
    except _Unknown as why:
        raise AttrError(
            f"{value} stands where a number is needed that is known before a run; {why}", site=call_site(),
            hint="it may come from constants and from mg.shape",
        ) from None


def _value(v: Variable, end: int | None = None) -> np.ndarray:
    """What v holds in every run, a Size in the place of what only a run knows; written by the first `end` operators."""
    at = len(v.block.ops) if end is None else end
    while at > 0 and not any(v is o for vs in v.block.ops[at - 1].outputs.values() for o in vs):
        at -= 1
    if at == 0 or v.persistable:
        raise _Unknown(f"{v.name} is {'kept in a scope' if v.persistable else 'fed'}")
    op = v.block.ops[at - 1]
    if op.type == "shape":
        (x,) = op.inputs["X"]
        return _objects([Size(x, axis) if size == -1 else size for axis, size in enumerate(x.shape)])
    opdef = OPS[op.type]
    if "random" in opdef.traits or not set(opdef.injected_by_reference) <= {"out"}:
        raise _Unknown(f"{v.name} is computed by {op.type}")
    given = {slot: [_value(x, at - 1) for x in xs] for slot, xs in op.inputs.items()}
    sizes = any(a.dtype == object for arrays in given.values() for a in arrays)
    if op.type == "cast" and sizes:
        return given["X"][0]
    if sizes and op.type == "elementwise_mul":
        return _products(given["X"][0], given["Y"][0])
    if sizes and op.type == "scale" and op.attrs["bias"] == 0:
        return _products(given["X"][0], np.array(op.attrs["scale"]))
    if sizes and op.type not in RESHAPING:
        given = {slot: [_plain(a, op.type) for a in arrays] for slot, arrays in given.items()}
    args = [
        None if s.name not in given else given[s.name] if s.variadic else given[s.name][0] for s in opdef.inputs
    ]
    result = opdef.reference(*args, **op.attrs)
    results = result if isinstance(result, tuple) and len(opdef.outputs) > 1 else (result,)
    for slot, array in zip(opdef.outputs, results, strict=True):
        for variable, one in zip(op.outputs.get(slot.name, ()), array if slot.variadic else [array], strict=False):
            if variable is v:
                return np.asarray(one)
    raise _Unknown(f"{v.name} is computed by {op.type}")


def _plain(values: np.ndarray, op_type: str) -> np.ndarray:
    """An array of objects that are all numbers, as numbers."""
    if values.dtype == object:
        if any(isinstance(e, (Size, SizeProduct)) for e in values.reshape(-1)):
            raise _Unknown(f"{op_type} computes it from a size that only a run knows")
        return values.astype(np.int64)
    return values


def _objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array
