"""Members of fused bodies that work on rows, as C++ on a row in the registers of LANES threads.

Sums over a row go through `row_sum` and its like of fused.cuh; elements that do not exist are left out of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.rows.loss import no_class
from minigraph.types import FLOATS

from .code import Code, TooMuch, literal


class _Row:
    """What the text of one member is made of."""

    def __init__(self, code: Code, member: Any, binder: Binder, n: int, shelf: int) -> None:
        self.code, self.member, self.binder, self.n, self.shelf = code, member, binder, n, shelf
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


def _layer_norm(r: _Row) -> None:
    x, scale, bias = r.read("X"), r.read("Scale"), r.read("Bias")
    r.total("sum", x)
    r.lines.append(f"const C mean = sum / C({r.n});")
    r.total("squares", f"({x} - mean) * ({x} - mean)")
    epsilon = literal(r.member.attrs["epsilon"])
    r.lines.append(f"const C variance = squares / C({r.n}), inverse = C(1) / sqrt(variance + {epsilon});")
    r.each("Y", f"({x} - mean) * inverse" + f" * {scale}" * bool(scale) + f" + {bias}" * bool(bias))
    r.once("Mean", "mean")
    r.once("Variance", "variance")


def _layer_norm_grad(r: _Row) -> None:
    x, dy, scale = r.read("X"), r.read("Y_grad"), r.read("Scale")
    epsilon, n = literal(r.member.attrs["epsilon"]), f"C({r.n})"
    r.lines.append(
        f"const C mean = {r.read('Mean')}, inverse = inside ? C(1) / sqrt({r.read('Variance')} + {epsilon}) : C(0);"
    )
    h, d = f"(({x} - mean) * inverse)", f"({dy} * {scale})" if scale else dy
    if "Scale_grad" in r.outs:
        r.lines.append(f"ALL if (VALID(i)) {r.outs['Scale_grad']}[i] += {dy} * {h};")
    if "Bias_grad" in r.outs:
        r.lines.append(f"ALL if (VALID(i)) {r.outs['Bias_grad']}[i] += {dy};")
    if "X_grad" not in r.outs:
        return
    r.totals({"sum": d, "product": f"{d} * {h}"})
    mean_grad, variance_grad = r.read("Mean_grad"), r.read("Variance_grad")
    constant = f"-(sum / {n}) * inverse" + f" + {mean_grad} / {n}" * bool(mean_grad)
    slope = f"-(product / {n}) * inverse * inverse" + f" + C(2) * {variance_grad} / {n}" * bool(variance_grad)
    r.lines.append(f"const C constant = {constant}, slope = {slope};")
    # Linear in d and in x - mean, as the kernel in rows/norm.cu: (d - sum - h * product) * inverse rounds d twice more.
    r.each("X_grad", f"{d} * inverse + (({x} - mean) * slope + constant)")


def _softmax(r: _Row) -> None:
    x = r.read("X")
    r.total("most", x, "max")
    r.lines.append(f"C e[N]; ALL e[i] = exp({x} - most);")
    r.total("sum", "e[i]")
    r.each("Out", "e[i] / sum")


def _log_softmax(r: _Row) -> None:
    x = r.read("X")
    r.total("most", x, "max")
    r.total("sum", f"exp({x} - most)")
    r.lines.append("const C logarithm = log(sum);")
    r.each("Out", f"{x} - most - logarithm")


def _softmax_grad(r: _Row) -> None:
    r.total("product", f"{r.read('Out')} * {r.read('Out_grad')}")
    r.each("X_grad", f"{r.read('Out')} * ({r.read('Out_grad')} - product)")


def _log_softmax_grad(r: _Row) -> None:
    r.total("sum", r.read("Out_grad"))
    r.each("X_grad", f"{r.read('Out_grad')} - exp({r.read('Out')}) * sum")


OWN = "(lane + i / WIDTH * LANES) * WIDTH + i % WIDTH == label"  # whether i is the element of the row's class


def _add_label(r: _Row) -> None:
    """`label`, the number of the row's class, -1 in ignored rows; one that is no class is reported, its row ignored."""
    if "Fault* fault" not in r.code.parameters:
        r.code.parameters += ["Fault* fault", "i64 fault_step"]
        r.code.arguments += r.binder.report(no_class(r.n, r.member.attrs))
    r.lines += [
        "look(fault);", f"i64 label = i64({r.code.at(r.member.inputs['Label'][0])});",
        f"if (label == {r.member.attrs['ignore_index']}ll) label = -1;", "else if (label < 0 || label >= n) {",
        "    if (inside && lane == 0) report(fault, fault_step, label, row);", "    label = -1;", "}",
    ]  # fmt: skip


