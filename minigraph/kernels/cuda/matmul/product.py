"""A matrix product and what is computed around it, as records that every kernel for products reads."""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.opdef import get_op

Shape = tuple[int, int, int]
LARGEST = 1 << 30  # rows, columns or length of a sum that our kernels count in 32 bits


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to a product, in this order; by default nothing.

    add         + what the result holds
    slope       * the slope of an activation at what `kept` holds: "relu", "gelu" or "gelu_tanh"
    bias        + a vector, the same for each row
    activation  "relu", "gelu" or "gelu_tanh" of the sum; `kept` gets what backward needs, where it is given
    kept        relu: a bit for each positive value, rows padded to 128 bits; gelu: the value before it
    sums        gets the sums over k of B, or of A where `sums_of_a`: the gradient of a bias
    totals      gets the sums of the result's columns: the gradient of the bias of the layer before
    """

    add: bool = False
    slope: str = "none"
    bias: Buffer | None = None
    activation: str = "none"
    kept: Buffer | None = None
    sums: Buffer | None = None
    sums_of_a: bool = False
    totals: Buffer | None = None

    @property
    def empty(self) -> bool:
        plain = not self.add and self.slope == self.activation == "none"
        return plain and self.bias is self.sums is self.totals is None

    @property
    def mask(self) -> Buffer | None:
        """relu's bits, which are written or read."""
        return self.kept if "relu" in (self.slope, self.activation) else None

    @property
    def activation_input(self) -> Buffer | None:
        """What the activation was computed of, which is written or read; relu has its mask instead."""
        return self.kept if self.mask is None else None

    def texts(self) -> dict[str, str]:
        """C++ of gelu, or of its slope, as functions of X: {"GELU": ...} or {"SLOPE": ...}."""
        if self.activation in GELU:
            return {"GELU": f"({activation_text(self.activation)})"}
        return {"SLOPE": f"({slope_text(self.slope)})"} if self.slope in GELU else {}


GELU = {"gelu": False, "gelu_tanh": True}  # the attribute `approximate` of each


def activation_text(activation: str) -> str:
    """C++ of gelu at X, as its operator's block has it."""
    return get_op("gelu").cuda({"approximate": GELU[activation]})


def slope_text(activation: str) -> str:
    """C++ of gelu's slope at X: its gradient's block has it, times Out_grad."""
    text = get_op("gelu_grad").cuda({"approximate": GELU[activation]})
    assert text.startswith("Out_grad * "), text
    return text.removeprefix("Out_grad * ")


@dataclass(frozen=True, slots=True)
class Product:
    """out = epilogue(op(A) @ op(B)): one product of row-major matrices, op(A) [m, k], op(B) [k, n].

    trans_a, trans_b   A is stored [k, m], B is stored [n, k]
    """

    a: Buffer
    b: Buffer
    out: Buffer
    shape: Shape
    trans_a: bool = False
    trans_b: bool = False
    epilogue: Epilogue = Epilogue()

    @property
    def work(self) -> int:
        """Multiply-adds."""
        m, n, k = self.shape
        return m * n * k

    @property
    def stored_rows(self) -> tuple[tuple[str, Buffer, int], ...]:
        """(name, buffer, elements of a row as it is stored) of both operands and the result."""
        m, n, k = self.shape
        return (
            ("A", self.a, m if self.trans_a else k), ("B", self.b, k if self.trans_b else n),
            ("the result", self.out, n),
        )  # fmt: skip

    def refused_size(self) -> str | None:
        """Why kernels that count in 32 bits cannot compute this, or None."""
        if all(0 < size < LARGEST for size in self.shape):
            return None
        return "{} x {} x {} is empty or too large".format(*self.shape)
