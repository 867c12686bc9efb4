"""How standard operators are read: those that the exporter writes alone, and what other exporters write like them.

    READ[type](loader, node) yields Calls, the last of which gives the node's output
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import ProgramError, require
from minigraph.types import DType, bool_, float32

from .model import CODES, Node
from .registry import SAME


class OperatorCall(NamedTuple):
    """An operator by names of values."""

    type: str
    inputs: Mapping[str, Sequence[str]]
    outputs: Mapping[str, Sequence[str]]
    attrs: Mapping[str, Any] = {}


def decimal(number: float) -> float:
    """The shortest number that float32 rounds to this one: what somebody wrote, 1e-05."""
    return float(str(np.float32(number)))


Reader = Callable[[Any, Node], Iterator[OperatorCall]]
READ: dict[str, Reader] = {}
DTYPES: Mapping[int, DType] = {code: dtype for dtype, code in CODES.items()}


def reads(*types: str) -> Callable[[Reader], Reader]:
    """Take a function as the reader of these standard operators."""

    def define(function: Reader) -> Reader:
        READ.update(dict.fromkeys(types, function))
        return function

    return define


def one(op_type: str, node: Node, *slots: str, **attrs: Any) -> OperatorCall:
    """An operator that takes the node's inputs in these slots."""
    inputs = {slot: [name] for slot, name in zip(slots, node.inputs, strict=False) if name}
    return OperatorCall(op_type, inputs, {"Out": node.outputs[:1]}, attrs)


def _same(standard: str, op_type: str, *slots: str) -> None:
    def read(loader: Any, node: Node) -> Iterator[OperatorCall]:
        require(len(node.inputs) == len(slots), f"it has {len(node.inputs)} inputs, not {len(slots)}", ProgramError)
        yield one(op_type, node, *slots)

    READ[standard] = read


for _op, _standard in SAME.items():
    _same(_standard, _op, *(("Condition", "X", "Y") if _op == "where" else ("X",)))
for _standard, _op in {
    "Sub": "elementwise_sub", "Div": "elementwise_div", "MatMul": "matmul",
    "Equal": "equal", "Less": "less_than", "LessOrEqual": "less_equal",
    "Greater": "greater_than", "GreaterOrEqual": "greater_equal", "And": "logical_and", "Or": "logical_or",
    "Xor": "logical_xor", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}.items():  # fmt: skip
    _same(_standard, _op, "X", "Y")
for _standard, _op in {
    "Not": "logical_not", "BitwiseNot": "bitwise_not", "Sign": "sign", "Floor": "floor", "Ceil": "ceil",
    "IsNaN": "isnan", "Softplus": "softplus", "Softsign": "softsign",
}.items():  # fmt: skip
    _same(_standard, _op, "X")


@reads("Add", "Mul", "Pow")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    """With a number on the right side it is `scale` or `pow`, else of two values."""
    require(len(node.inputs) == 2, f"it has {len(node.inputs)} inputs, not 2", ProgramError)
    number = loader.arrays.get(node.inputs[1])
    if number is None or number.ndim > 0 or number.dtype == bool_ or float(number) != number:
        yield one(f"elementwise_{node.type.lower()}", node, "X", "Y")
    elif node.type == "Pow":
        yield one("pow", node, "X", factor=float(number))
    else:
        yield one("scale", node, "X", **{"bias" if node.type == "Add" else "scale": float(number)})


@reads("Max", "Min", "Sum")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    """Of any number of values, two at a time."""
    op_type = {"Max": "elementwise_max", "Min": "elementwise_min", "Sum": "elementwise_add"}[node.type]
    total = node.inputs[0]
    if len(node.inputs) == 1:
        yield one("assign", node, "X")
    for i, name in enumerate(node.inputs[1:], 2):
        made = node.outputs[0] if i == len(node.inputs) else loader.fresh(node.outputs[0])
        yield OperatorCall(op_type, {"X": [total], "Y": [name]}, {"Out": [made]})
        total = made


@reads("IsInf")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    both = node.attrs.get("detect_negative", 1) == node.attrs.get("detect_positive", 1) == 1
    require(both, "of one sign only", ProgramError)
    yield one("isinf", node, "X")


