"""The argument `act` of static.nn's functions."""

from __future__ import annotations

from minigraph.errors import AttrError, raise_unknown
from minigraph.nn.functional import activation as activations
from minigraph.program import Variable


def check_activation(call: str, act: str | None) -> None:
    if act is not None and act not in activations.__all__:
        raise_unknown(f"activation of {call}", act, activations.__all__, AttrError)


def activated(x: Variable, act: str | None, name: str) -> Variable:
    """x, or the function `act` of nn/functional/activation.py of it, in variables called after `name`."""
    return x if act is None else getattr(activations, act)(x, name=name)
