"""What an operator is: its reference function and the facts that hang on it."""

from .opdef import (
    INJECTED,
    OPS,
    Arrays,
    DTypeAttr,
    Floats,
    Ints,
    Number,
    Numbers,
    OpDef,
    Rows,
    Slot,
    Texts,
    get_op,
    op,
)

__all__ = [
    "INJECTED", "OPS", "Arrays", "DTypeAttr", "Floats", "Ints", "Number", "Numbers", "OpDef", "Rows", "Slot", "Texts",
    "get_op", "op",
]  # fmt: skip