def _softmax_with_cross_entropy(r: _Row) -> None:
    x, soft = r.read("Logits"), r.member.attrs["soft_label"]
    r.total("most", x, "max")
    power = f"exp({x} - most)"
    if "Softmax" in r.outs:
        r.lines.append(f"C e[N]; ALL e[i] = {power};")
        power = "e[i]"
    if soft:
        w = r.read("Label")
        r.total("sum", power)
        r.totals({"weight": w, "own": f"{w} == C(0) ? C(0) : {w} * ({x} - most)"})
        r.once("Loss", "log(sum) * weight - own")
    else:
        _add_label(r)
        r.totals({"sum": power, "own": f"{OWN} ? {x} - most : C(0)"})
        r.once("Loss", "label < 0 ? C(0) : log(sum) - own")
    r.each("Softmax", "e[i] / sum")


def _softmax_with_cross_entropy_grad(r: _Row) -> None:
    p, seed = r.read("Softmax"), r.read("Loss_grad")
    if r.member.attrs["soft_label"]:
        w = r.read("Label")
        r.total("weight", w)
        r.each("Logits_grad", f"({p} * weight - {w}) * {seed}")
    else:
        _add_label(r)
        r.each("Logits_grad", f"label < 0 ? C(0) : ({OWN} ? {p} - C(1) : {p}) * {seed}")


def _reduction(how: str, mean: bool = False) -> Callable[[_Row], None]:
    def add(r: _Row) -> None:
        r.total("result", r.read("X"), how)
        r.once("Out", f"result / C({r.n})" if mean else "result")

    return add


def _spread(mean: bool) -> Callable[[_Row], None]:
    def add(r: _Row) -> None:
        r.each("X_grad", f"{r.read('Out_grad')}" + f" / C({r.n})" * mean)

    return add


ROW_MEMBERS: dict[str, Callable[[_Row], None]] = {
    "layer_norm": _layer_norm, "layer_norm_grad": _layer_norm_grad,
    "softmax": _softmax, "softmax_grad": _softmax_grad,
    "softmax_with_cross_entropy": _softmax_with_cross_entropy,
    "softmax_with_cross_entropy_grad": _softmax_with_cross_entropy_grad,
    "log_softmax": _log_softmax, "log_softmax_grad": _log_softmax_grad,
    "reduce_sum": _reduction("sum"), "reduce_mean": _reduction("sum", mean=True),
    "reduce_max": _reduction("max"), "reduce_min": _reduction("min"),
    "reduce_sum_grad": _spread(mean=False), "reduce_mean_grad": _spread(mean=True),
}  # fmt: skip


def add_rows(code: Code, member: Any, binder: Binder, n: int, shelf: int) -> int:
    """The statements of a member that works on rows; returns how many shelves of shared memory it takes."""
    add = ROW_MEMBERS.get(member.opdef.type)
    first = member.inputs[member.opdef.row_slot][0]
    if add is None or code.types[first].dtype not in FLOATS:
        raise TooMuch(f"{member.opdef.type} of {code.types[first].dtype} has no form for rows in registers")
    r = _Row(code, member, binder, n, shelf)
    add(r)
    code.lines += [f"{{ typedef {code.computed(member)} C;", *(f"    {line}" for line in r.lines), "}"]
    return r.used
