"""What a type of operator is: its reference function, and the facts that hang on it.

    @op("Out", traits={"elementwise"})
    def relu(X):
        \"\"\"max(X, 0)\"\"\"
        return np.maximum(X, 0)

The NumPy function is the operator's definition and the float64 oracle of every test. Its
positional parameters are the input slots (a default of None makes a slot optional, the annotation
`Arrays` makes it a list), its keyword-only parameters are the attributes with their types and
defaults, its docstring is the documentation. All of it is written once and read from there, by
`signature.py`.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from minigraph.errors import raise_unknown
from minigraph.errors.kinds import NO_KERNEL, UNKNOWN_NAME
from minigraph.types import TensorType

from .gradients import handing_over, samples_behind
from .rows import Rows
from .signature import INJECTED, Signature

OPS: dict[str, OpDef] = {}

TRAITS = {
    "elementwise": "each output element depends on the input elements at its (broadcast) place",
    "pointwise": "as elementwise, except where an operand was broadcast: its gradient is a sum",
    "uniform": "all elements of the output are equal",
    "commutative": "X and Y may change places",
    "in_place": "its GPU kernels may write over what `inplace` names; without it over any input of the output's type",
    "one_piece": "plans lay the arrays that it writes one behind the other, so that its kernel needs no copy of them",
    "random": "draws random numbers: its kernel takes rng",
    "nondifferentiable": "outputs carry no gradient: their slope is 0 wherever there is one, or it updates parameters",
    "optimizer": "updates parameters, which have no slope; dropped by clone(for_test=True)",
    "layerwise": "updates an element by norms of its whole parameter, so no rank can update a piece alone",
    "statistic": "keeps a running statistic of values that others compute with: it runs where those do",
    "collective": "all ranks of a group run it together, in the same order",
    "side_effect": "must run even if none of its outputs is read",
    "reports": "may refuse values when it runs: a bad index, a label that is no class, output that cannot be written",
    "infinite": "an infinity in an optional output is a value of its own, no overflow",
    "norm": "`<its type>_again` gives its first output again, from its inputs and its other outputs",
    "loss": "has an output Loss with an element for each row, and a grad operator that reads Loss_grad",
    "control": "the host decides in each run what it does: a plan is cut there, and it may hold blocks of operators",
    "guarded": "its GPU kernels look at faults and write over what a Scope holds only where the run has none",
}

Types = Mapping[str, Any]  # slot -> TensorType | list[TensorType] | None


def _without_kernel(op_type: str, *_: Any) -> None:
    raise NO_KERNEL(
        f"{op_type} has no kernel for CUDAPlace", hint='run it on CPUPlace(), or define it with cuda="an expression'
        ' in C++" (see ops/elementwise/unary.py) or gpu=',
    )  # fmt: skip


INFERRED_KEPT = 256  # answers of type inference for each operator type
WIDE = 1000  # types and attributes; a call with more of them is like no other, and its answer would take megabytes
UNCHANGING = frozenset({int, float, bool, str, tuple, type(None)})  # a tuple that an attribute takes holds numbers


class OpDef(Signature):
    """The definition of one type of operator: its signature, and the facts that hang on it."""

    def __init__(
        self, reference: Callable[..., Any], outputs: str, *,
        traits: Iterable[str] = (),
        no_need_buffer: Iterable[str] = (),
        read_for: Mapping[str, str | tuple[str, ...]] | None = None,
        inplace: Mapping[str, str] | None = None,
        frees: Mapping[str, str] | None = None,
        copies: Mapping[str, str | tuple[str, str]] | None = None,
        strided: Iterable[str] = (),
        cpu: str | None = None,
        gpu: str | None = None,
        cuda: Any = None,
        shows: Callable[..., list[Any]] | None = None,
        joins: Callable[..., list[Any]] | None = None,
        rows: Rows | None = None,
        blocks: Mapping[str, Sequence[str]] | None = None,
        beside: Callable[[Types, Mapping[str, Any]], Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(reference, outputs)
        self.traits, self.no_need_buffer, self.strided = map(frozenset, (traits, no_need_buffer, strided))
        self.read_for = {slot: {x} if isinstance(x, str) else {*x} for slot, x in (read_for or {}).items()}
        self.copies = {out: (x, "") if isinstance(x, str) else x for out, x in (copies or {}).items()}
        self.reads_all = not (self.no_need_buffer or self.read_for)  # as most operators
        self.cpu, self.gpu, self.cuda, self.rows, self.beside = cpu, gpu, cuda, rows, beside
        self.frees, self.inplace = dict(frees or {}), dict(inplace or {})
        self.shows, self.joins, self.blocks = shows, joins, dict(blocks or {})
        self._inferred: dict[Any, tuple[Any, ...]] = {}  # what infer found for the latest types and attributes
        self._resolved: dict[Any, tuple[Any, ...]] = {}  # and what `resolved` found
        self.infer_function: Callable[..., Any] | None = None
        self.grad_function: Callable[..., Any] | None = None
        self.samples_function: Callable[..., Any] | None = None
        self.cuda_rows_function: Callable[..., Any] | None = None
        self.flops_function: Callable[..., int] | None = None
        _check(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.reference(*args, **kwargs)

    def unread(self, written: Collection[str]) -> frozenset[str]:
        """The input slots of which only shape and type matter where these output slots are computed."""
        return _unread(self, tuple(written)) if self.read_for else self.no_need_buffer

    def __repr__(self) -> str:
        return f"<op {self.type}({', '.join(s.name for s in self.inputs)})>"

    # decorators that hang the other facts on the operator

    def infer(self, function: Callable[..., Any]) -> OpDef:
        """Output types from input types: `_(X, ..., *, attrs) -> TensorType or a tuple of them`.

        Without one, an output X_grad has the type of the input X, any other that of the first input.
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

    def flops(self, function: Callable[..., int]) -> OpDef:
        """Floating-point operations of a call, for summaries: `_(types, attrs)`, {slot: type} of inputs and outputs.

        Without one it is one for each element of the largest float slot; none where the outputs show the input.
        """
        self.flops_function = _named(function, self, "flops")
        return self

    # what others ask of it

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

    def resolved(
        self, inputs: Mapping[str, Sequence[Any]], attrs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Mapping[str, list[TensorType]]]:
        """(attributes in canonical form, output types) of a call; what does not fit is refused.

        inputs   {slot: variables};  attrs: as they were given
        Layers of one shape give the same values, not only equal ones: what was found for these is kept.
        """
        given, types = attrs.values(), [(slot, *[v.type for v in vs]) for slot, vs in inputs.items()]
        key = self.infer_function, *attrs, *map(id, given), *[id(x) for own in types for x in own]
        known = self._resolved.get(key)
        if known is None:
            self.check_inputs(inputs)
            bound = self.bind_attrs(attrs)
            known = bound, self.infer_types({s: own for s, *own in types}, bound), [*given, types]
            if len(key) < WIDE and all(type(value) in UNCHANGING or isinstance(value, np.dtype) for value in given):
                if len(self._resolved) >= INFERRED_KEPT:
                    self._resolved.clear()
                self._resolved[key] = known  # with what its ids are of, so that nothing else gets these
        return dict(known[0]), known[1]

    def infer_types(
        self, inputs: Mapping[str, Sequence[TensorType]], attrs: Mapping[str, Any]
    ) -> dict[str, list[TensorType]]:
        """{output slot: types} of all outputs that this call can have."""
        if self.infer_function is None:
            first, given = self.input_names[0], {f"{name}_grad": inputs.get(name, ()) for name in self.input_names}
            return {s.name: [*found] for s in self.outputs if (found := given.get(s.name, inputs[first][:1]))}
        types = [
            None if not (given := inputs.get(name)) else tuple(given) if variadic else given[0]
            for name, _, variadic in self.inputs
        ]
        key = self.infer_function, *types, *attrs.items()  # layers of one shape ask the same: what was found is kept
        results = self._inferred.get(key)
        if results is None:
            results = self.infer_function(*(list(t) if isinstance(t, tuple) else t for t in types), **attrs)
            results = results if isinstance(results, tuple) else (results,)
            given = {id(t): t for some in inputs.values() for t in some}.values()  # of many, few are others
            if "control" not in self.traits and all(t.may_be_kept for t in given):  # nor blocks, and their program
                if len(self._inferred) >= INFERRED_KEPT:
                    self._inferred.clear()
                self._inferred[key] = results
        return {
            s.name: list(t) if s.variadic else [t]
            for s, t in zip(self.outputs, results, strict=True)
            if t is not None
        }


