"""Standard operators that other exporters write and ours does not: read as several of ours, or as a constant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minigraph.errors import ProgramError, require
from minigraph.types import TensorType, float32, int64

from .model import Node
from .standard import OperatorCall, decimal, needed, one, reads

NUMBERS = {"value_float": float32, "value_floats": float32, "value_int": int64, "value_ints": int64}
SELU = 1.67326319217681884765625, 1.05070102214813232421875  # alpha and gamma, as the format has them
LONGEST_RANGE = 1 << 24  # numbers: a file of few bytes must not ask for all memory


class NodeChain:
    """Operators behind each other; the last one gives the node's output."""

    def __init__(self, loader: Any, node: Node) -> None:
        self.loader, self.node, self.values = loader, node, 0

    def value(self) -> str:
        """A new name."""
        self.values += 1
        return f"{self.loader.fresh(self.node.outputs[0])}.{self.values}"

    def call(self, op_type: str, x: str, y: str = "", *, ends: bool = False, **attrs: Any) -> OperatorCall:
        inputs = {"X": [x], **({"Y": [y]} if y else {})}
        return OperatorCall(op_type, inputs, {"Out": [self.node.outputs[0] if ends else self.value()]}, attrs)


def made(call: OperatorCall) -> str:
    """The name of what a call gives."""
    return call.outputs["Out"][0]


@reads("Constant")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    """No operator: the loader keeps the array."""
    require(len(node.outputs) == len(node.attrs) == 1, "it has other than one value", ProgramError)
    ((name, value),) = node.attrs.items()
    known = name in NUMBERS or (name == "value" and isinstance(value, np.ndarray))
    require(known, "no tensor and no number, which constants are here", ProgramError)
    loader.keep(node.outputs[0], value if name == "value" else np.array(value, NUMBERS[name]))
    yield from ()


@reads("Shape")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    """A constant, where all sizes are known."""
    sizes = loader.type_of(node.inputs[0]).shape[node.attrs.get("start", 0) : node.attrs.get("end")]
    require(-1 not in sizes, f"sizes of {node.inputs[0]} are free", ProgramError,
            "export the model with fixed sizes, or with sizes of 0 and -1 in Reshape")  # fmt: skip
    loader.keep(node.outputs[0], np.array(sizes, int64))
    yield from ()


@reads("Range")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    start, limit, delta = (needed(loader, node, i) for i in range(3))
    require(start.size == limit.size == delta.size == 1 and delta.item(), "of other than three numbers", ProgramError)
    count = (float(limit.item()) - float(start.item())) / float(delta.item())
    require(count <= LONGEST_RANGE, f"of {count:.3g} numbers", ProgramError)
    loader.keep(node.outputs[0], np.arange(start.item(), limit.item(), delta.item()).astype(start.dtype))
    yield from ()


@reads("Gemm")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    """alpha * X Y + beta * Bias, a layer where the factors are 1 and Bias is a row."""
    alpha, beta = (decimal(node.attrs.get(name, 1.0)) for name in ("alpha", "beta"))
    turned = {"trans_x": bool(node.attrs.get("transA", 0)), "trans_y": bool(node.attrs.get("transB", 0))}
    chain, bias = NodeChain(loader, node), node.inputs[2] if len(node.inputs) > 2 else ""
    if bias and alpha == beta == 1 and _is_row(loader.type_of(bias)):
        yield one("fused_gemm_epilogue", node, "X", "Y", "Bias", **turned)
        return
    yield (total := chain.call("matmul", *node.inputs[:2], ends=alpha == 1 and not bias, **turned))
    if alpha != 1:
        yield (total := chain.call("scale", made(total), ends=not bias, scale=alpha))
    if bias and beta != 1:
        yield (scaled := chain.call("scale", bias, scale=beta))
        bias = made(scaled)
    if bias:
        yield chain.call("elementwise_add", made(total), bias, ends=True)


