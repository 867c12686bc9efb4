"""Layers that hold layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from minigraph.errors import ProgramError, call_site

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
