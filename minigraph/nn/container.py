"""Layers that hold layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from minigraph.errors import ProgramError, call_site, nearest
from minigraph.errors.kinds import UNKNOWN_NAME
from minigraph.program import Parameter

from .layer import Layer


class Sequential(Layer):
    """Layers applied one after the other: `Sequential(a, b)` or `Sequential(("first", a), ("second", b))`."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        if len(layers) == 1 and isinstance(layers[0], list):
            layers = tuple(layers[0])
        for i, layer in enumerate(layers):
            name, layer = layer if isinstance(layer, tuple) else (str(i), layer)
            self.add_sublayer(name, layer)

    def forward(self, input: Any) -> Any:
        for layer in self.children():
            input = layer(input)
        return input

    def __getitem__(self, index: int | slice | str) -> Any:
        if isinstance(index, str):
            return self._sub_layers[index]
        layers = list(self.children())
        return Sequential(*layers[index]) if isinstance(index, slice) else layers[index]

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Layer]:
        return self.children()


class LayerList(Layer):
    """A list of layers; it has no forward of its own."""

    def __init__(self, sublayers: Iterable[Layer] | None = None) -> None:
        super().__init__()
        self.extend(sublayers or ())

    def append(self, sublayer: Layer) -> LayerList:
        self.add_sublayer(str(len(self)), sublayer)
        return self

    def extend(self, sublayers: Iterable[Layer]) -> LayerList:
        for layer in sublayers:
            self.append(layer)
        return self

    def insert(self, index: int, sublayer: Layer) -> None:
        """Put `sublayer` before the one at `index`."""
        layers = list(self.children())
        layers.insert(index, sublayer)
        self._replace(layers)

    def __getitem__(self, index: int | slice) -> Any:
        layers = list(self.children())
        return LayerList(layers[index]) if isinstance(index, slice) else layers[index]

    def __setitem__(self, index: int, sublayer: Layer) -> None:
        layers = list(self.children())
        layers[index] = sublayer
        self._replace(layers)

    def __delitem__(self, index: int | slice) -> None:
        layers = list(self.children())
        del layers[index]
        self._replace(layers)

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Layer]:
        return self.children()

    def _replace(self, layers: list[Layer]) -> None:
        for layer in layers:
            if not isinstance(layer, Layer):
                raise ProgramError(f"LayerList holds Layers, not {layer!r}", site=call_site())
        for name in list(self._sub_layers):
            delattr(self, name)
        self.extend(layers)


class LayerDict(Layer):
    """Layers by name; it has no forward of its own. `sublayers`: a dict, or (name, layer) pairs."""

    def __init__(self, sublayers: Mapping[str, Layer] | Iterable[tuple[str, Layer]] | None = None) -> None:
        super().__init__()
        self.update(sublayers or ())

    def update(self, sublayers: Mapping[str, Layer] | Iterable[tuple[str, Layer]]) -> None:
        """Set layers by name."""
        for name, layer in dict(sublayers).items():
            self[name] = layer

    def pop(self, key: str) -> Layer:
        """Take the layer `key` out."""
        layer = self[key]
        del self[key]
        return layer

    def clear(self) -> None:
        """Take all layers out."""
        self._sub_layers.clear()

    def keys(self) -> Iterable[str]:
        return self._sub_layers.keys()

    def values(self) -> Iterable[Layer]:
        return self._sub_layers.values()

    def items(self) -> Iterable[tuple[str, Layer]]:
        return self._sub_layers.items()

    def __getitem__(self, key: str) -> Layer:
        if key not in self._sub_layers:
            raise UNKNOWN_NAME(
                f"LayerDict has no layer {key!r}", site=call_site(), hint=nearest(str(key), self._sub_layers)
            )
        return self._sub_layers[key]

    def __setitem__(self, key: str, sublayer: Layer) -> None:
        if not isinstance(sublayer, Layer):
            raise ProgramError(f"LayerDict holds Layers, not {sublayer!r}", site=call_site())
        self._sub_layers[key] = sublayer  # not as an attribute: a name may be that of a method, such as `update`

    def __delitem__(self, key: str) -> None:
        self[key]  # refuses a name that is not there
        del self._sub_layers[key]

    def __contains__(self, key: object) -> bool:
        return key in self._sub_layers

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sub_layers)


class ParameterList(Layer):
    """A list of Parameters, which parameters() finds; it has no forward of its own."""

    def __init__(self, parameters: Iterable[Parameter] | None = None) -> None:
        super().__init__()
        for parameter in parameters or ():
            self.append(parameter)

    def append(self, parameter: Parameter) -> ParameterList:
        self._parameters[str(len(self))] = _parameter(parameter)
        return self

    def __getitem__(self, index: int) -> Parameter:
        return list(self._parameters.values())[index]

    def __setitem__(self, index: int, parameter: Parameter) -> None:
        self._parameters[list(self._parameters)[index]] = _parameter(parameter)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._parameters.values())


def _parameter(value: Any) -> Parameter:
    if not isinstance(value, Parameter):
        raise ProgramError(f"ParameterList holds Parameters, not {value!r}", site=call_site())
    return value


__all__ = ["LayerDict", "LayerList", "ParameterList", "Sequential"]
