"""Autodiff: append to a Program the operators that compute gradients.

The walk goes once through the operators from the targets back to the start. Each operator that
lies between what is differentiated and a target is asked for its gradient rule; the rule emits
grad operators through the Builder, linked to their forward operator. Contributions to one gradient
are summed just before their first reader. Names follow Paddle: `x@GRAD`, with fan-in
`x@GRAD@RENAME@block0@<k>` and a `sum` into `x@GRAD`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from minigraph.errors import ProgramError, call_site, raise_unknown, require, shortened
from minigraph.errors.kinds import FOREIGN, LOSS, NO_GRADIENT, OVERWRITTEN, UNKNOWN_NAME
from minigraph.types import TensorType

from .blocks.open_blocks import building
from .builder import Builder, GradNeeds, alone, as_list, rule_gradients
from .program import Block, Operator, Parameter, Variable
from .prune import GRADIENTS
from .variable import check_is_of, new_variable

AFTER_UPDATES = (
    "the program updates its parameters already: minimize the sum of the losses, or call backward() of every optimizer"
    " before the first apply_gradients()"
)


@alone
def append_backward(
    loss: Variable,
    parameter_list: Sequence[Any] | None = None,
    no_grad_set: Iterable[Any] | None = None,
    callbacks: Any = None,
    checkpoints: Any = None,
    distop_context: Any = None,
) -> list[tuple[Parameter, Variable]]:
    """Append the gradient of `loss`: static.append_backward, which says more, without checkpoints.

    callbacks, checkpoints, distop_context   refused unless None or empty
    """
    require(isinstance(loss, Variable), f"loss must be a variable, is {loss!r}", ProgramError)
    require(
        loss.type.is_static and loss.type.size == 1, f"loss must have one element, {loss} does not",
        LOSS, "reduce it first, for example mg.mean(loss); for other targets use static.gradients",
    )  # fmt: skip
    require(loss.type.is_float, f"loss must be a float, is {loss}", LOSS)
    unsupported = {"callbacks": callbacks, "checkpoints": checkpoints, "distop_context": distop_context}
    for name, value in unsupported.items():
        absent = value is None or (isinstance(value, (list, tuple)) and not value)
        require(absent, f"append_backward takes no {name}", ProgramError, f"leave {name} out")
    block = loss.block
    _check_is_built(block)
    if parameter_list is None:
        parameters = [p for p in block.all_parameters() if p.trainable]
    else:
        parameters = [_listed(block, p) for p in _each("parameter_list", parameter_list)]
    blocked = _names(block, no_grad_set)
    wanted = [p for p in parameters if p.name not in blocked and not p.stop_gradient]
    asked = [v for v in _live_starts(block) if v.name not in blocked]
    all_blocked = parameter_list is not None and parameters != [] and not wanted  # who says so asks for nothing
    grads = _Differentiation(block, [loss], [None], [*wanted, *asked], blocked, is_loss=True).run()
    require(
        all_blocked or any(g is not None for g in grads),
        f"loss {loss} depends on no trainable parameter and on no data with stop_gradient=False", NO_GRADIENT,
        "check stop_gradient, trainable and no_grad_set between the parameters and the loss",
    )  # fmt: skip
    return [(p, g) for p, g in zip(wanted, grads, strict=False) if g is not None]


@alone
def gradients(
    targets: Any, inputs: Any, target_gradients: Any = None, no_grad_set: Iterable[Any] | None = None
) -> list[Variable | None]:
    """Append and return the gradients of `sum(targets * target_gradients)` with respect to `inputs`.

    targets, inputs   Variables or lists of them; inputs may be any, parameters or not
    target_gradients  one for each target with its shape, None for ones
    no_grad_set       variables or names through which no gradient flows, as through those with stop_gradient
    Returns a gradient for each input, None where no target depends on it, or no_grad_set has it. The result can
    be differentiated again where the grad operators have gradient rules themselves.
    """
    targets, inputs = as_list(targets), as_list(inputs)
    require(targets and inputs, "gradients needs targets and inputs", ProgramError)
    for v in (*targets, *inputs):
        require(isinstance(v, Variable), f"gradients takes variables, not {v!r}", ProgramError)
        require(v.block is targets[0].block, f"{v.name} belongs to another program", FOREIGN)
    block = targets[0].block
    _check_is_built(block)
    seeds = as_list(target_gradients) if target_gradients is not None else [None] * len(targets)
    require(
        len(seeds) == len(targets), f"{len(targets)} targets, but {len(seeds)} target_gradients", ProgramError
    )
    for t, s in zip(targets, seeds, strict=True):
        require(s is None or isinstance(s, Variable), f"gradient {s!r} of target {t} is no variable", ProgramError)
        require(s is None or s.block is block, f"gradient {s} of target {t} belongs to another program", FOREIGN)
        require(s is None or s.type.accepts(t.type), f"gradient {s} of target {t} has another shape or type")
    blocked = _names(block, no_grad_set)
    grads = iter(_Differentiation(block, targets, seeds, [v for v in inputs if v.name not in blocked], blocked).run())
    return [None if v.name in blocked else next(grads) for v in inputs]


def gradients_with_optimizer(program: Any, optimizer: Any, inputs: Any = None, outputs: Any = None) -> tuple[Any, Any]:
    """(update operators, [(parameter, gradient)]) of an optimizer for the sum of `outputs`.

    inputs   parameters, all trainable ones that a gradient reaches for None
    outputs  the variables that no operator reads for None
    """
    read = {v.name for op in program.ops for v in op.input_vars}
    ends = [v for op in program.ops for v in op.output_vars if v.name not in read and not v.persistable]
    chosen = [p for p in program.all_parameters() if p.trainable] if inputs is None else as_list(inputs)
    grads = gradients(ends if outputs is None else outputs, chosen)
    pairs = [(p, g) for p, g in zip(chosen, grads, strict=True) if g is not None]
    return optimizer.apply_gradients(pairs), pairs


def differentiated(
    block: Block, targets: list[Variable], seeds: Sequence[Variable | None], wanted: Sequence[Variable]
) -> list[Variable | None]:
    """As `gradients`, for the block of a branch or loop that is made for them: the gradients of its inputs."""
    return _Differentiation(block, targets, seeds, wanted, frozenset()).run()


def _check_is_built(block: Block) -> None:
    """Gradients are appended to the block that is being built, or their operators would stand in two blocks."""
    require(
        building(block) is block, "gradients inside the function of a branch or loop are those of its own values",
        ProgramError, "call append_backward, gradients or minimize outside, on what cond or while_loop returns",
    )  # fmt: skip


class _Differentiation:
    """One call of append_backward or gradients."""

    def __init__(
        self, block: Block, targets: list[Variable], seeds: Sequence[Variable | None],
        wanted: Sequence[Variable], blocked: Collection[str], is_loss: bool = False,
    ) -> None:  # fmt: skip
        self.block, self.program = block, block.program
        self.targets, self.seeds, self.wanted, self.blocked = targets, seeds, wanted, blocked
        self.is_loss = is_loss  # training, not gradients()
        self.ends = {id(v) for v in wanted if v.stop_gradient}  # nothing flows on through these
        self.contributions: dict[int, list[Variable]] = {}  # id(variable) -> gradients to be summed
        self.variables: dict[int, Variable] = {}
        self.total: dict[int, Variable] = {}
        self.site = call_site()

    def run(self) -> list[Variable | None]:
        ops = list(self.block.ops)
        active = self._active(ops)
        self.producer = {id(v): op for op in ops for v in op.output_vars}  # the last one
        self.write_counts = Counter(id(v) for op in ops for v in op.output_vars)
        self.position = {id(op): i for i, op in enumerate(ops)}
        self.first: dict[int, int] = {}  # id(variable) -> position of the first operator with gradients that writes it
        for i, op in enumerate(ops):
            for v in op.output_vars if op.opdef.differentiable else ():
                self.first.setdefault(id(v), i)
        with self.program.emitting("backward", site=self.site):
            self._seed(active)
            for op in reversed(ops):
                if not any(id(v) in self.contributions for v in op.output_vars):
                    continue
                if op.opdef.differentiable and any(id(v) in active for v in op.input_vars) and self._is_reached(op):
                    self._differentiate(op, active)
                self._forget_overwritten(op)
            for v in list(self.variables.values()):
                self._finish(v)
        return [self.total.get(id(v)) for v in self.wanted]

    def _is_reached(self, op: Operator) -> bool:
        """Whether a gradient flows into the operator through one of its outputs."""
        return any(id(v) in self.contributions and id(v) not in self.ends for v in op.output_vars)

    def _active(self, ops: list[Operator]) -> set[int]:
        """Variables (by id) that depend on something wanted, through operators with gradients."""
        active = {id(v) for v in self.wanted}
        for op in ops:
            if op.opdef.differentiable and any(id(v) in active for v in op.input_vars):
                active |= {
                    id(v) for v in op.output_vars
                    if v.type.is_float and not v.stop_gradient and v.name not in self.blocked
                }  # fmt: skip
        return active

    def _seed(self, active: set[int]) -> None:
        g = _GradBuilder(self.block)
        for target, seed in zip(self.targets, self.seeds, strict=True):
            if id(target) not in active:
                continue
            self._contribute(target, seed if seed is not None else self._ones(g, target))

    def _ones(self, g: Builder, target: Variable) -> Variable:
        """The gradient of a target; its name scope tells that of `gradients` from that of a loss."""
        with self.program.in_scope("" if self.is_loss else GRADIENTS):
            if target.type.is_static:
                return g.fill_constant(shape=target.shape, value=1.0, dtype=target.dtype)
            return g.fill_any_like(target, value=1.0)

    def _forget_overwritten(self, op: Operator) -> None:
        """An operator before this one that wrote the same variable has no part in its gradient."""
        reads, position = {id(v) for v in op.input_vars}, self.position[id(op)]
        for v in op.output_vars:
            if not op.opdef.differentiable and self.first.get(id(v), position) >= position:
                continue  # nothing before a constant has a gradient, which itself may be wanted
            if id(v) not in reads and (v.persistable or v.is_data or self.write_counts[id(v)] > 1):
                self._finish(v)
                self.contributions.pop(id(v), None)
                self.total.pop(id(v), None)

    def _differentiate(self, op: Operator, active: set[int]) -> None:
        opdef = op.opdef
        if opdef.grad_function is None:
            raise NO_GRADIENT(f"{op.type} has no gradient rule", call=op.call(), site=op.site)
        grads_of_outputs = {}
        for slot in opdef.outputs:
            grads = [None if id(v) in self.ends else self._finish(v) for v in op.outputs.get(slot.name, ())]
            grads_of_outputs[f"{slot.name}_grad"] = grads
            if f"{slot.name}_grad" not in opdef.grad_parameters and any(grad is not None for grad in grads):
                raise NO_GRADIENT(
                    f"no gradient flows through {slot.name} of {op.type}, but a target depends on it",
                    call=op.call(), site=op.site,
                    hint=f"{op.outputs[slot.name][0].name}.stop_gradient = True makes a constant of it",
                )  # fmt: skip
        needs = frozenset(s for s, vs in op.inputs.items() if any(id(v) in active for v in vs))
        with self.program.emitting("backward", forward=op, site=op.site):
            g = _GradBuilder(self.block, needs)
            g.active = active
            contributions = rule_gradients(
                g, op, lambda name: self._kept(g, op, name, grads_of_outputs), lambda v: id(v) in active
            )
        contributed = {id(grad) for _, grad in contributions}
        for variable, grad in contributions:
            self._contribute(variable, grad)
        for v in (v for new in g.emitted for v in new.output_vars):  # what the rule computed on the way
            if id(v) not in contributed and _is_new(v):
                base = next(iter(op.output_vars)).grad_name
                self.block.rename_var(v.name, f"{base}@TMP@{v.name.removeprefix(NEW_PREFIX)}")

    def _kept(self, g: Builder, op: Operator, name: str, grads_of_outputs: dict[str, list[Variable | None]]) -> Any:
        """The argument of the gradient rule called `name`: an input, an output or an output's gradient."""
        opdef = op.opdef
        slots = opdef.slots
        if name in slots:
            values: list[Any] = list(op.inputs.get(name, ()) or op.outputs.get(name, ()))
            for v in values:
                self._check_unchanged(op, v)
            return values if slots[name].variadic else (values[0] if values else None)
        output = slots[name.removesuffix("_grad")]
        grads = grads_of_outputs[name]
        if name in opdef.optional_grads and not any(x is not None for x in grads):
            return None
        outputs = op.outputs.get(output.name, [])
        full = [x if x is not None else g.fill_any_like(v, value=0.0) for x, v in zip(grads, outputs, strict=True)]
        return full if output.variadic else (full[0] if full else None)

    def _check_unchanged(self, op: Operator, v: Variable) -> None:
        """What backward reads must still hold the value of the forward run."""
        last = self.producer.get(id(v))
        if last is not None and self.position[id(last)] > self.position[id(op)]:
            updated = "optimizer" in last.opdef.traits
            raise OVERWRITTEN(
                f"{v.name} is overwritten by {last.type} after {op.type} used it, its gradient would be wrong",
                call=op.call(), site=op.site, hint=AFTER_UPDATES if updated else "write to a new variable instead of"
                " in place",
            )  # fmt: skip

    def _contribute(self, variable: Variable, grad: Variable) -> None:
        self.variables[id(variable)] = variable
        self.contributions.setdefault(id(variable), []).append(grad)

    def _finish(self, variable: Variable) -> Variable | None:
        """The whole gradient of `variable`: all contributions are known by now."""
        key = id(variable)
        if key in self.total or key not in self.contributions:
            return self.total.get(key)
        parts = self.contributions[key]
        name = self._free_name(variable)
        if len(parts) == 1 and _is_new(parts[0]):
            self.block.rename_var(parts[0].name, name)
            self.total[key] = parts[0]
            return parts[0]
        whole = self.block.create_var(name, type=variable.type)
        g = _GradBuilder(self.block)
        with self.program.emitting("backward", forward=self.producer.get(key), site=self.site):
            if len(parts) == 1:
                g.assign(parts[0], out={"Out": whole})
            else:
                for k, part in enumerate(parts):
                    if _is_new(part):
                        self.block.rename_var(part.name, self._free_name(variable, f"@RENAME@block0@{k}"))
                g.sum(parts, out={"Out": whole})
        self.total[key] = whole
        return whole

    def _free_name(self, variable: Variable, suffix: str = "") -> str:
        """`x@GRAD`, in a further differentiation of the same program `grad/grad/x@GRAD` and so on."""
        name, times = variable.grad_name + suffix, 1
        while self.block.has_var(name):
            times += 1
            name = "grad/" * times + variable.grad_name + suffix
        return name


