"""Layers that only call a function: one line each, made from the function's own signature and checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from .layer import Layer


class FunctionalLayer(Layer):
    """Base of a layer without parameters: `layer(x)` is `function(x, **options)`.

        class ELU(FunctionalLayer, function=F.elu):
            \"\"\"x where x > 0, else alpha * (exp(x) - 1).\"\"\"

    inputs   so many first arguments of the function are those of `layer(...)`
    options  names in the order in which the layer takes them, where it is not the function's; `defaults` changes
             what an option is where it is not given
    The options are attributes of the layer. `training` is never one: it is the layer's own.
    """

    function: ClassVar[Callable[..., Any]]
    options: ClassVar[dict[str, inspect.Parameter]]
    takes_training: ClassVar[bool]
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(
        cls, function: Callable[..., Any] | None = None, inputs: int = 1, options: str = "", **defaults: Any
    ) -> None:
        super().__init_subclass__()
        if function is None:  # a subclass of a layer that is one already
            return
        own = dict(list(inspect.signature(function).parameters.items())[inputs:])
        cls.takes_training = own.pop("training", None) is not None
        chosen = {name: own[name] for name in options.split()} if options else own
        for name, value in defaults.items():
            chosen[name] = chosen[name].replace(default=value)
        cls.function, cls.options = staticmethod(function), chosen
        cls.__signature__ = inspect.Signature(list(chosen.values()))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        try:
            given = self.__signature__.bind(*args, **kwargs)
        except TypeError as problem:
            raise TypeError(f"{type(self).__name__}() {problem}") from None
        given.apply_defaults()
        self.__dict__.update(given.arguments)  # past __setattr__: a weight that is passed in is not the layer's own

    def forward(self, *inputs: Any) -> Any:
        given = {name: getattr(self, name) for name in self.options}
        if self.takes_training:
            given["training"] = self.training
        return type(self).function(*inputs, **given)

    def extra_repr(self) -> str:
        shown = {name: getattr(self, name) for name in self.options if name != "name"}
        return ", ".join(f"{name}={value}" for name, value in shown.items())
