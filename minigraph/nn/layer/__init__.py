"""Layer: a network's part that owns Parameters and other Layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from minigraph.errors import ProgramError, call_site, raise_unknown
from minigraph.errors.kinds import ORDER, UNKNOWN_NAME
from minigraph.program import Parameter, Variable, default_main_program, unique_name
from minigraph.program.default_dtype import default_dtype
from minigraph.types import as_dtype

from ..hooks import Hook, HookRemoveHelper
from ..initializer import Initializer
from ..parameter import create_parameter


class Layer:
    """Base of all layers: `layer(x)` calls `forward(x)`, which appends operators.

    Parameters and Layers set as attributes are found by parameters() and sublayers(); dropout reads `training`.
    """

    training = True

    def __init__(self, name_scope: str | None = None, dtype: Any = None) -> None:
        self._parameters: dict[str, Parameter] = {}
        self._sub_layers: dict[str, Layer] = {}
        self._buffers: dict[str, tuple[Variable, bool]] = {}
        hooks: list[dict[int, Hook]] = [{}, {}, {}]
        self._pre_hooks, self._post_hooks, self._state_hooks = hooks
        self._full_name = unique_name.generate(name_scope or _snake_case(type(self).__name__))
        self._dtype = as_dtype(dtype) if dtype is not None else default_dtype()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The operators that a subclass appends for its inputs."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for hook in list(self._pre_hooks.values()):
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        out = self.forward(*args, **kwargs)
        for hook in list(self._post_hooks.values()):
            changed = hook(self, args, out)
            out = out if changed is None else changed
        return out

    def register_forward_pre_hook(self, hook: Hook) -> HookRemoveHelper:
        """Call `hook(layer, inputs)` before each forward; what it returns, if not None, are the inputs then."""
        return HookRemoveHelper(self._pre_hooks, hook)

    def register_forward_post_hook(self, hook: Hook) -> HookRemoveHelper:
        """Call `hook(layer, inputs, outputs)` after each forward; what it returns, if not None, is the result then."""
        return HookRemoveHelper(self._post_hooks, hook)

    def register_state_dict_hook(self, hook: Hook) -> HookRemoveHelper:
        """Call `hook(state_dict)` at the end of state_dict(); what it returns, if not None, is the result then."""
        return HookRemoveHelper(self._state_hooks, hook)

    def apply(self, fn: Callable[[Layer], Any]) -> Self:
        """Call `fn` with all layers below, each once, and then with this one."""
        for layer in reversed(self.sublayers(include_self=True)):
            fn(layer)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, (Parameter, Layer)) and "_parameters" not in self.__dict__:
            raise ORDER(
                f"{type(self).__name__}.{name} is set before Layer.__init__ ran", site=call_site(),
                hint="call super().__init__() first",
            )  # fmt: skip
        for registry in ("_parameters", "_sub_layers", "_buffers"):
            self.__dict__.get(registry, {}).pop(name, None)
        if isinstance(value, Parameter):
            self._parameters[name] = value
        elif isinstance(value, Layer):
            self._sub_layers[name] = value
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        for registry in (self._parameters, self._sub_layers, self._buffers):
            registry.pop(name, None)
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

    def register_buffer(self, name: str, tensor: Variable | None, persistable: bool = True) -> None:
        """Set `tensor` as the attribute `name`; with persistable it stands in state_dict()."""
        setattr(self, name, tensor)
        if tensor is not None:
            self._buffers[name] = tensor, persistable

    def named_buffers(self, prefix: str = "", include_sublayers: bool = True) -> Iterator[tuple[str, Variable]]:
        """(path, variable) pairs of what register_buffer() was given, each once."""
        for path, v, _ in self._each_buffer(prefix, include_sublayers):
            yield path, v

    def buffers(self, include_sublayers: bool = True) -> list[Variable]:
        """What register_buffer() was given, each once."""
        return [v for _, v in self.named_buffers(include_sublayers=include_sublayers)]

    def _each_buffer(self, prefix: str, include_sublayers: bool) -> Iterator[tuple[str, Variable, bool]]:
        seen: set[int] = set()
        layers = self.named_sublayers(prefix, include_self=True) if include_sublayers else [(prefix, self)]
        for path, layer in layers:
            for name, (v, kept) in layer._buffers.items():
                if id(v) not in seen:
                    seen.add(id(v))
                    yield (f"{path}.{name}" if path else name), v, kept

    def state_dict(
        self, destination: dict[str, Variable] | None = None, include_sublayers: bool = True,
        structured_name_prefix: str = "", use_hook: bool = True,
    ) -> dict[str, Variable]:  # fmt: skip
        """{path: Parameter or persistable buffer}; the values are in the Scope, `program.state_dict()` reads them."""
        prefix = structured_name_prefix.removesuffix(".")
        found = {} if destination is None else destination
        found.update(self.named_parameters(prefix, include_sublayers))
        found.update({path: v for path, v, kept in self._each_buffer(prefix, include_sublayers) if kept})
        for hook in list(self._state_hooks.values()) if use_hook else ():
            found = hook(found) or found
        return found

    def set_state_dict(self, state_dict: Mapping[str, Any], use_structured_name: bool = True) -> None:
        """Put arrays into the Scope: {path as in state_dict(), or the variable's own name: array}.

        Paths that state_dict() does not have are an error, and then nothing is changed; what is not named stays.
        """
        own = self.state_dict(use_hook=False)
        known = own if use_structured_name else {v.name: v for v in own.values()}
        for path, value in state_dict.items():
            _check_state(self, path, value, known)
        program = next(iter(own.values())).program if own else default_main_program()
        program.set_state_dict({known[path].name: value for path, value in state_dict.items()})

    set_dict = load_dict = set_state_dict

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


def _check_state(layer: Layer, path: str, value: Any, known: Mapping[str, Variable]) -> None:
    """A value for a state that the layer has."""
    if path not in known:
        raise_unknown(f"state of {type(layer).__name__}", path, known, UNKNOWN_NAME)
    if isinstance(value, Variable):
        raise ProgramError(
            f"the value of {path} is the variable {value}", site=call_site(),
            hint="program.state_dict() has the arrays, by the variables' names",
        )  # fmt: skip


def _snake_case(name: str) -> str:
    """BatchNorm1D -> batch_norm1d, GLU -> glu, as Paddle names layers."""
    return re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)).lower()