@lru_cache(maxsize=4096)
def _unread(opdef: OpDef, written: tuple[str, ...]) -> frozenset[str]:
    return opdef.no_need_buffer | {slot for slot, outs in opdef.read_for.items() if outs.isdisjoint(written)}


def _check(opdef: OpDef) -> None:
    """The facts of a definition fit each other."""
    unknown = opdef.traits - TRAITS.keys()
    assert not unknown, f"{opdef.type}: unknown traits {unknown}"
    names = {s.name for s in opdef.inputs}
    assert opdef.no_need_buffer <= names, f"{opdef.type}: no_need_buffer names no input"
    assert opdef.read_for.keys() <= names, f"{opdef.type}: read_for names no input"
    results = {s.name for s in opdef.outputs}
    assert {*itertools.chain(*opdef.read_for.values())} <= results, f"{opdef.type}: read_for names no output"
    assert {*opdef.inplace.values(), *opdef.frees.values()} <= names, f"{opdef.type}: inplace or frees names no input"
    assert opdef.strided <= names | {s.name for s in opdef.outputs}, f"{opdef.type}: strided names no slot"
    assert {*itertools.chain(*opdef.blocks.values())} <= names, f"{opdef.type}: blocks names no input"
    assert opdef.reference.__doc__, f"{opdef.type} has no docstring"


