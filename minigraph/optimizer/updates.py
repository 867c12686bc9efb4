"""The updates of one optimizer: an operator for each parameter, or what a user's rule builds.

Where all updates share flags, a factor on gradients or a step that is skipped, operators take them as inputs; what a
user writes knows nothing of them. Merged gradients and loss scaling have such flags.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from minigraph.errors import ProgramError, require
from minigraph.opdef import get_op
from minigraph.program import Parameter, Variable
from minigraph.program.builder import Builder
from minigraph.program.known import holds_variables
from minigraph.types import float64, tensor_type

from .gradients import ParamsGrads, scaled
from .settings import LOW_PRECISION
from .states import UpdateTemplate, kind_of, master_weight
from .variable_betas import FIRST_POWERS

HOOKS = "append_update", "attrs", "of", "wanted_states"  # where a user may build more, between two updates
ONE_NUMBER = tensor_type((1,), float64)
OWN_RULES = "docs/foreach.md has a rule of one's own"
WRITTEN = "MasterParamOut", "Moment2MaxOut", "MeanGradOut"  # optional outputs


def append_updates(optimizer: Any, g: Builder, pairs: ParamsGrads, lr: Variable) -> None:
    """Append the updates of parameters with one learning rate, in their order."""
    own = [method for method in HOOKS if is_own(optimizer, method)]
    flagged = optimizer._shared.flags and "append_update" in own
    update = partial(append_own, optimizer) if flagged else optimizer.append_update
    for alone, some in itertools.groupby(pairs, lambda pair: not own and optimizer.is_one_operator(pair[0])):
        if alone:
            append_operators(optimizer, g, some, lr)
        else:
            for param, grad in some:
                update(g, param, grad, lr)


def append_operators(optimizer: Any, g: Builder, pairs: Iterable[tuple[Parameter, Any]], lr: Variable) -> None:
    """Append one operator for each parameter; those of one kind that follow each other are made together."""
    known = optimizer.op_type != ""
    require(known, f"{type(optimizer).__name__} has no append_update", ProgramError, OWN_RULES)
    shared, groups, block = optimizer._shared, optimizer._groups, g.block
    by_group = optimizer.looks_at_groups_only()
    seen: dict[tuple[int, ...], UpdateTemplate] = {}  # by what alone tells updates of this call apart then
    latest: UpdateTemplate | None = None
    alike: ParamsGrads = []
    for param, grad in pairs:
        group, known = groups.get(param._name), None
        if by_group and param.block is block and isinstance(grad, Variable) and grad.block is block:
            known = id(group), id(param.type), id(grad.type)
        template = seen.get(known) if known is not None else None
        if template is None:
            wanted, attrs = optimizer.wanted_states(param), optimizer.attrs(param)
            kind = kind_of(block, param, grad, lr, group, wanted, shared.flags)
            template = shared.templates.of(kind, attrs) if kind else None
            if template is None:
                _append_waiting(latest, alike)
                latest = None
                _append_first(optimizer, g, (param, grad, lr), attrs, wanted, kind)
                continue
            if known is not None:
                seen[known] = template
        if template is not latest:
            _append_waiting(latest, alike)
            latest = template
        alike.append((param, grad))
    _append_waiting(latest, alike)


def _append_waiting(template: UpdateTemplate | None, alike: ParamsGrads) -> None:
    """Append the updates that wait, which are like one of this template."""
    if template is not None:
        template.append(alike)
        alike.clear()


def new_states(optimizer: Any, param: Parameter) -> dict[str, Any]:
    """{slot: a new persistable variable} of what the update of `param` keeps."""
    wanted = optimizer.wanted_states(param).items()
    states = {slot: optimizer.state(param, name, optimizer.initial) for slot, name in wanted}
    for slot, (name, beta) in optimizer.powers.items():
        first = optimizer.of(param, beta)
        first = FIRST_POWERS[beta] if isinstance(first, Variable) else first
        states[slot] = optimizer.state(param, name, first, ONE_NUMBER)
    return states


def _append_first(
    optimizer: Any, g: Builder, given: tuple[Parameter, Any, Any], attrs: dict[str, Any],
    wanted: Mapping[str, str], kind: tuple[Any, ...],
) -> None:  # fmt: skip
    """Append the update of (parameter, gradient, rate), checked; those after it that are of its kind are like it."""
    param, shared = given[0], optimizer._shared
    first = len(shared.startup.ops)
    states = new_states(optimizer, param)
    names = {v.name for v in states.values()}
    fills = [op for op in shared.startup.ops[first:] if any(v.name in names for v in op.output_vars)]
    if optimizer.multi_precision and param.dtype in LOW_PRECISION:
        states["MasterParam"] = master_weight(param, shared.startup)
    read = dict(zip(get_op(optimizer.op_type).input_names, given, strict=False))
    out = {"ParamOut": param, **{f"{slot}Out": v for slot, v in states.items()}}
    g.emit(optimizer.op_type, **read, **states, **shared.flags, **attrs, out=out, needs=WRITTEN)
    update = g.block.ops[-1]
    if kind and update.outputs.keys() <= out.keys() and not holds_variables(attrs) and not is_own(optimizer, "state"):
        keys = [*wanted.values(), *[name for name, _ in optimizer.powers.values()]]
        suffixes = {slot: suffix(optimizer, key) for slot, key in zip(states, keys, strict=False)}
        shared.templates.add(kind, attrs, UpdateTemplate(update, shared.startup, fills, suffixes))


def suffix(optimizer: Any, what: str) -> str:
    """What stands behind the parameter's name in the name of a state."""
    return f"_{optimizer.name}_{what}" if optimizer.name else f"_{what}"


def is_own(optimizer: Any, method: str) -> bool:
    """Whether a user wrote this method of the optimizer: in a class of one's own, or for this object alone."""
    writer = next(c for c in type(optimizer).__mro__ if method in vars(c))
    return method in vars(optimizer) or not writer.__module__.startswith(f"{__package__}.")


def append_own(optimizer: Any, g: Builder, param: Parameter, grad: Variable, lr: Variable) -> None:
    """Append a user's update: its gradient is scaled before, and what it writes goes back where a step is skipped."""
    shared = optimizer._shared
    flags, shared.flags = shared.flags, {}
    try:
        if "GradScale" in flags:
            ((_, grad),) = scaled([(param, grad)], flags["GradScale"])
        first = len(g.block.ops)
        optimizer.append_update(g, param, grad, lr)
        if "SkipUpdate" in flags:
            go_back(g, first, flags["SkipUpdate"])
    finally:
        shared.flags = flags


def go_back(g: Builder, first: int, skip: Variable) -> None:
    """Let the states that operators from `first` on write be as before where `skip` is true."""
    ops, end = g.block.ops, len(g.block.ops)
    written = {v.name: v for op in ops[first:] for v in op.output_vars if v.persistable}
    skip = g.reshape(skip, shape=())
    before = [g.assign(v) for v in written.values()]
    ops[first:] = [*ops[end:], *ops[first:end]]
    for v, old in zip(written.values(), before, strict=True):
        g.where(skip, old, v, out={"Out": v})