class _GradBuilder(GradNeeds, Builder):
    """The `g` of gradient rules on a Program."""

    def __init__(self, block: Block, needs: Collection[str] = ()) -> None:
        super().__init__(block)
        self.needs = needs
        self.first = len(block.ops)

    @property
    def emitted(self) -> list[Operator]:
        return self.block.ops[self.first :]

    def default_prefix(self, op_type: str) -> str:
        return NEW_PREFIX

    def new_var(self, op: Operator, prefix: str, type: TensorType) -> Variable:
        if prefix is not NEW_PREFIX:
            return super().new_var(op, prefix, type)
        return new_variable(self.block, f"{NEW_PREFIX}{self.block.program.next_number()}", type, site=op.site)


NEW_PREFIX = "@NEW@"  # of a gradient that has no name yet


def _is_new(v: Variable) -> bool:
    return v._name.startswith(NEW_PREFIX)


def _each(what: str, values: Any) -> Iterable[Any]:
    """`values`, which must be a list, tuple or set."""
    fits = isinstance(values, (list, tuple, set, frozenset))
    require(fits, f"{what} must be a list of variables or names, is {shortened(repr(values))}", ProgramError)
    return values


def _names(block: Block, no_grad_set: Any) -> frozenset[str]:
    """Names of the variables through which no gradient flows."""
    given = list(_each("no_grad_set", no_grad_set or ()))
    for v in given:
        if isinstance(v, Variable):
            check_is_of(v, block.program, "no_grad_set:", ProgramError)
    names = {v.name if isinstance(v, Variable) else v for v in given}
    for name in names:
        if name not in block.vars:
            raise_unknown("variable of no_grad_set", name, block.vars, UNKNOWN_NAME)
    return frozenset(names)


def _live_starts(block: Block) -> list[Variable]:
    """Where gradients end besides at Parameters: floats that the user set live and that no gradient flows through.

    Data variables, other persistable ones and what operators without a gradient compute, as a `full`: all of
    these are born with stop_gradient=True.
    """
    computed = {id(v) for op in block.ops if op.opdef.differentiable for v in op.output_vars}
    made = {id(v) for op in block.ops for v in op.output_vars}
    return [
        v for v in block.vars.values()
        if v.type.is_float and not v.stop_gradient and not isinstance(v, Parameter) and id(v) not in computed
        and (v.is_data or v.persistable or id(v) in made)
    ]  # fmt: skip


def _listed(block: Block, value: Any) -> Any:
    """The entry `value` of a parameter_list as a variable of the block."""
    if not isinstance(value, Variable) and value not in block.vars:
        raise_unknown("parameter", value, [p.name for p in block.all_parameters()], UNKNOWN_NAME)
    v = value if isinstance(value, Variable) else block.vars[value]
    require(v.block is block, f"{v.name} belongs to another program", FOREIGN)
    require(v.type.is_float, f"parameter_list holds {v}, which has no gradient", NO_GRADIENT)
    return v