def op(outputs: str | Callable[..., Any] = "Out", of: OpDef | None = None, **facts: Any) -> Any:
    """Define an operator from its reference function; `outputs` lists output slots, `?` optional, `*` a list.

    of               the operator whose gradient it is: its slots name the values that backward keeps. Both have
                     attributes of the same names. Samples are those of `of` with gradients, unless it has its own
    traits           names of TRAITS
    no_need_buffer   input slots of which only shape and type are used, never the values
    read_for         {input slot: the output slot, or slots, that are computed from its values}
    inplace          {output slot: input slot} whose array the output may take over
    frees            {output slot: input slot} that its GPU kernels do not need when that output is written, which comes
                     before others then; but not where it takes over an array, which others are computed from
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
    joins            a function of kernels/cuda/record/views.py to the Buffer of its output in which each input lies
    rows             how it works on rows, where it does (Rows)
    blocks           {attribute that is a block: list slots that the block takes, one behind the other}
    beside           what its kernels need beside operands and results, for passes: a function of types, as those of
                     `flops`, and attributes to a Beside of kernels/chunks.py. Sizes may be -1. By default nothing
    """
    if callable(outputs):
        return op()(outputs)

    def define(reference: Callable[..., Any]) -> OpDef:
        opdef = OpDef(reference, outputs, **facts)
        assert opdef.type not in OPS, f"op {opdef.type} is defined twice"
        OPS[opdef.type] = opdef
        if of is not None:
            of.grad(handing_over(of, opdef))
            opdef.samples(samples_behind(of, opdef))
        return opdef

    return define


def for_arrays(opdef: OpDef) -> Callable[[Callable[..., Any]], OpDef]:
    """A decorator: the step of a plan on a CPU, made once, `_(X, ..., *, attrs, needs, out, moving) -> step`, or None.

    `step()` does what the reference does with these arrays, whatever they hold then; its results are in `out`.
    `moving` names input slots with another array in each run, of the same type, which are given to `step`.
    """

    def hang(function: Callable[..., Any]) -> OpDef:
        opdef.reference.for_arrays = _named(function, opdef, "for_arrays")  # type: ignore[attr-defined]
        return opdef

    return hang


def get_op(op_type: str) -> OpDef:
    """The definition of an operator type; a ProgramError with the nearest name if there is none."""
    opdef = OPS.get(op_type)
    if opdef is None:
        raise_unknown("operator type", op_type, OPS, UNKNOWN_NAME)
    return opdef


def _cuda_module(name: str) -> Any:
    return importlib.import_module(f"minigraph.kernels.cuda.{name}")


def _named(function: Callable[..., Any], opdef: OpDef, fact: str) -> Callable[..., Any]:
    function.__name__ = fact
    function.__qualname__ = f"{opdef.type}.{fact}"
    return function
