"""ParamAttr: what a layer is told about a parameter that it creates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigraph.errors import ProgramError, call_site, require
from minigraph.errors.kinds import NAME


class ParamAttr:
    """Facts of a parameter.

    name           its name; a second layer that uses the name of an existing parameter of the same
                   shape and type shares it
    initializer    one of nn.initializer
    learning_rate  factor on the optimizer's rate
    regularizer    L1Decay or L2Decay, beats the optimizer's own
    trainable      False: no gradient, no update
    need_clip      False leaves it out of gradient clipping
    """

    def __init__(
        self,
        name: str | None = None,
        initializer: Callable[..., Any] | None = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = True,
        need_clip: bool = True,
    ) -> None:
        require(name is None or isinstance(name, str), f"name must be a str, is {name!r}", NAME)
        require(
            initializer is None or callable(initializer), f"initializer {initializer!r} is none of nn.initializer",
            ProgramError, "for example nn.initializer.Constant(0.0)",
        )  # fmt: skip
        require(
            isinstance(learning_rate, (int, float)) and learning_rate >= 0,
            f"learning_rate is a factor >= 0 on the optimizer's rate, not {learning_rate!r}", ProgramError,
        )  # fmt: skip
        self.name, self.initializer, self.learning_rate = name, initializer, float(learning_rate)
        self.regularizer, self.trainable, self.need_clip = regularizer, bool(trainable), bool(need_clip)
        self.do_model_average = do_model_average

    @staticmethod
    def of(attr: Any) -> ParamAttr | None:
        """The ParamAttr for a layer's `weight_attr`; None for False, which means no parameter.

        None and True stand for the defaults, a str for a name, an initializer for itself.
        """
        if attr is False:
            return None
        if attr is None or attr is True:
            return ParamAttr()
        if isinstance(attr, ParamAttr):
            return attr
        if isinstance(attr, str):
            return ParamAttr(name=attr)
        if callable(attr):
            return ParamAttr(initializer=attr)
        raise ProgramError(
            f"a parameter attribute is a ParamAttr, a name, an initializer, None or False, not {attr!r}",
            site=call_site(),
        )  # fmt: skip

    def __repr__(self) -> str:
        facts = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if v != vars(_DEFAULT)[k])
        return f"ParamAttr({facts})"


_DEFAULT = ParamAttr()
