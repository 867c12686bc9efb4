"""What a linear layer under a cross entropy looks like, found from the loss upwards.

    matmul -> (+ Bias) -> (cast) -> (softcap) -> (slice, reshape of rows) -> softmax_with_cross_entropy

The steps in brackets may be there or not and change places where that means the same. Labels are class numbers,
or one_hot of them with smoothing. arg_max of the scores is taken along.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minigraph.ir.graph import OpNode, VarNode
from minigraph.passes.engine.pattern import Match, Mismatch, PatternVar
from minigraph.types import float32, same

EXACT = 1e-9  # what constants of one formula may differ by


NO_CLASS = -(2**63)  # one_hot refuses labels out of range, so none is ignored


@dataclass
class Head:
    """A linear head that was found.

    moves       (operator type, attributes) that choose and arrange rows, from the product on
    prediction  the arg_max of the scores;  product: the matmul
    """

    Label: VarNode
    X: Any = None
    W: Any = None
    Bias: VarNode | None = None
    trans_w: bool = False
    ignore_index: int = -100
    smoothing: float = 0.0
    softcap: float | None = None
    moves: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    prediction: OpNode | None = None
    product: Any = None


def smoothed_one_hot(target: VarNode) -> tuple[list[OpNode], VarNode, float, float]:
    """([operators], numbers, scale, bias) of target = scale * one_hot(numbers) + bias; Mismatch if it is not one."""
    op, ops, scale, bias = target.producer, [], 1.0, 0.0
    if op is not None and op.type == "scale" and op.attrs["bias_after_scale"]:
        ops, scale, bias = [op], op.attrs["scale"], op.attrs["bias"]
        op = op.inputs["X"][0].producer
    if op is None or op.type != "one_hot":
        raise Mismatch(f"{target.name} is no one_hot of class numbers")
    return [op, *ops], op.inputs["X"][0], scale, bias


class HeadPattern:
    """Stands where rules have a Pattern (passes/engine/pattern.py)."""

    root_type = "softmax_with_cross_entropy"

    def match(self, anchor: OpNode) -> tuple[list[Match], int, str]:
        """The match with its last operator at `anchor`, or how far it got and why not farther."""
        walk = _Walk(anchor)
        try:
            walk.run()
        except Mismatch as why:
            return [], len(walk.ops), str(why)
        match = Match()
        match.ops = {PatternVar(op.type): op for op in walk.ops}  # type: ignore[assignment]
        match.attrs = {"head": walk.head}
        match.kept = [anchor.outputs["Loss"][0]]
        if walk.head.prediction is not None:
            match.kept.append(walk.head.prediction.outputs["Out"][0])
        return [match], len(walk.ops), ""


class _Walk:
    """From the loss along producers to the product."""

    def __init__(self, anchor: OpNode) -> None:
        self.anchor, self.ops = anchor, [anchor]
        self.logits = anchor.inputs["Logits"][0]
        self.classes = self.logits.type.shape[-1]
        self.head = Head(anchor.inputs["Label"][0], ignore_index=anchor.attrs["ignore_index"])

    def run(self) -> None:
        if self.anchor.attrs["axis"] not in (-1, self.logits.type.ndim - 1):
            raise Mismatch(f"the classes of {self.logits.name} are not on its last axis")
        if self.anchor.attrs["soft_label"]:
            self._soft_label()
        v, op = self.logits, self.logits.producer
        while op is not None and op.type != "matmul":
            self._take_prediction(v)
            step = getattr(self, f"_{op.type}", None)
            if step is None:
                break
            v = step(op)
            op = v.producer
        self._take_prediction(v)
        if op is None or op.type != "matmul":
            raise Mismatch(f"{op.label() if op else v.name} is no step from a linear layer to its cross entropy")
        for name, wanted in (("trans_x", False), ("out_dtype", None)):
            if not same(op.attrs[name], wanted):
                raise Mismatch(f"{op.label()} has {name}={op.attrs[name]}")
        self.ops.append(op)
        head = self.head
        head.product, head.X, head.W, head.trans_w = op, op.inputs["X"][0], op.inputs["Y"][0], op.attrs["trans_y"]
        inner = head.X.type.shape[-1]
        for _, attrs in head.moves:
            if "shape" in attrs:
                attrs["shape"] = (*attrs["shape"][:-1], inner)
        head.moves.reverse()

    def _soft_label(self) -> None:
        ops, numbers, scale, bias = smoothed_one_hot(self.head.Label)
        smoothing = bias * self.classes
        if not (0 <= smoothing <= 1 and abs(scale + smoothing - 1) < EXACT):
            raise Mismatch(f"{self.head.Label.name} is {scale} * one_hot + {bias}, whose weights do not sum to 1")
        if ops[0].attrs["depth"] != self.classes:
            raise Mismatch(f"{ops[0].label()} has another number of classes than {self.logits.name}")
        self.ops += ops
        self.head.Label, self.head.smoothing, self.head.ignore_index = numbers, smoothing, NO_CLASS

    def _take_prediction(self, v: VarNode) -> None:
        """arg_max of v is that of the logits, unless a bias, other rows or other ties lie between."""
        between = {op.type for op in self.ops[1:]}
        for reader in v.consumers:
            fits = reader.type == "arg_max" and reader.attrs["axis"] in (-1, v.type.ndim - 1)
            if fits and self.head.prediction is None and not between & {"slice", "tanh", "elementwise_add"}:
                self.head.prediction = reader
                self.ops.append(reader)

    # the steps: each takes its operators and returns what stands above them

    def _reshape(self, op: OpNode) -> VarNode:
        x, shape = op.inputs["X"][0], op.attrs["shape"]
        if x.type.ndim < 2 or x.type.shape[-1] != self.classes or shape[-1] != self.classes:
            raise Mismatch(f"{op.label()} does not keep the classes on the last axis")
        return self._move(op, {"shape": shape})

    def _slice(self, op: OpNode) -> VarNode:
        last = op.inputs["X"][0].type.ndim - 1
        if any(axis % (last + 1) == last for axis in op.attrs["axes"]) or op.attrs["decrease_axes"]:
            raise Mismatch(f"{op.label()} does not keep all classes")
        return self._move(op, dict(op.attrs))

    def _move(self, op: OpNode, attrs: dict[str, Any]) -> VarNode:
        self.ops.append(op)
        self.head.moves.append((op.type, attrs))
        return op.inputs["X"][0]

    def _cast(self, op: OpNode) -> VarNode:
        x = op.inputs["X"][0]
        if x.type.dtype.itemsize != 2 or op.attrs["dtype"] != float32 or not x.type.is_float:
            raise Mismatch(f"{op.label()} makes {op.attrs['dtype']} of {x.type.dtype}")
        if self.head.Bias is not None:
            raise Mismatch(f"{op.label()} stands before {self.head.Bias.name} is added, which is not rounded")
        self.ops.append(op)
        return x

    def _scale(self, op: OpNode) -> VarNode:
        """softcap * tanh(x / softcap)"""
        tanh = op.inputs["X"][0].producer
        inner = tanh.inputs["X"][0].producer if tanh is not None and tanh.type == "tanh" else None
        if tanh is None or inner is None or op.attrs["bias"] != 0:
            raise Mismatch(f"{op.label()} is no softcap")
        cap, ops = op.attrs["scale"], [op, tanh, inner]
        if inner.type == "scale" and inner.attrs["bias"] == 0:
            divisor = 1 / inner.attrs["scale"] if inner.attrs["scale"] else 0.0
        elif inner.type == "elementwise_div":
            constant = inner.inputs["Y"][0].producer
            if constant is None or constant.type != "fill_constant":
                raise Mismatch(f"{inner.label()} divides by {inner.inputs['Y'][0].name}, which is no constant")
            divisor = float(constant.attrs["value"])
            if all(reader in (inner, *inner.grads) for reader in constant.outputs["Out"][0].consumers):
                ops.append(constant)
        else:
            raise Mismatch(f"{inner.label()} is no division by a constant")
        if not cap > 0 or abs(divisor / cap - 1) > EXACT:
            raise Mismatch(f"{op.label()} multiplies tanh by {cap}, but {inner.label()} divides by {divisor}")
        if self.head.softcap is not None or self.head.Bias is not None:
            raise Mismatch(f"{op.label()} is a softcap before another step")
        self.ops += ops
        self.head.softcap = cap
        return inner.inputs["X"][0]

    def _elementwise_add(self, op: OpNode) -> VarNode:
        x, bias = op.inputs["X"][0], op.inputs["Y"][0]
        if x.type.ndim == 1:
            x, bias = bias, x
        if bias.type.shape != (self.classes,) or x.type.ndim < 2 or op.attrs["axis"] not in (-1, x.type.ndim - 1):
            raise Mismatch(f"{bias} of {op.label()} is no bias of {self.classes} classes")
        if self.head.Bias is not None:
            raise Mismatch(f"{op.label()} adds a second bias")
        self.ops.append(op)
        self.head.Bias = bias
        return x
