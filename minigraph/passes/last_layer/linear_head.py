"""What a linear layer under a cross entropy looks like, found from the loss upwards.

    matmul -> (+ Bias) -> (cast) -> (softcap) -> (slice, reshape of rows) -> an operator of cross entropy
                                                            or -> log_softmax -> * one_hot -> reduce_sum

The steps in brackets may be there or not and change places where that means the same. Labels are class numbers,
or one_hot of them with smoothing. arg_max of the scores is taken along, and the square of their log-sum-exp, which a
z-loss is made of. What is written out of simpler operators is told in written_loss.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minigraph.ir.graph import OpNode, VarNode
from minigraph.passes.engine.pattern import Match, Mismatch, PatternVar
from minigraph.types import float32, same

from . import written_loss as written

EXACT = 1e-9  # what constants of one formula may differ by


NO_CLASS = -(2**63)  # one_hot refuses labels out of range, so none is ignored


@dataclass
class Head:
    """A linear head that was found.

    moves       (operator type, attributes) that choose and arrange rows, from the product on
    prediction  the arg_max of the scores;  product: the matmul
    square      the operator that computes square_factor * log_sum_exp(scores)^2
    total       the reduce_sum over weight * log-probabilities of the labels; None where an operator gives the loss
    trails      the steps of what is written out of simpler operators
    ops, kept   all its operators, the one that gives the loss first; the loss, and what else is read of it
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
    square: OpNode | None = None
    square_factor: float = 1.0
    total: OpNode | None = None
    weight: float = 1.0
    trails: list[written.Trail] = field(default_factory=list)
    ops: list[OpNode] = field(default_factory=list)
    kept: list[VarNode] = field(default_factory=list)


class HeadPattern:
    """Stands where rules have a Pattern (passes/engine/pattern.py); the loss is an operator, or written out."""

    def __init__(self, root_type: str) -> None:
        self.root_type = root_type

    def match(self, anchor: OpNode) -> tuple[list[Match], int, str]:
        """The match with its last operator at `anchor`, or how far it got and why not farther."""
        walk = _Walk(anchor)
        try:
            walk.run()
        except Mismatch as why:
            return [], len(walk.ops), str(why)
        match, head = Match(), walk.head
        match.ops = {PatternVar(op.type): op for op in dict.fromkeys(walk.ops)}  # type: ignore[assignment]
        match.attrs = {"head": head}
        match.kept = [anchor.outputs["Loss" if head.total is None else "Out"][0]]
        match.kept += [op.outputs["Out"][0] for op in (head.prediction, head.square) if op is not None]
        head.ops, head.kept = [*match.ops.values()], [v for v in match.kept if v is not None]
        return [match], len(walk.ops), ""


class _Walk:
    """From the loss along producers to the product."""

    def __init__(self, anchor: OpNode) -> None:
        self.anchor, self.ops = anchor, [anchor]
        self.between: set[str] = set()  # types of the steps below
        self.logits: VarNode
        self.head: Head

    def run(self) -> None:
        if self.anchor.type == "reduce_sum":
            self._sum_of_log_probabilities()
        else:
            self._operator()
        v, op = self.logits, self.logits.producer
        while op is not None and op.type != "matmul":
            self._take_side_outputs(v)
            step = getattr(self, f"_{op.type}", None)
            if step is None:
                break
            v = step(op)
            self.between.add(op.type)
            op = v.producer
        self._take_side_outputs(v)
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

    def _operator(self) -> None:
        attrs, label = self.anchor.attrs, self.anchor.inputs["Label"][0]
        self.logits = self.anchor.inputs["Logits"][0]
        self.head = Head(label, ignore_index=attrs["ignore_index"])
        if attrs["axis"] not in (-1, self.logits.type.ndim - 1):
            raise Mismatch(f"the classes of {self.logits.name} are not on its last axis")
        if not attrs["soft_label"]:
            return
        weight = self._soft_label(label)
        if abs(weight - 1) > EXACT:
            raise Mismatch(f"{label.name} is a one_hot whose weights do not sum to 1, but to {weight}")

    def _sum_of_log_probabilities(self) -> None:
        """reduce_sum(one_hot * log_softmax) over the classes, and over rows perhaps."""
        axis, x = self.anchor.attrs["axis"], self.anchor.inputs["X"][0]
        if axis is not None and x.type.ndim - 1 not in [a % x.type.ndim for a in axis]:
            raise Mismatch(f"{self.anchor.label()} does not sum over the classes")
        trail = written.Trail([], [(self.anchor, x)])
        product = trail.step(x, "elementwise_mul")
        left, right = product.inputs["X"][0], product.inputs["Y"][0]
        if left.type.shape != right.type.shape:
            raise Mismatch(f"{product.label()} spreads {left} over {right}")
        tried: list[tuple[list[OpNode], Mismatch]] = []
        for one_hot, log in ((left, right), (right, left)):
            way = written.Trail([*trail.ops], [*trail.main, (product, log)])
            try:
                self.logits = written.log_softmax(log, way)
            except Mismatch as why:
                tried.append((way.ops, why))
                continue
            self.ops += way.ops
            self.head = Head(one_hot, total=self.anchor, trails=[way])
            self.head.weight = self._soft_label(one_hot)
            return
        ops, why = max(tried, key=lambda pair: len(pair[0]))
        self.ops += ops
        raise Mismatch(f"{product.label()} does not weigh log-probabilities: {why}")

    def _soft_label(self, v: VarNode) -> float:
        """The sum of a row's weights in `v`, which become numbers and smoothing."""
        trail = written.Trail()
        found = written.target(v, trail)
        self.ops += trail.ops
        if found.one_hot.attrs["depth"] != self.classes:
            raise Mismatch(f"{found.one_hot.label()} has another number of classes than {self.logits.name}")
        self.head.Label, self.head.smoothing, self.head.ignore_index = found.numbers, found.smoothing, NO_CLASS
        return found.weight

    @property
    def classes(self) -> int:
        return self.logits.type.shape[-1]

    def _take_side_outputs(self, v: VarNode) -> None:
        """What is made of v is made of the logits, unless a bias, other rows or other ties lie between."""
        head = self.head
        if self.between & {"slice", "scale", "elementwise_add"}:
            return
        for reader in v.consumers if head.prediction is None else ():
            if reader.type == "arg_max" and reader.attrs["axis"] in (-1, v.type.ndim - 1):
                head.prediction = reader
                self.ops.append(reader)
                break
        for op in written.squares_of(v) if head.square is None else ():
            trail = written.Trail()
            try:
                scores, factor = written.square(op, trail)
            except Mismatch:
                continue
            if scores is v:
                head.square, head.square_factor = op, factor
                head.trails.append(trail)
                self.ops += trail.ops
                break

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
