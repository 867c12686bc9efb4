"""What differs between two programs: `diff` for people, `first_difference` for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

from minigraph.opdef.host_function import HostFunction
from minigraph.program import Operator, Parameter, Program, Variable
from minigraph.program.blocks.held import sub_programs
from minigraph.program.text.dump import aligned, declaration_lines, op_parts
from minigraph.program.text.grammar import quote

CONTEXT = 1  # unchanged operators shown on each side of a change


def diff(before: Program, after: Program) -> str:
    """Removed operators with `- `, new ones with `+ `, one per line, below the counts that changed.

        mlp: 7 operators before, 5 after
          matmul 1 -> 0, elementwise_add 1 -> 0, relu 1 -> 0, fused_gemm_epilogue 0 -> 1
        forward
        - t   : f32[4,3] = matmul(X=x, Y=w)
        - u   : f32[4,3] = elementwise_add(X=t, Y=b)
        - out : f32[4,3] = relu(X=u)
        + out : f32[4,3] = fused_gemm_epilogue(X=x, Y=w, Bias=b) {activation="relu"}
          loss : f32[] = reduce_mean(X=out)
          ... 3 unchanged

    Links, name scopes and the user's lines are left out: they do not change what runs.
    """
    blocks = _block_changes(before, after)
    changes = _changes(before.ops, after.ops)
    lines = [f"{quote(before.name)}: {len(before.ops)} operators before, {len(after.ops)} after"]
    lines += _counts(before, after) + _declaration_changes(before, after)
    if all(sign == " " for sign, _ in changes):
        return "\n".join([*lines, "  no operator changed", *blocks])
    shown = _near_changes([sign for sign, _ in changes])
    texts = aligned([key[1:] for (_, key), show in zip(changes, shown, strict=True) if show])
    texts.reverse()
    role, hidden = "", 0
    for (sign, key), show in zip(changes, shown, strict=True):
        if not show:
            hidden += 1
            continue
        if hidden:
            lines.append(f"  ... {hidden} unchanged")
            hidden = 0
        if key[0] != role:
            role = key[0]
            lines.append(role)
        lines.append(sign + texts.pop()[1:].rstrip())
    return "\n".join([*lines, *([f"  ... {hidden} unchanged"] if hidden else []), *blocks])


def _block_changes(before: Program, after: Program) -> list[str]:
    """The changes inside the blocks that operators of both programs hold under one name, indented."""
    lines: list[str] = []
    old = {(attr, sub.name): sub for _, attr, sub in sub_programs(before.ops)}
    for _, attr, sub in sub_programs(after.ops):
        known = old.pop((attr, sub.name), None)
        if known is not None and str(known) != str(sub):
            lines += [f"block {attr} of", *(f"    {line}" for line in diff(known, sub).split("\n"))]
    return lines


Key = tuple[str, str, str, str]  # role, output names, types, call


def _key(op: Operator) -> Key:
    return (op.role, *op_parts(op))


def _counts(before: Program, after: Program) -> list[str]:
    """`matmul 5 -> 2, ...` for the operator types whose number changed, in order of appearance."""
    old, new = (Counter(op.type for op in p.ops) for p in (before, after))
    changed = [f"{t} {old[t]} -> {new[t]}" for t in {**old, **new} if old[t] != new[t]]
    return [f"  {', '.join(changed[i : i + 4])}" for i in range(0, len(changed), 4)]


def _declaration_changes(before: Program, after: Program) -> list[str]:
    """Declarations that only one program has; the spaces that align them do not count."""
    old, new = ({" ".join(line.split()): None for line in declaration_lines(p)} for p in (before, after))
    return [f"- {line}" for line in old if line not in new] + [f"+ {line}" for line in new if line not in old]


def _changes(old: list[Operator], new: list[Operator]) -> list[tuple[str, Key]]:
    """(sign, operator) pairs that lead from `old` to `new`."""
    changes: list[tuple[str, Key]] = []
    keys, new_keys = [_key(op) for op in old], [_key(op) for op in new]
    for tag, a, b, c, d in SequenceMatcher(None, keys, new_keys, autojunk=False).get_opcodes():
        if tag == "equal":
            changes += [(" ", key) for key in keys[a:b]]
        else:
            changes += _replacement(old[a:b], new[c:d])
    return changes


def _replacement(old: list[Operator], new: list[Operator]) -> Iterator[tuple[str, Key]]:
    """Removed and new operators, a new one just after the removed one whose output it writes now."""
    writer = {name: i for i, op in enumerate(old) for name in op.output_arg_names}
    place, places = -1, []
    for op in new:
        place = max([place, *(writer.get(name, -1) for name in op.output_arg_names)])
        places.append(place)
    added = 0
    for i in range(-1, len(old)):
        if i >= 0:
            yield "-", _key(old[i])
        while added < len(new) and places[added] == i:
            yield "+", _key(new[added])
            added += 1


def _near_changes(signs: list[str]) -> list[bool]:
    """Which lines are changed or at most CONTEXT lines away from one that is."""
    shown = [False] * len(signs)
    for i, sign in enumerate(signs):
        if sign != " ":
            for j in range(max(0, i - CONTEXT), min(len(signs), i + CONTEXT + 1)):
                shown[j] = True
    return shown


def first_difference(a: Program, b: Program) -> str | None:
    """The first difference between two programs in words; None where they are equal.

    Compared is all that runs or shows: names, types, declarations in their order, operators with
    slots, attributes, roles and links, numbers of random operators, seed and fetch targets. Sites
    and Python objects are not.
    """
    for what, x, y in zip(("name", "seed", "fetch targets"), *map(_header, (a, b)), strict=True):
        if x != y:
            return f"{what}: {x} and {y}"
    if a.vars.keys() != b.vars.keys():
        return f"variables: only one has {sorted(a.vars.keys() ^ b.vars.keys())[:5]}"
    for name, v in a.vars.items():
        if _variable_facts(v) != _variable_facts(b.vars[name]):
            return f"variable {name}: {_variable_facts(v)} and {_variable_facts(b.vars[name])}"
    orders = [[v.name for v in p.vars.values() if v.persistable or v.is_data] for p in (a, b)]
    if orders[0] != orders[1]:
        return f"order of declarations: {orders[0]} and {orders[1]}"
    if len(a.ops) != len(b.ops):
        return f"number of operators: {len(a.ops)} and {len(b.ops)}"
    positions = [{id(op): i for i, op in enumerate(p.ops)} for p in (a, b)]
    for i, (x, y) in enumerate(zip(a.ops, b.ops, strict=True)):
        facts, others = _operator_facts(x, positions[0]), _operator_facts(y, positions[1])
        for what in facts:
            if facts[what] != others[what]:
                return f"operator {i}, {x.type}: {what}: {facts[what]} and {others[what]}"
    return None


def _header(p: Program) -> tuple[Any, ...]:
    return p.name, p.random_seed, p.fetched


def _variable_facts(v: Variable) -> tuple[Any, ...]:
    own = (v.optimize_attr["learning_rate"], v.need_clip) if isinstance(v, Parameter) else ()
    return type(v).__name__, str(v.type), v.persistable, v.stop_gradient, v.is_data, own


def _operator_facts(op: Operator, positions: dict[int, int]) -> dict[str, Any]:
    return {
        "type": op.type,
        "role": op.role,
        "inputs": {slot: [v.name for v in vs] for slot, vs in op.inputs.items() if vs},
        "outputs": {slot: [v.name for v in vs] for slot, vs in op.outputs.items() if vs},
        "attributes": {name: _attribute(value) for name, value in op.attrs.items()},
        "forward operator": positions.get(id(op.forward)),
        "gradient of slot": op.grad_slot,
        "name scope": op.scope_name,
        "number": op.number if "random" in op.opdef.traits else None,
    }


def _attribute(value: Any) -> str:
    """A block as its text, a function of Python as its name."""
    if isinstance(value, HostFunction):
        return value.name
    return str(value) if isinstance(value, Program) else repr(value)
