"""What a type of operator is: its reference function, and the facts that hang on it.

    @op("Out", traits={"elementwise"})
    def relu(X):
        \"\"\"max(X, 0)\"\"\"
        return np.maximum(X, 0)

The NumPy function is the operator's definition and the float64 oracle of every test. Its
positional parameters are the input slots (a default of None makes a slot optional, the annotation
`Arrays` makes it a list), its keyword-only parameters are the attributes with their types and
defaults, its docstring is the documentation. All of it is written once and read from there.

Some keyword-only names are no attributes. A function that lists such a name is given its value:
    out    tuple with an array or None for each output slot, to be written in place
    needs  frozenset of the output slots that somebody reads
    rng    (seed, operator's number, step) for counter-based random numbers
    lifted whether every float is computed in float64, as validation does
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import (
    AttrError,
    MinigraphError,
    PlaceError,
    ProgramError,
    raise_unknown,
    require,
    shortened,
)
from minigraph.types import TensorType

from .attr import Attr, read_attr
from .rows import Rows

Arrays = Sequence[np.ndarray]  # annotation of a list slot

OPS: dict[str, OpDef] = {}
INJECTED = frozenset({"out", "needs", "rng", "lifted"})

TRAITS = {
    "elementwise": "each output element depends on the input elements at its (broadcast) place",
    "pointwise": "as elementwise, except where an operand was broadcast: its gradient is a sum",
    "uniform": "all elements of the output are equal",
    "commutative": "X and Y may change places",
    "in_place": "its GPU kernels may write over what `inplace` names, or over any input of the output's type",
    "random": "draws random numbers: its kernel takes rng",
    "nondifferentiable": "outputs carry no gradient: their slope is 0 wherever there is one, or it updates parameters",
    "optimizer": "updates parameters, which have no slope; dropped by clone(for_test=True)",
    "side_effect": "must run although nobody reads its outputs",
    "reports": "may refuse values when it runs: a bad index, a label that is no class, output that cannot be written",
    "infinite": "an infinity in an optional output is a value of its own, no overflow",
    "guarded": "its GPU kernels look at faults and write over what a Scope holds only where the run has none",
}

Types = Mapping[str, Any]  # slot -> TensorType | list[TensorType] | None


class Slot(NamedTuple):
    """An input or output position. An optional one may be absent, a variadic one holds a list."""

    name: str
    optional: bool = False
    variadic: bool = False


def _without_kernel(op_type: str, *_: Any) -> None:
    raise PlaceError(
        f"{op_type} has no kernel for CUDAPlace", hint='run it on CPUPlace(), or define it with cuda="an expression'
        ' in C++" (see ops/unary.py) or gpu=',
    )  # fmt: skip


INFERRED_KEPT = 256  # answers of type inference for each operator type


class OpDef:
    """The definition of one type of operator."""

    def __init__(
        self,
        reference: Callable[..., Any],
        outputs: str,
        *,
        traits: Iterable[str] = (),
        no_need_buffer: Iterable[str] = (),
        read_for: Mapping[str, str] | None = None,
        inplace: Mapping[str, str] | None = None,
        copies: Mapping[str, str | tuple[str, str]] | None = None,
        strided: Iterable[str] = (),
        cpu: str | None = None,
        gpu: str | None = None,
        cuda: Any = None,
        shows: Callable[..., list[Any]] | None = None,
        joins: Callable[..., list[Any]] | None = None,
        rows: Rows | None = None,
    ) -> None:
        self.type = reference.__name__
        self.reference = reference
        self.outputs = tuple(_parse_slot(s) for s in outputs.split(","))
        self.traits = frozenset(traits)
        self.no_need_buffer = frozenset(no_need_buffer)
        self.read_for = dict(read_for or {})
        self.inplace, self.strided = dict(inplace or {}), frozenset(strided)
        self.copies = {out: (x, "") if isinstance(x, str) else x for out, x in (copies or {}).items()}
        self.cpu, self.gpu, self.cuda, self.rows = cpu, gpu, cuda, rows
        self.shows, self.joins = shows, joins
        self.inputs, self.attrs = _read_signature(reference)
        self.infer_function: Callable[..., Any] | None = None
        self._inferred: dict[Any, tuple[Any, ...]] = {}  # what it found for the latest types and attributes
        self.grad_function: Callable[..., Any] | None = None
        self.samples_function: Callable[..., Any] | None = None
        self.cuda_rows_function: Callable[..., Any] | None = None
        self._check()

    def _check(self) -> None:
        unknown = self.traits - TRAITS.keys()
        assert not unknown, f"{self.type}: unknown traits {unknown}"
        names = {s.name for s in self.inputs}
        assert self.no_need_buffer <= names, f"{self.type}: no_need_buffer names no input"
        assert self.read_for.keys() <= names, f"{self.type}: read_for names no input"
        assert {*self.read_for.values()} <= {s.name for s in self.outputs}, f"{self.type}: read_for names no output"
        assert {*self.inplace.values()} <= names, f"{self.type}: inplace names no input"
        assert self.strided <= names | {s.name for s in self.outputs}, f"{self.type}: strided names no slot"
        assert self.reference.__doc__, f"{self.type} has no docstring"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.reference(*args, **kwargs)

    def unread(self, written: Collection[str]) -> frozenset[str]:
        """The input slots of which only shape and type matter where these output slots are computed."""
        if not self.read_for:
            return self.no_need_buffer
        return self.no_need_buffer | {slot for slot, output in self.read_for.items() if output not in written}

    def __repr__(self) -> str:
        return f"<op {self.type}({', '.join(s.name for s in self.inputs)})>"

    # decorators that hang the other facts on the operator

    def infer(self, function: Callable[..., Any]) -> OpDef:
        """Output types from input types: `_(X, ..., *, attrs) -> TensorType or a tuple of them`.

        Without one, every output has the type of the first input.
        """
        self.infer_function = _named(function, self, "infer")
        return self

    def grad(self, function: Callable[..., Any]) -> OpDef:
        """The gradient rule: `_(g, <what backward keeps>, Out_grad, *, attrs)`.

        Parameters name input slots, output slots and `<output slot>_grad`: exactly these values are kept
        for backward. A loss that depends on another float output is refused. The rule emits operators
        through `g` (and the operators on variables) and returns the gradients of the input slots in
        their order, None where there is none.
        """
        self.grad_function = _named(function, self, "grad")
        return self

    def samples(self, function: Callable[..., Any]) -> OpDef:
        """Inputs for the tests: `_(rng)` yields (inputs tuple, attrs dict) pairs in float64."""
        self.samples_function = _named(function, self, "samples")
        return self

    def cuda_rows(self, function: Callable[..., Any]) -> OpDef:
        """How fused kernels compute a row in registers: `_(r)` writes C++ with a RowText.

        kernels/cuda/fused/row_members.py has RowText. Without one an operator on rows stays alone.
        """
        self.cuda_rows_function = _named(function, self, "cuda_rows")
        return self

    # what others ask of it

    @cached_property
    def _input_set(self) -> frozenset[str]:
        return frozenset(self.input_names)

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.inputs)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.outputs)

    @cached_property
    def row_slot(self) -> str:
        """The input slot whose rows an operator on rows works on."""
        return (self.rows.of if self.rows is not None else "") or self.input_names[0]

    @property
    def differentiable(self) -> bool:
        return "nondifferentiable" not in self.traits

    @cached_property
    def injected(self) -> frozenset[str]:
        """The names of INJECTED that the CPU kernel takes."""
        return INJECTED & inspect.signature(self.cpu_kernel).parameters.keys()

    @cached_property
    def injected_by_reference(self) -> frozenset[str]:
        """The names of INJECTED that the reference takes."""
        return INJECTED & inspect.signature(self.reference).parameters.keys()

    @cached_property
    def cpu_kernel(self) -> Callable[..., Any]:
        """The function that CPUPlace runs: `cpu="module:function"` or the reference itself."""
        if self.cpu is None:
            return self.reference
        module, function = self.cpu.split(":")
        return getattr(importlib.import_module(module), function)

    @property
    def is_expression(self) -> bool:
        """Whether its GPU kernel is its expressions and nothing else: a thread reads all it needs before it writes."""
        return self.cuda is not None and self.gpu is None and "pointwise" not in self.traits

    @cached_property
    def gpu_bind(self) -> Callable[..., None]:
        """The function that records this operator's calls for CUDAPlace: `bind(binder, ins, outs, attrs)`."""
        if self.gpu is not None:
            return getattr(_cuda_module(self.gpu), self.type)
        if self.cuda is not None:
            bind = "bind_expression" if self.is_expression else "bind_gradients"
            return partial(getattr(_cuda_module("elementwise.elementwise"), bind), self.cuda)
        if self.shows is not None:
            return partial(_cuda_module("movement.movement").bind_shown, self.shows)
        if self.joins is not None:
            return partial(_cuda_module("movement.movement").bind_joined, self.joins)
        return partial(_without_kernel, self.type)  # refuses where sizes and the user's line are known

    @cached_property
    def grad_parameters(self) -> tuple[str, ...]:
        """The values that the gradient rule reads: its positional parameters after `g`."""
        assert self.grad_function is not None
        parameters = inspect.signature(self.grad_function).parameters.values()
        return tuple(p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD)[1:]

    @cached_property
    def optional_grads(self) -> frozenset[str]:
        """Parameters of the gradient rule that may be None."""
        assert self.grad_function is not None
        parameters = inspect.signature(self.grad_function).parameters.values()
        return frozenset(p.name for p in parameters if p.default is None)

    def bind_inputs(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, list[Any]]:
        """{slot: variables} from a call's arguments; takes the slots out of `kwargs`."""
        if len(args) > len(self.inputs):
            raise ProgramError(f"{self.type} takes {len(self.inputs)} inputs, {len(args)} were given")
        given = dict(zip(self.input_names, args, strict=False))
        for slot in self.inputs:
            if slot.name in kwargs:
                require(slot.name not in given, f"input {slot.name} is given twice", ProgramError)
                given[slot.name] = kwargs.pop(slot.name)
        bound = {}
        for slot in self.inputs:
            value = given.get(slot.name)
            if slot.variadic and value is not None:
                bound[slot.name] = list(value)
            elif value is not None:
                bound[slot.name] = [value]
        return bound

    def check_inputs(self, bound: Mapping[str, Sequence[Any]]) -> None:
        """Every slot that must be there is there, and no other."""
        if not bound.keys() <= self._input_set:
            unknown = next(name for name in bound if name not in self._input_set)
            raise_unknown(f"input slot of {self.type}", unknown, self.input_names, ProgramError)
        for name, optional, variadic in self.inputs:
            number = len(bound.get(name, ()))
            if number == 0 and not optional:
                raise ProgramError(f"{name} is an empty list" if variadic else f"input {name} is missing")
            if number > 1 and not variadic:
                raise ProgramError(f"input {name} takes one variable")

    def bind_attrs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All attributes in canonical form; unknown names and wrong types are refused."""
        for name in given.keys() - self.attrs.keys():
            raise_unknown(f"attribute of {self.type}", name, self.attrs, AttrError)
        bound = {}
        for name, attr in self.attrs.items():
            if name in given:
                try:
                    bound[name] = attr.coerce(given[name])
                except MinigraphError as problem:
                    raise AttrError(f"attribute {name}: {problem.fact}", hint=problem.hint) from None
                except (TypeError, OverflowError):
                    shown = shortened(repr(given[name]))
                    raise AttrError(f"attribute {name} must be {attr.words}, not {shown}") from None
            else:
                require(
                    attr.default is not inspect.Parameter.empty, f"attribute {name} is missing", AttrError
                )
                bound[name] = attr.default
        return bound

    def infer_types(
        self, inputs: Mapping[str, Sequence[TensorType]], attrs: Mapping[str, Any]
    ) -> dict[str, list[TensorType]]:
        """{output slot: types} of all outputs that this call can have."""
        types = [
            None if not (given := inputs.get(name)) else tuple(given) if variadic else given[0]
            for name, _, variadic in self.inputs
        ]
        if self.infer_function is None:
            first: Any = types[0][0] if isinstance(types[0], tuple) else types[0]
            return {s.name: [first] for s in self.outputs}
        key = self.infer_function, *types, *attrs.items()  # layers of one shape ask the same: what was found is kept
        found = self._inferred.get(key)
        if found is None:
            found = self.infer_function(*(list(t) if isinstance(t, tuple) else t for t in types), **attrs)
            found = found if isinstance(found, tuple) else (found,)
            if len(self._inferred) >= INFERRED_KEPT:
                self._inferred.clear()
            self._inferred[key] = found
        return {
            s.name: list(t) if s.variadic else [t]
            for s, t in zip(self.outputs, found, strict=True)
            if t is not None
        }


def op(outputs: str | Callable[..., Any] = "Out", **facts: Any) -> Any:
    """Define an operator from its reference function; `outputs` lists output slots, `?` optional, `*` a list.

    traits           names of TRAITS
    no_need_buffer   input slots of which only shape and type are used, never the values
    read_for         {input slot: the only output slot that is computed from its values}
    inplace          {output slot: input slot} whose array the output may take over
    copies           {output slot: input slot} that is the same where both have one type; {output slot: (input slot,
                     another)} where that other one is 1 everywhere
    strided          slots that its GPU kernels read or write by strides: rows of elements side by side, which begin
                     at multiples of 16 bytes
    cpu              "module:function", where the reference would waste memory or time on a CPU
    cuda             C++ expression of one element, in which slots and attributes that are numbers are variables
                     and C is the type computed in: "X < C(0) ? C(0) : X"; {output slot: expression} for several
                     outputs; or a function from attributes to one of these. With the trait pointwise what belongs
                     to an operand that was broadcast is summed
    gpu              module of minigraph.kernels.cuda whose function of this name binds the operator where that is no
                     kernel for its expressions; fused kernels take these all the same
    shows            what its outputs show of the memory of the first input whose values are read: a function of
                     kernels/cuda/record/views.py from inputs, outputs and attributes to a Buffer for each output. On a
                     CPU the reference gives a view
    joins            likewise where each of its inputs lies in its output
    rows             how it works on rows, where it does (Rows)
    """
    if callable(outputs):
        return op()(outputs)

    def define(reference: Callable[..., Any]) -> OpDef:
        opdef = OpDef(reference, outputs, **facts)
        assert opdef.type not in OPS, f"op {opdef.type} is defined twice"
        OPS[opdef.type] = opdef
        return opdef

    return define


def get_op(op_type: str) -> OpDef:
    """The definition of an operator type; a ProgramError with the nearest name if there is none."""
    found = OPS.get(op_type)
    if found is None:
        raise_unknown("operator type", op_type, OPS, ProgramError)
    return found


def _cuda_module(name: str) -> Any:
    return importlib.import_module(f"minigraph.kernels.cuda.{name}")


def _named(function: Callable[..., Any], opdef: OpDef, fact: str) -> Callable[..., Any]:
    function.__name__ = fact
    function.__qualname__ = f"{opdef.type}.{fact}"
    return function


def _parse_slot(text: str) -> Slot:
    text = text.strip()
    return Slot(text.rstrip("?*"), "?" in text, "*" in text)


def _read_signature(reference: Callable[..., Any]) -> tuple[tuple[Slot, ...], dict[str, Attr]]:
    inputs, attrs = [], {}
    for p in inspect.signature(reference).parameters.values():
        if p.kind == p.KEYWORD_ONLY:
            if p.name not in INJECTED:
                attrs[p.name] = read_attr(p)
        else:
            inputs.append(Slot(p.name, p.default is None, p.annotation == "Arrays"))
    return tuple(inputs), attrs
