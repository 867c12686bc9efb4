"""Functions on Variables that Paddle has at top level, by family."""

from . import functions, grids, picking, pieces, random, search, statistics
from .creation import (
    arange,
    assign,
    full,
    full_like,
    is_tensor,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from .functions import *  # noqa: F403
from .grids import *  # noqa: F403
from .logic import (
    equal,
    greater_equal,
    greater_than,
    less_equal,
    less_than,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    where,
)
from .manipulation import (
    concat,
    expand,
    flatten,
    gather,
    reshape,
    split,
    squeeze,
    stack,
    tile,
    transpose,
    unsqueeze,
)
from .math import (
    add,
    argmax,
    argmin,
    cast,
    clip,
    cumsum,
    divide,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    multiply,
    pow,
    prod,
    scale,
    subtract,
    sum,
)
from .picking import *  # noqa: F403
from .pieces import *  # noqa: F403
from .random import *  # noqa: F403
from .search import *  # noqa: F403
from .statistics import *  # noqa: F403

__all__ = [
    "add", "arange", "argmax", "argmin", "assign", "cast", "clip", "concat", "cumsum", "divide", "equal",
    "expand", "flatten", "full", "full_like", "gather", "greater_equal", "greater_than", "is_tensor",
    "less_equal", "less_than", "logical_and", "logical_not", "logical_or", "logical_xor", "matmul", "max",
    "maximum", "mean", "min", "minimum", "multiply", "not_equal", "ones", "ones_like", "pow", "prod", "reshape",
    "scale", "split", "squeeze", "stack", "subtract", "sum", "tile", "transpose", "tril", "triu", "unsqueeze",
    "where", "zeros", "zeros_like",
]  # fmt: skip
__all__ += functions.__all__
__all__ += grids.__all__
__all__ += random.__all__
__all__ += picking.__all__
__all__ += pieces.__all__
__all__ += search.__all__
__all__ += statistics.__all__
