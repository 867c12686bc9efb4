"""What an operator is: its reference function and the facts that hang on it."""

from .attr import BlockAttr, DTypeAttr, Floats, FunctionAttr, Ints, Number, Numbers, Texts
from .inner import InnerBlock
from .opdef import OPS, OpDef, for_arrays, get_op, op
from .rows import Rows
from .signature import INJECTED, Arrays, Slot

__all__ = [
    "INJECTED", "OPS", "Arrays", "BlockAttr", "DTypeAttr", "Floats", "FunctionAttr", "InnerBlock", "Ints", "Number",
    "Numbers", "OpDef", "Rows", "Slot", "Texts", "for_arrays", "get_op", "op",
]  # fmt: skip
