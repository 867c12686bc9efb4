"""Layer: a network's part that owns Parameters and other Layers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from minigraph.errors import ProgramError, call_site
from minigraph.program import Parameter, Variable, unique_name
from minigraph.program.default_dtype import default_dtype
from minigraph.types import as_dtype

from .initializer import Initializer
from .parameter import create_parameter


class Layer:
    """Base of all layers: `layer(x)` calls `forward(x)`, which appends operators.

    Parameters and Layers that are set as attributes are found by parameters() and sublayers().
    training  read by dropout; train() and eval() set it for the layer and all below
    """

    training: bool

    def __init__(self, name_scope: str | None = None, dtype: Any = None) -> None:
        self._parameters: dict[str, Parameter] = {}
        self._sub_layers: dict[str, Layer] = {}
        self._full_name = unique_name.generate(name_scope or _snake_case(type(self).__name__))
        self._dtype = as_dtype(dtype) if dtype is not None else default_dtype()
        self.training = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The operators that a subclass appends for its inputs."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, (Parameter, Layer)) and "_parameters" not in self.__dict__:
            raise ProgramError(
                f"{type(self).__name__}.{name} is set before Layer.__init__ ran", site=call_site(),
                hint="call super().__init__() first",
            )  # fmt: skip
        for registry in (self.__dict__.get("_parameters", {}), self.__dict__.get("_sub_layers", {})):
            registry.pop(name, None)
        if isinstance(value, Parameter):
            self._parameters[name] = value
        elif isinstance(value, Layer):
            self._sub_layers[name] = value
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._parameters.pop(name, None)
        self._sub_layers.pop(name, None)
        object.__delattr__(self, name)

    def full_name(self) -> str:
        """The name that stands in the names of its parameters, for example linear_0."""
        return self._full_name

    def create_parameter(
        self, shape: Any, attr: Any = None, dtype: Any = None, is_bias: bool = False,
        default_initializer: Initializer | None = None,
    ) -> Parameter | None:  # fmt: skip
        """A Parameter called after the layer; None for attr=False."""
        dtype = dtype if dtype is not None else self._dtype
        return create_parameter(self._full_name, shape, dtype, attr, is_bias, default_initializer)

    def add_parameter(self, name: str, parameter: Parameter | None) -> Parameter | None:
        """Set `parameter` as the attribute `name`."""
        setattr(self, name, parameter)
        return parameter

    def add_sublayer(self, name: str, sublayer: Layer) -> Layer:
        """Set `sublayer` as the attribute `name`."""
        if not isinstance(sublayer, Layer):
            raise ProgramError(f"sublayer {name} must be a Layer, is {sublayer!r}", site=call_site())
        setattr(self, name, sublayer)
        return sublayer

    def named_children(self) -> Iterator[tuple[str, Layer]]:
        """(name, layer) of the layers directly below."""
        yield from self._sub_layers.items()

    def children(self) -> Iterator[Layer]:
        yield from self._sub_layers.values()

    def named_sublayers(
        self, prefix: str = "", include_self: bool = False, _seen: set[int] | None = None
    ) -> Iterator[tuple[str, Layer]]:
        """(path, layer) of all layers below, each once, from the top down."""
        seen = set() if _seen is None else _seen
        if id(self) in seen:
            return
        seen.add(id(self))
        if include_self:
            yield prefix, self
        for name, layer in self._sub_layers.items():
            yield from layer.named_sublayers(f"{prefix}.{name}" if prefix else name, True, seen)

    def sublayers(self, include_self: bool = False) -> list[Layer]:
        """All layers below, each once."""
        return [layer for _, layer in self.named_sublayers(include_self=include_self)]

    def named_parameters(self, prefix: str = "", include_sublayers: bool = True) -> Iterator[tuple[str, Parameter]]:
        """(path, parameter) pairs, a shared parameter once."""
        seen: set[int] = set()
        layers = self.named_sublayers(prefix, include_self=True) if include_sublayers else [(prefix, self)]
        for path, layer in layers:
            for name, parameter in layer._parameters.items():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield (f"{path}.{name}" if path else name), parameter

    def parameters(self, include_sublayers: bool = True) -> list[Parameter]:
        """All parameters, each once."""
        return [p for _, p in self.named_parameters(include_sublayers=include_sublayers)]

    def state_dict(self) -> dict[str, Variable]:
        """{path: Parameter}; the values are in the Scope, `program.state_dict()` reads them."""
        return dict(self.named_parameters())

    def train(self) -> None:
        """Operators that are appended from now on are those of training."""
        for layer in self.sublayers(include_self=True):
            layer.training = True

    def eval(self) -> None:
        """Operators that are appended from now on are those of inference."""
        for layer in self.sublayers(include_self=True):
            layer.training = False

    def extra_repr(self) -> str:
        """Sizes and options for repr()."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {layer!r}".replace("\n", "\n  ") for name, layer in self._sub_layers.items()]
        inside = "\n  ".join(["", *lines]) + "\n" if lines else self.extra_repr()
        return f"{type(self).__name__}({inside})"


def _snake_case(name: str) -> str:
    """LayerNorm -> layer_norm, GELU -> gelu, as Paddle names layers."""
    return re.sub("([a-z0-9])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)).lower()
