"""Functions on Variables that Paddle has at top level, by family."""

from . import (
    bounded,
    contraction,
    fitting,
    functions,
    grids,
    kinds,
    pieces,
    random,
    running,
    search,
    statistics,
)
from .bounded import *  # noqa: F403
from .contraction import *  # noqa: F403
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
from .fitting import *  # noqa: F403
from .functions import *  # noqa: F403
from .grids import *  # noqa: F403
from .indexing import picking
from .indexing.picking import *  # noqa: F403
from .kinds import *  # noqa: F403
from .linalg import cholesky, inverse
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
from .pieces import *  # noqa: F403
from .random import *  # noqa: F403
from .running import *  # noqa: F403
from .search import *  # noqa: F403
from .statistics import *  # noqa: F403
from .waiting.functions import OF_FUNCTIONS, with_waiting

globals().update(with_waiting(globals(), OF_FUNCTIONS))

__all__ = [
    "add", "arange", "argmax", "argmin", "assign", "cast", "cholesky", "clip", "concat", "cumsum", "divide", "equal",
    "expand", "flatten", "full", "full_like", "gather", "greater_equal", "greater_than", "inverse", "is_tensor",
    "less_equal", "less_than", "logical_and", "logical_not", "logical_or", "logical_xor", "matmul", "max",
    "maximum", "mean", "min", "minimum", "multiply", "not_equal", "ones", "ones_like", "pow", "prod", "reshape",
    "scale", "split", "squeeze", "stack", "subtract", "sum", "tile", "transpose", "tril", "triu", "unsqueeze",
    "zeros", "zeros_like",
]  # fmt: skip
__all__ += bounded.__all__
__all__ += contraction.__all__
__all__ += fitting.__all__
__all__ += functions.__all__
__all__ += grids.__all__
__all__ += kinds.__all__
__all__ += random.__all__
__all__ += picking.__all__
__all__ += pieces.__all__
__all__ += running.__all__
__all__ += search.__all__
__all__ += statistics.__all__
