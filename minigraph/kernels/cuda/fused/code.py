"""The C++ text of fused bodies: every member is a statement on values in registers.

Numbers of the body are literals in the kernel, so the compiler sees them; seeds and numbers of random members are
arguments, so that layers share a kernel. 16-bit floats are float32 between the members, except where a cast rounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minigraph.kernels.cuda.elementwise.elementwise import expressions_of
from minigraph.kernels.cuda.elementwise.pointwise import COMPUTE, compute_type
from minigraph.kernels.cuda.elementwise.random import dropout_scale
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.record.compile import full_source, read_source
from minigraph.types import FLOATS, TensorType


class TooMuch(Exception):
    """One kernel cannot do it, and why."""


@dataclass
class Code:
    """A kernel's text on its way.

    types, kinds  of the body's names
    variables     what a name is called in C++
    arrays        names that are arrays of N elements; others are one number
    lines         the statements
    parameters, arguments   of the kernel, beside operands and sizes
    """

    types: Mapping[str, TensorType]
    kinds: Mapping[str, str]
    variables: dict[str, str] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)

    def declare(self, name: str, array: bool) -> str:
        """A new C++ variable for a name."""
        self.variables[name] = variable = f"v{len(self.variables)}"
        if array:
            self.arrays.add(name)
        self.lines.append(f"{compute_type(self.types[name].dtype)} {variable}{'[N]' * array};")
        return variable

    def at(self, name: str) -> str:
        """The value of a name at element i."""
        return self.variables[name] + "[i]" * (name in self.arrays)

    def computed(self, member: Any) -> str:
        """C: the type in which a member computes, that of the first float that it reads or writes."""
        unread = member.opdef.unread(member.outputs)
        read = [name for slot, names in member.inputs.items() if slot not in unread for name in names]
        dtypes = [self.types[name].dtype for name in (*read, *member.written)]
        return compute_type(next((d for d in dtypes if d in FLOATS), dtypes[0]))


def literal(value: float) -> str:
    """A number as C++."""
    if isinstance(value, (bool, int)) and abs(value) < 1 << 63:
        return f"C({int(value)}ll)"
    if value == -1 << 63:
        return "C(-9223372036854775807ll - 1)"  # what stands behind the sign must fit, too
    if math.isfinite(value):
        return f"C({float(value)!r})"
    return "not_a_number<C>()" if math.isnan(value) else f"C({'-' * (value < 0)}infinity<double>())"


def add_pointwise(code: Code, member: Any, binder: Binder) -> None:
    """The statement of a member that works element by element."""
    array = any(name in code.arrays for name in member.read)
    special = {"dropout": _add_dropout, "sum": _add_sum}.get(member.opdef.type)
    if special is not None:
        return special(code, member, binder, array)
    if member.opdef.cuda is None:
        raise TooMuch(f"{member.opdef.type} has no expression")
    forms = expressions_of(member.opdef.cuda, member.outputs, member.attrs)
    named = set(re.findall(r"[A-Za-z_]\w*", " ".join(forms.values())))
    inputs = {slot: names[0] for slot, names in member.inputs.items() if slot in named}
    constants = {n: v for n, v in member.attrs.items() if n in named and isinstance(v, (int, float))}
    array = any(name in code.arrays for name in inputs.values())
    outs = {slot: code.declare(names[0], array) for slot, names in member.outputs.items()}
    body = [f"const {compute_type(code.types[n].dtype)} {slot} = {code.at(n)};" for slot, n in inputs.items()]
    body += [f"const C {n} = {literal(v)};" for n, v in constants.items()]
    for slot, variable in outs.items():
        dtype = code.types[member.outputs[slot][0]].dtype
        value = f"{compute_type(dtype)}({forms[slot]})"
        if member.opdef.type == "cast" and dtype in COMPUTE:
            value = f"rounded<{CUDA_TYPES[dtype]}>({value})"
        body.append(f"{variable}{'[i]' * array} = {value};")
    _add_block(code, member, body, array)


def _add_block(code: Code, member: Any, body: Sequence[str], array: bool) -> None:
    code.lines.append(f"{{ typedef {code.computed(member)} C;{' ALL {' * array}")
    code.lines += [f"    {line}" for line in body]
    code.lines.append("}}" if array else "}")


def _add_sum(code: Code, member: Any, binder: Binder, array: bool) -> None:
    """Out = X[0] + X[1] + ..."""
    variable = code.declare(member.outputs["Out"][0], array)
    _add_block(code, member, [f"{variable}{'[i]' * array} = {' + '.join(map(code.at, member.inputs['X']))};"], array)


def _add_dropout(code: Code, member: Any, binder: Binder, array: bool) -> None:
    """Out = X where an element is kept, else 0; Mask = whether it is."""
    attrs, x = member.attrs, code.at(member.inputs["X"][0])
    outs = {slot: code.declare(names[0], True) for slot, names in member.outputs.items()}
    if attrs["is_test"]:
        factor = 1 - attrs["p"] if attrs["mode"] == "downscale_in_infer" else 1.0
        values = {"Out": f"{x} * {literal(factor)}", "Mask": "1"}
        return _add_block(code, member, [f"{v}[i] = {values[slot]};" for slot, v in outs.items()], True)
    k = len(code.parameters)
    own = binder.number
    binder.number = member.number
    seed, number, counter = binder.rng(attrs)
    binder.number = own
    code.parameters += [f"u64 seed{k}", f"i64 number{k}", f"const i64* step{k}"]
    code.arguments += [seed, number, counter]
    code.lines.append(f"bool kept{k}[N];")
    code.lines.append(f"keep(kept{k}, element, seed{k}, number{k}, *step{k}, {round(attrs['p'] * 2**32)}ull);")
    values = {"Out": f"kept{k}[i] ? C({x}) * {literal(dropout_scale(attrs))} : C(0)", "Mask": f"kept{k}[i]"}
    _add_block(code, member, [f"{v}[i] = {values[slot]};" for slot, v in outs.items()], True)


def values_read(member: Any) -> set[str]:
    """The names whose values a member reads, not only their shapes."""
    unread = member.opdef.unread(member.outputs)
    return {n for slot, names in member.inputs.items() if slot not in unread for n in names}


def last_uses(members: Sequence[Any]) -> dict[str, int]:
    """{name: the place of the last member that reads its values, or else writes it}."""
    last = {}
    for i, m in enumerate(members):
        last.update(dict.fromkeys((*m.written, *values_read(m)), i))
    return last


def read_names(fused: Any, buffers: Mapping[str, Buffer]) -> list[str]:
    """The inputs whose values a member reads."""
    read = set().union(*map(values_read, fused.members))
    return [n for n in buffers if n in read and n[0] == "x"]


def operand_parameters(inputs: Sequence[str], outputs: Sequence[str], buffers: Mapping[str, Buffer]) -> list[str]:
    """Declarations of the kernel's pointers; an operand that is updated in place must not be read ahead."""
    updated = {id(buffers[n]) for n in outputs}
    declared = []
    for n in inputs:
        restrict = "" if id(buffers[n]) in updated else " __restrict__"
        declared.append(f"const {CUDA_TYPES[buffers[n].dtype]}*{restrict} p_{n}")
    return declared + [f"{CUDA_TYPES[buffers[n].dtype]}* p_{n}" for n in outputs]


def kernel_source(
    name: str, defines: Mapping[str, Any], parameters: Sequence[str], body: Sequence[str], threads: int, blocks: int = 1
) -> str:
    """The whole text of a generated kernel."""
    head = full_source("record/philox.cuh", [(k, str(v)) for k, v in defines.items()]) + read_source("fused/fused.cuh")
    lines = "\n    ".join(body)
    return (
        f'{head}\nextern "C" __global__ void __launch_bounds__({threads}, {blocks}) {name}(\n    '
        + ",\n    ".join(parameters)
        + f")\n{{\n    {lines}\n}}\n"
    )
