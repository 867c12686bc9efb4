"""Tables, products and slopes with new parameters, as one call."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, call_site, require
from minigraph.errors.kinds import MISSING, RANK
from minigraph.nn import functional as F
from minigraph.nn.activated import activated, check_activation
from minigraph.nn.functional.activation import channel_axis, sloped
from minigraph.nn.initializer import Constant
from minigraph.nn.parameter import create_parameter
from minigraph.program import Parameter, Variable, unique_name
from minigraph.program.builder import whole
from minigraph.tensor.arguments import variable


@whole
def embedding(
    input: Variable, size: Any, is_sparse: bool = False, is_distributed: bool = False, padding_idx: int | None = None,
    param_attr: Any = None, dtype: Any = "float32",
) -> Variable:  # fmt: skip
    """The rows of a new table of `size` [rows, width] at the int positions `input`, whose shape gets the width behind.

    padding_idx  ids with this value give zeros and no gradient; negative ones count from the back
    is_sparse    as `sparse` of nn.functional.embedding; is_distributed says nothing
    """
    x = variable(input, "embedding", "input")
    require(len(size) == 2, f"size must be [rows, width], is {size}", AttrError)
    layer = unique_name.generate("embedding")
    table = needed(create_parameter(layer, size, dtype, param_attr), "embedding")
    return F.embedding(x, table, padding_idx, is_sparse, name=layer)


@whole
def bilinear_tensor_product(
    x: Variable, y: Variable, size: int, act: str | None = None, name: str | None = None, param_attr: Any = None,
    bias_attr: Any = None,
) -> Variable:  # fmt: skip
    """act(x W_s y^T + bias) for s < size, with a new weight [size, I, J] and bias [1, size]; x [N, I], y [N, J]."""
    call = "bilinear_tensor_product"
    check_activation(call, act)
    x, y = variable(x, call), variable(y, call, "y")
    if x.ndim != 2 or y.ndim != 2:
        raise RANK(f"x {x} and y {y} must be 2-D", call=call, site=call_site())
    layer = name or unique_name.generate(call)
    weight = needed(create_parameter(layer, [size, x.shape[1], y.shape[1]], x.dtype, param_attr), call)
    bias = create_parameter(layer, [1, size], x.dtype, bias_attr, is_bias=True)
    return activated(F.bilinear(x, y, weight, bias, name=layer), act, layer)


@whole
def prelu(
    x: Variable, mode: str, param_attr: Any = None, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """x where x > 0, else alpha * x, with a new alpha that begins at 0.25.

    mode  all: one alpha [1]; channel: one for each channel, as [1, C, 1, 1]; element: one for each element of a
          sample, as [1, C, H, W]
    """
    x = variable(x, "prelu")
    if mode not in ("all", "channel", "element"):
        raise AttrError(f"mode {mode!r} is not all, channel or element", call="prelu", site=call_site())
    layer = name or unique_name.generate("prelu")
    shape = [1]
    if mode == "element":
        shape = [1, *x.shape[1:]]
    elif mode == "channel":
        axis = channel_axis(x, data_format, "prelu")
        shape = [x.shape[a] if a == axis else 1 for a in range(x.ndim)]
    alpha = create_parameter(layer, shape, x.dtype, param_attr, default_initializer=Constant(0.25))
    return sloped(x, needed(alpha, "prelu"), f"{layer}.tmp")


def needed(parameter: Parameter | None, call: str) -> Parameter:
    """A weight that cannot be left out."""
    if parameter is None:
        raise MISSING(f"{call} needs a weight, param_attr=False gives none", call=call, site=call_site())
    return parameter
