"""Which functions of this package take Variables in the place of numbers, and for which arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .calls import waiting

OF_FUNCTIONS = {
    "arange": "start end step", "argmax": "axis", "argmin": "axis", "argsort": "axis", "bincount": "minlength",
    "broadcast_to": "shape", "chunk": "axis", "concat": "axis", "crop": "shape offsets", "cumsum": "axis",
    "empty": "shape", "expand": "shape", "eye": "num_rows num_columns", "flatten": "start_axis stop_axis",
    "flip": "axis", "full": "shape fill_value", "full_like": "fill_value", "gather": "axis",
    "index_select": "axis", "kthvalue": "k axis", "linspace": "num", "logspace": "num", "masked_select": "size",
    "max": "axis", "mean": "axis", "min": "axis", "multinomial": "num_samples", "nonzero": "size",
    "normal": "shape", "ones": "shape", "prod": "axis", "rand": "shape", "randint": "shape", "randn": "shape",
    "randperm": "n", "repeat_interleave": "repeats", "reshape": "shape", "roll": "axis", "rot90": "k",
    "scatter_nd": "shape", "slice": "starts ends", "sort": "axis", "split": "num_or_sections axis", "squeeze": "axis",
    "standard_normal": "shape", "strided_slice": "starts ends strides", "sum": "axis", "tile": "repeat_times",
    "topk": "k axis", "transpose": "perm", "tril": "diagonal", "triu": "diagonal", "unflatten": "shape",
    "uniform": "shape", "unique": "size", "unique_consecutive": "size", "unsqueeze": "axis", "zeros": "shape",
}  # fmt: skip
OF_NETWORKS = {
    "alpha_dropout": "p", "dropout": "p", "dropout2d": "p", "dropout3d": "p", "glu": "axis", "one_hot": "num_classes",
    "pad": "pad", "sequence_mask": "maxlen",
}  # fmt: skip


def with_waiting(functions: dict[str, Any], table: dict[str, str], prefix: str = "") -> dict[str, Callable[..., Any]]:
    """The functions of a table, from a namespace, so that they take Variables in the place of numbers."""
    return {name: waiting(numbers, prefix + name)(functions[name]) for name, numbers in table.items()}