def _is_row(t: TensorType) -> bool:
    return t.ndim == 1 or (t.ndim == 2 and t.shape[0] == 1)


@reads("Neg")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    yield one("scale", node, "X", scale=-1.0)


@reads("Mean")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    chain, total = NodeChain(loader, node), node.inputs[0]
    for name in node.inputs[1:]:
        yield (call := chain.call("elementwise_add", total, name))
        total = made(call)
    yield chain.call("scale", total, ends=True, scale=1.0 / len(node.inputs))


@reads("Dropout")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    """Of inference: its input."""
    training = loader.constant(node, 2)
    require(training is None or not training.any(), "in training", ProgramError)
    require(len([name for name in node.outputs if name]) == 1, "whose mask is read", ProgramError)
    yield OperatorCall("assign", {"X": node.inputs[:1]}, {"Out": node.outputs[:1]})


@reads("HardSigmoid")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    chain = NodeChain(loader, node)
    slope, shift = decimal(node.attrs.get("alpha", 0.2)), decimal(node.attrs.get("beta", 0.5))
    yield (line := chain.call("scale", node.inputs[0], scale=slope, bias=shift))
    yield chain.call("clip", made(line), ends=True, min=0.0, max=1.0)


@reads("HardSwish")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    chain, x = NodeChain(loader, node), node.inputs[0]
    yield (line := chain.call("scale", x, scale=1 / 6, bias=0.5))
    yield (gate := chain.call("clip", made(line), min=0.0, max=1.0))
    yield chain.call("elementwise_mul", x, made(gate), ends=True)


@reads("Mish")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    chain, x = NodeChain(loader, node), node.inputs[0]
    yield (smooth := chain.call("softplus", x))
    yield (gate := chain.call("tanh", made(smooth)))
    yield chain.call("elementwise_mul", x, made(gate), ends=True)


@reads("Selu")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    chain = NodeChain(loader, node)
    alpha, gamma = node.attrs.get("alpha", SELU[0]), node.attrs.get("gamma", SELU[1])
    yield (bent := chain.call("elu", node.inputs[0], alpha=alpha))
    yield chain.call("scale", made(bent), ends=True, scale=gamma)


@reads("Celu")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    """alpha * elu(x / alpha)"""
    chain, alpha = NodeChain(loader, node), decimal(node.attrs.get("alpha", 1.0))
    require(alpha != 0, "with alpha=0", ProgramError)
    yield (part := chain.call("scale", node.inputs[0], scale=1 / alpha))
    yield (bent := chain.call("elu", made(part), alpha=1.0))
    yield chain.call("scale", made(bent), ends=True, scale=alpha)


@reads("PRelu")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    """relu(x) + slope * min(x, 0)"""
    chain, (x, slope) = NodeChain(loader, node), node.inputs
    yield (above := chain.call("relu", x))
    yield (below := chain.call("clip", x, max=0.0))
    yield (sloped := chain.call("elementwise_mul", made(below), slope))
    yield chain.call("elementwise_add", made(above), made(sloped), ends=True)


@reads("BatchNormalization")
def _(loader: Any, node: Node) -> Iterator[OperatorCall]:
    """Of inference: x * factor + shift, with a factor and a shift for each index of axis 1."""
    still = len(node.outputs) == 1 and not node.attrs.get("training_mode", 0)
    require(still, "in training", ProgramError)
    scale, bias, mean, variance = (needed(loader, node, i) for i in range(1, 5))
    chain, rank = NodeChain(loader, node), loader.type_of(node.inputs[0]).ndim
    factor = scale / np.sqrt(variance + scale.dtype.type(node.attrs.get("epsilon", 1e-5)))
    names = chain.value(), chain.value()
    for name, array in zip(names, (factor, bias - mean * factor), strict=True):
        loader.keep(name, array.reshape(-1, *(1,) * (rank - 2)))
    yield (scaled := chain.call("elementwise_mul", node.inputs[0], names[0]))
    yield chain.call("elementwise_add", made(scaled), names[1], ends=True)
