"""Members of fused bodies that work on rows, as C++ on a row in the registers of LANES threads.

Which statements, an operator's block says (`@name.cuda_rows`); here is what it says them with.
Sums over a row go through `row_sum` and its like of fused.cuh; elements that do not exist are left out of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.rows.loss import no_class
from minigraph.types import FLOATS

from .code import Code, TooMuch, literal


class RowText:
    """What an operator's fact `cuda_rows` writes its C++ with.

    lines  the statements; `i` is an element of this thread, C the type computed in
    n      elements of a row
    outs   {output slot that somebody reads: its variable}
    """

    literal = staticmethod(literal)

    def __init__(self, code: Code, member: Any, binder: Binder, n: int, shelf: int) -> None:
        self.code, self.member, self.binder, self.n, self.shelf = code, member, binder, n, shelf
        self.attrs = member.attrs
        self.lines: list[str] = []
        self.used = 0
        self.outs = {
            slot: code.variables[names[0]] if names[0] in code.variables
            else code.declare(names[0], code.kinds[names[0]] != "row")
            for slot, names in member.outputs.items()
            if names[0] in code.variables or code.kinds[names[0]] != "sum"
        }  # fmt: skip

    def read(self, slot: str) -> str:
        """The value of an input at element i; empty where it is absent."""
        names = self.member.inputs.get(slot)
        return f"C({self.code.at(names[0])})" if names else ""

    def total(self, name: str, term: str, how: str = "sum") -> None:
        """`const C name` = sum, max or min of `term` over the row."""
        start = {"sum": "C(0)", "max": "-infinity<C>()", "min": "infinity<C>()"}[how]
        merge = f"a_{name} += {term}" if how == "sum" else f"a_{name} = {how}_nan(a_{name}, {term})"
        self.lines += [
            f"C a_{name} = {start};", f"ALL if (VALID(i)) {{ {merge}; }}",
            f"const C {name} = row_{how}(a_{name}, shelf[{(self.shelf + self.used) * 2} + turn]);",
        ]  # fmt: skip
        self.used += 1

    def totals(self, terms: Mapping[str, str]) -> None:
        """The sums of two terms over the row, gathered together."""
        (a, x), (b, y) = terms.items()
        self.lines += [
            f"C {a} = C(0), {b} = C(0);", f"ALL if (VALID(i)) {{ {a} += {x}; {b} += {y}; }}",
            f"row_sums({a}, {b}, shelf[{(self.shelf + self.used) * 2} + turn],"
            f" shelf[{(self.shelf + self.used + 1) * 2} + turn]);",
        ]  # fmt: skip
        self.used += 2

    def each(self, slot: str, value: str) -> None:
        """Every element of an output."""
        if slot in self.outs:
            self.lines.append(f"ALL {self.outs[slot]}[i] = {value};")

    def once(self, slot: str, value: str) -> None:
        """An output with one element for each row."""
        if slot in self.outs:
            self.lines.append(f"{self.outs[slot]} = {value};")

    IS_LABEL = "(lane + i / WIDTH * LANES) * WIDTH + i % WIDTH == label"  # whether i is the element of the row's class

    def find_label(self) -> None:
        """`label`, the number of the row's class; -1 in ignored rows.

        A label that is no class is reported, and its row ignored.
        """
        code = self.code
        if "Fault* fault" not in code.parameters:
            code.parameters += ["Fault* fault", "i64 fault_step"]
            code.arguments += self.binder.report(no_class(self.n, self.attrs))
        self.lines += [
            "look(fault);", f"i64 label = i64({code.at(self.member.inputs['Label'][0])});",
            f"if (label == {self.attrs['ignore_index']}ll) label = -1;", "else if (label < 0 || label >= n) {",
            "    if (inside && lane == 0) report(fault, fault_step, label, row);", "    label = -1;", "}",
        ]  # fmt: skip


def add_rows(code: Code, member: Any, binder: Binder, n: int, shelf: int) -> int:
    """The statements of a member that works on rows; returns how many shelves of shared memory it takes."""
    write = member.opdef.cuda_rows_function
    first = member.inputs[member.opdef.row_slot][0]
    if write is None or code.types[first].dtype not in FLOATS:
        raise TooMuch(f"{member.opdef.type} of {code.types[first].dtype} has no form for rows in registers")
    r = RowText(code, member, binder, n, shelf)
    write(r)
    code.lines += [f"{{ typedef {code.computed(member)} C;", *(f"    {line}" for line in r.lines), "}"]
    return r.used
