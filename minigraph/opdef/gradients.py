"""What follows where an operator is the gradient of one other operator: `@op("X_grad", of=relu)`.

    the rule of relu   emits it: its input slots name the values that backward keeps, its attributes are relu's
    its samples        those of relu, what relu computes of them, and a gradient of that
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from typing import Any

import numpy as np

KIND = Parameter.POSITIONAL_OR_KEYWORD


def handing_over(of: Any, grad: Any) -> Callable[..., Any]:
    """The gradient rule of the operator `of`, which emits `grad`."""
    known = {*of.input_names, *of.output_names, *(f"{name}_grad" for name in of.output_names)}
    strange = [
        *({*grad.input_names} - known), *({*grad.output_names} - {f"{name}_grad" for name in of.input_names}),
        *({*grad.attrs} - {*of.attrs}),
    ]  # fmt: skip
    assert not strange, f"{grad.type}: {', '.join(strange)} is nothing of {of.type}"

    def rule(g: Any, *kept: Any, **attrs: Any) -> tuple[Any, ...]:
        results = g.emit(grad.type, *kept, **{name: attrs[name] for name in grad.attrs})
        found = dict(zip(grad.output_names, results if isinstance(results, tuple) else (results,), strict=True))
        return tuple(found.get(f"{name}_grad") for name in of.input_names)

    kept = {slot.name: slot.optional and slot.name not in of.input_names for slot in grad.inputs}
    may_miss = {True: None, False: Parameter.empty}
    parameters = [Parameter(name, KIND, default=may_miss[gone]) for name, gone in kept.items()]
    rule.__signature__ = Signature([Parameter("g", KIND), *parameters])  # type: ignore[attr-defined]
    return rule


def samples_behind(of: Any, grad: Any) -> Callable[..., Any]:
    """Samples of `grad` from those of the operator `of` whose outputs are floats."""

    def samples(rng: Any) -> Iterator[Any]:
        for inputs, attrs in of.samples_function(rng):
            results = of.reference(*inputs, **of.bind_attrs(attrs))
            values = dict(zip(of.input_names, inputs, strict=False))
            for name, out in zip(of.output_names, results if isinstance(results, tuple) else (results,), strict=True):
                signs, sizes = rng.choice([-1.0, 1.0], np.shape(out)), rng.uniform(0.5, 2.0, np.shape(out))
                values |= {name: out, f"{name}_grad": np.asarray(signs * sizes)}
            if all(np.asarray(values[name]).dtype.kind == "f" for name in of.output_names):
                taken = {name: attrs[name] for name in grad.attrs if name in attrs}
                yield tuple(values.get(name) for name in grad.input_names), taken

    return samples