@reads("Mod")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    require(not node.attrs.get("fmod", 0), "with fmod=1", ProgramError)
    yield one("elementwise_mod", node, "X", "Y")


@reads("LeakyRelu")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    yield one("leaky_relu", node, "X", alpha=decimal(node.attrs.get("alpha", 0.01)))


@reads("Elu")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    yield one("elu", node, "X", alpha=decimal(node.attrs.get("alpha", 1.0)))


@reads("Gelu")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    yield one("gelu", node, "X", approximate=node.attrs.get("approximate", "none") == "tanh")


@reads("Softmax", "LogSoftmax")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    op_type = "softmax" if node.type == "Softmax" else "log_softmax"
    yield one(op_type, node, "X", axis=node.attrs.get("axis", -1))


@reads("Clip")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    low, high = (loader.constant(node, i) for i in (1, 2))
    bounds = {n: bound.item() for n, bound in (("min", low), ("max", high)) if bound is not None}
    yield one("clip", node, "X", **bounds)


@reads("Cast")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    code = node.attrs.get("to")
    require(code in DTYPES, f"to data type {code}", ProgramError)
    yield one("cast", node, "X", dtype=DTYPES[code])  # pyright: ignore[reportArgumentType]


@reads("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    given = loader.constant(node, 1)
    axes = node.attrs.get("axes") if given is None else tuple(map(int, given))
    if not axes:
        axes = () if node.attrs.get("noop_with_empty_axes", 0) else None
    t = loader.type_of(node.inputs[0])
    require(t.is_float or node.type in ("ReduceMax", "ReduceMin") or t.dtype == np.int64, f"of {t.dtype}", ProgramError)
    op_type = f"reduce_{node.type.removeprefix('Reduce').lower()}"
    yield one(op_type, node, "X", axis=axes, keepdim=bool(node.attrs.get("keepdims", 1)))


@reads("ArgMax", "ArgMin")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    require(not node.attrs.get("select_last_index", 0), "that takes the last of equal ones", ProgramError)
    op_type = "arg_max" if node.type == "ArgMax" else "arg_min"
    axis, keepdim = node.attrs.get("axis", 0), bool(node.attrs.get("keepdims", 1))
    yield one(op_type, node, "X", axis=axis, keepdim=keepdim)


@reads("CumSum")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    flags = {name: bool(node.attrs.get(name, 0)) for name in ("exclusive", "reverse")}
    yield one("cumsum", node, "X", axis=int(needed(loader, node, 1).item()), **flags)


@reads("Reshape")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    shape = ints(loader, node, 1)
    if node.attrs.get("allowzero", 0) and 0 in shape:  # a 0 is a size there; here it copies one, and -1 may come to 0
        require(sorted(shape)[0] == 0 < sorted((*shape, 1))[1], "to several sizes of 0", ProgramError)
        shape = tuple(size or -1 for size in shape)
    yield one("reshape", node, "X", shape=shape)


@reads("Flatten")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    axis, rank = node.attrs.get("axis", 1), loader.type_of(node.inputs[0]).ndim
    axis = axis % rank if axis < 0 else axis
    require(axis in (0, 1) or axis == rank - 1, f"at axis {axis} of {rank}", ProgramError)
    shape = (1, -1) if axis == 0 else (0, -1) if axis == 1 else (-1, loader.type_of(node.inputs[0]).shape[-1])
    yield one("reshape", node, "X", shape=shape)


@reads("Transpose")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    rank = loader.type_of(node.inputs[0]).ndim
    yield one("transpose", node, "X", perm=node.attrs.get("perm", tuple(reversed(range(rank)))))


@reads("Squeeze", "Unsqueeze")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    axes = loader.constant(node, 1)
    yield one(node.type.lower(), node, "X", axes=None if axes is None else tuple(map(int, axes)))


@reads("Expand")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    shape, own = ints(loader, node, 1), loader.type_of(node.inputs[0]).shape
    behind = own[len(own) - len(shape) :] if len(shape) <= len(own) else own
    missing = len(shape) - len(behind)
    kept = [-1 if s == 1 and i >= missing else s for i, s in enumerate(shape)]
    yield one("expand", node, "X", shape=(*(-1,) * (len(own) - len(shape)), *kept))


@reads("Tile")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    yield one("tile", node, "X", repeat_times=ints(loader, node, 1))


@reads("Concat")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    yield OperatorCall("concat", {"X": node.inputs}, {"Out": node.outputs}, {"axis": node.attrs.get("axis", 0)})


@reads("Split")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    sizes, axis = loader.constant(node, 1), node.attrs.get("axis", 0)
    how = {"num": len(node.outputs)} if sizes is None else {"sections": tuple(map(int, sizes))}
    yield OperatorCall("split", {"X": node.inputs[:1]}, {"Out": node.outputs}, {"axis": axis, **how})


@reads("Slice")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    starts, ends = ints(loader, node, 1), ints(loader, node, 2)
    axes, steps = (loader.constant(node, i) for i in (3, 4))
    attrs = {"starts": starts, "ends": ends, "axes": range(len(starts)) if axes is None else map(int, axes)}
    attrs["axes"] = tuple(attrs["axes"])
    yield one("slice", node, "X", **attrs, steps=None if steps is None else tuple(map(int, steps)))


@reads("TopK")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    axis, attrs = node.attrs.get("axis", -1), node.attrs
    size, wanted = loader.type_of(node.inputs[0]).shape[axis], int(needed(loader, node, 1).item())
    require(size == wanted and attrs.get("sorted", 1) == 1, f"of {wanted} elements of {size}", ProgramError)
    places = node.outputs[1] if len(node.outputs) > 1 and node.outputs[1] else loader.fresh(node.outputs[0])
    values = node.outputs[0] or loader.fresh(places)
    how = {"axis": axis, "descending": bool(attrs.get("largest", 1))}
    yield OperatorCall("argsort", {"X": node.inputs[:1]}, {"Out": [values], "Indices": [places]}, how)


@reads("Gather")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    yield one("gather", node, "X", "Index", axis=node.attrs.get("axis", 0))


@reads("Trilu")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    diagonal = loader.constant(node, 1)
    yield one(
        "tril_triu", node, "X", diagonal=0 if diagonal is None else int(diagonal.item()),
        lower=not node.attrs.get("upper", 1),
    )  # fmt: skip


@reads("Pad")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    amounts, value, axes = ints(loader, node, 1), loader.constant(node, 2), loader.constant(node, 3)
    require(node.attrs.get("mode", "constant") == "constant" and axes is None, "of another mode", ProgramError)
    half = len(amounts) // 2
    pairs = tuple(n for pair in zip(amounts[:half], amounts[half:], strict=True) for n in pair)
    yield one("pad", node, "X", paddings=pairs, value=0.0 if value is None else value.item())


@reads("ConstantOfShape")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    value = node.attrs.get("value", np.zeros(1, float32))
    attrs = {"shape": ints(loader, node, 0), "value": value.item(), "dtype": value.dtype}
    yield OperatorCall("fill_constant", {}, {"Out": node.outputs}, attrs)


@reads("LayerNormalization")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    require(len([name for name in node.outputs if name]) == 1, "whose statistics are read", ProgramError)
    rank = loader.type_of(node.inputs[0]).ndim
    axis = node.attrs.get("axis", -1) % rank
    require(axis == rank - 1, f"of the axes from {axis} on", ProgramError)
    call = one("layer_norm", node, "X", "Scale", "Bias", begin_norm_axis=axis,
               epsilon=decimal(node.attrs.get("epsilon", 1e-5)))  # fmt: skip
    yield call._replace(outputs={"Y": node.outputs[:1]})


def needed(loader: Any, node: Node, position: int) -> np.ndarray:
    """An input that must be there, and a constant."""
    array = loader.constant(node, position)
    require(array is not None, f"input {position} is missing", ProgramError)
    return array


def ints(loader: Any, node: Node, position: int) -> tuple[int, ...]:
    """An input that must be there, and a constant list of whole numbers."""
    array = needed(loader, node, position)
    require(array.dtype.kind == "i" and array.ndim == 1, f"input {position} must be a list of ints", ProgramError)
    return tuple(map(int, array))

