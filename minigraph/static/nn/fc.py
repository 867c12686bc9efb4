"""An affine map as one call."""

from __future__ import annotations

import math
from typing import Any

from minigraph.errors import DTypeError, ProgramError, call_site
from minigraph.errors.kinds import AXIS, MISSING, UNKNOWN_SIZE
from minigraph.nn.activated import activated, check_activation
from minigraph.nn.parameter import create_parameter
from minigraph.program import Variable, unique_name
from minigraph.program.builder import Builder, builder_of, whole
from minigraph.tensor.arguments import variable


@whole
def fc(
    x: Any, size: int, num_flatten_dims: int = 1, weight_attr: Any = None, bias_attr: Any = None,
    activation: str | None = None, name: str | None = None,
) -> Variable:  # fmt: skip
    """activation(x @ weight + bias) with new parameters.

    x                 [..., in] or a list of such, whose products are added
    num_flatten_dims  this many leading axes of x stay, the others are made one
    bias_attr         False leaves the bias out
    activation        a name of nn/activated.py
    The result has the leading axes of x and `size`.
    """
    check_activation("fc", activation)
    inputs = [variable(v, "fc") for v in x] if isinstance(x, (list, tuple)) else [variable(x, "fc")]
    if not inputs:
        raise ProgramError("x is an empty list", call="fc", site=call_site())
    layer = name or unique_name.generate("fc")
    for v in inputs:
        if not v.type.is_float:
            raise DTypeError(f"x must be a float, is {v}", call="fc", site=call_site(), hint="cast it first")
    g, prefix = builder_of(*inputs), f"{layer}.tmp"
    products = [_product(g, v, size, num_flatten_dims, weight_attr, layer, prefix) for v in inputs]
    out = products[0] if len(products) == 1 else g.sum(products, name=prefix)
    bias = create_parameter(layer, [size], out.dtype, bias_attr, is_bias=True)
    if bias is not None:
        out = g.elementwise_add(out, bias, name=prefix)
    return activated(out, activation, layer)


def _product(
    g: Builder, x: Variable, size: int, num_flatten_dims: int, weight_attr: Any, layer: str, prefix: str
) -> Variable:
    """x, its last axes made one, times a new weight."""
    kept = num_flatten_dims + x.ndim if num_flatten_dims < 0 else num_flatten_dims
    if not 0 < kept < x.ndim:
        raise AXIS(
            f"num_flatten_dims {num_flatten_dims} leaves no axes on one side of {x}", call="fc", site=call_site()
        )
    width = -1 if -1 in x.shape[kept:] else math.prod(x.shape[kept:])
    if width == -1:
        raise UNKNOWN_SIZE(f"the sizes of {x} from axis {kept} on must be known", call="fc", site=call_site())
    weight = create_parameter(layer, [width, size], x.dtype, weight_attr)
    if weight is None:
        raise MISSING("fc needs a weight, weight_attr=False gives none", call="fc", site=call_site())
    if x.ndim > kept + 1:
        x = g.flatten(x, start_axis=kept)
    return g.matmul(x, weight, name=prefix)
