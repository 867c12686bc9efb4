"""Builder: `g.matmul(x, y, trans_y=True)` appends an operator and returns its output variables.

The one way in which operators are emitted: user functions, gradient rules and optimizers use it on
a Block, passes use `GraphBuilder` of `passes/engine/emission.py`, which has the same spelling on a Graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from minigraph.errors import MinigraphError, ProgramError, require
from minigraph.opdef import get_op
from minigraph.types import TensorType

from . import unique_name
from .block import checked_name
from .blocks.open_blocks import building
from .known import holds_variables, with_known
from .program import (
    Block,
    Operator,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
)
from .variable import new_variable

P = ParamSpec("P")
R = TypeVar("R")


class Builder:
    """Appends operators to a Block.

    g.<op type>(*inputs, attr=..., ...) takes inputs by position or by slot name, and besides
        out    {output slot: existing Variable}, for updates in place
        needs  optional output slots to create
        name   prefix of the names of new variables (default: the operator type, numbered)
    It returns the output variables in slot order, a single one bare; None for absent ones.
    """

    def __init__(self, block: Block) -> None:
        self.block = block

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("__"):
            raise AttributeError(op_type)
        return partial(self.emit, op_type)

    def emit(
        self, op_type: str, *args: Any, out: Mapping[str, Any] | None = None, needs: Collection[str] = (),
        name: str | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        opdef = get_op(op_type)
        inputs = opdef.bind_inputs(args, kwargs)
        if holds_variables(kwargs):
            kwargs = with_known(op_type, inputs, kwargs)
        op, types = self.block.prepare_op(op_type, inputs, kwargs)
        prefix = name
        new: list[Variable] = []
        results = []
        for slot in opdef.outputs:
            if out and slot.name in out:
                variables = self.block._typed(slot.name, as_list(out[slot.name]), types.get(slot.name))
            elif slot.name in types and (not slot.optional or self.wanted(slot.name, needs)):
                if prefix is None:
                    prefix = self.default_prefix(op_type)
                variables = [self.new_var(op, prefix, t) for t in types[slot.name]]
                new += variables
            else:
                variables = []
            if variables:
                op.outputs[slot.name] = variables
            results.append(variables if slot.variadic else (variables[0] if variables else None))
        self.block.add_op(op, new)
        return results[0] if len(results) == 1 else tuple(results)

    def wanted(self, slot: str, needs: Collection[str]) -> bool:
        """Whether an optional output is created."""
        return slot in needs

    def default_prefix(self, op_type: str) -> str:
        return unique_name.generate(op_type) + ".tmp"

    def new_var(self, op: Operator, prefix: str, type: TensorType) -> Variable:
        name = checked_name(unique_name.generate(prefix))
        return new_variable(self.block, name, type, stop_gradient=not op.opdef.differentiable, site=op.site)


class GradNeeds:
    """Tells gradient rules, through their `g`, which input slots of the forward operator need a gradient."""

    needs: Collection[str] = ()
    active: Collection[int] = ()

    def is_active(self, v: Any) -> bool:
        """Whether a gradient of this input of the forward operator is asked for."""
        return id(v) in self.active

    def wanted(self, slot: str, needs: Collection[str]) -> bool:
        """Of the optional outputs `X_grad`, those are created whose X needs a gradient."""
        return slot in needs or slot.removesuffix("_grad") in self.needs

    def among(self, **outputs: str) -> list[str]:
        """Of {input slot: output slot that holds its gradient} the outputs that are needed."""
        return [output for slot, output in outputs.items() if slot in self.needs]


def builder_of(*operands: Any) -> Builder:
    """A Builder on the Block of the first Variable among `operands`, else on the default program.

    Inside the function of a branch or loop it is on the block of that.
    """
    for operand in operands:
        if isinstance(operand, Variable):
            return Builder(building(operand.block))
        if isinstance(operand, (list, tuple)):
            for v in operand:
                if isinstance(v, Variable):
                    return Builder(building(v.block))
    return Builder(default_main_program().current_block())


def whole(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: where something is refused, nothing that `function` appended before it stays."""
    return _decorated(function, lambda program: program.undone_on_error())


def alone(function: Callable[P, R]) -> Callable[P, R]:
    """As `whole`, for a function that reads what the program has: no other thread changes it meanwhile."""
    return _decorated(function, lambda program: program.block0.whole())


def _decorated(
    function: Callable[P, R], guard: Callable[[Program], AbstractContextManager[None]]
) -> Callable[P, R]:
    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            program = builder_of(*args, *kwargs.values()).block.program
        except MinigraphError as problem:  # an operand of a block that is closed: the call is not that of builder_of
            problem.call = run.__qualname__.removesuffix(".__init__")
            raise
        with guard(program), default_startup_program().undone_on_error():
            return function(*args, **kwargs)

    return run


def as_variable(value: Any, what: str) -> Variable:
    """`value`, which must be a Variable."""
    require(isinstance(value, Variable), f"{what} must be a variable, is {value!r}"[:200], ProgramError)
    return value


def rule_gradients(
    g: Any, op: Any, keep: Callable[[str], Any], wanted: Callable[[Any], bool]
) -> list[tuple[Any, Any]]:
    """Ask the gradient rule of `op`: (input, gradient) for the inputs that are wanted.

    An operator that the rule emitted remembers whose gradient it writes, where its slots do not say so.

    g     emits operators of a Program or a Graph
    keep  gives what the rule keeps for backward, by the names of its parameters
    """
    opdef, gradients = op.opdef, []
    assert opdef.grad_function is not None
    result = opdef.grad_function(g, *[keep(name) for name in opdef.grad_parameters], **op.attrs)
    written = {id(v): (new, output) for new in g.emitted for output, vs in new.outputs.items() for v in vs}
    for slot, grads in zip(opdef.inputs, result if isinstance(result, tuple) else (result,), strict=False):
        inputs = op.inputs.get(slot.name, [])
        if not isinstance(grads, list):  # None stands for all inputs of a slot
            grads = [grads] * (len(inputs) if grads is None else bool(inputs))
        for v, grad in zip(inputs, grads, strict=True):
            if grad is None or not wanted(v):
                continue
            writer, output = written.get(id(grad), (None, ""))
            if writer is not None and (
                writer.type != f"{writer.forward.type}_grad" or gradient_slot(output) != slot.name
            ):
                writer.grad_slot = slot.name
            gradients.append((v, grad))
    return gradients


def gradient_slot(output: str) -> str:
    """The input slot whose gradient an output slot of a grad operator holds: `X_grad` or Paddle's `DX` say X."""
    return output.removesuffix("_grad") if output.endswith("_grad") else output.removeprefix("D")


def as_list(value: Any) -> list[Any]:
    """A list or tuple as a list, anything else as that of one."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
