"""Random numbers, drawn anew in every run from the program's seed: the same on a CPU and on a GPU."""

from __future__ import annotations

from typing import Any

from minigraph.errors import DTypeError, ShapeError, require
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.program.default_dtype import default_dtype
from minigraph.types import FLOATS, as_dtype, float64

from .arguments import describe, is_number, output_prefix, plain, variable
from .math import cast
from .sized import full_of, run_sizes, shape_of


def _dtype(dtype: Any) -> Any:
    return default_dtype() if dtype is None else as_dtype(dtype)


def uniform(
    shape: Any, dtype: Any = None, min: float = -1.0, max: float = 1.0, seed: int = 0, name: str | None = None
) -> Variable:  # fmt: skip
    """Uniform numbers in [min, max); a `seed` other than 0 replaces the program's.

    shape  here and in the functions below its entries may be sizes of Variables that only a run knows
    """
    prefix = output_prefix("uniform", name)
    return _drawn("uniform_random", shape, _dtype(dtype), prefix, min=min, max=max, seed=seed)


def _drawn(op_type: str, shape: Any, dtype: Any, prefix: str, **attrs: Any) -> Variable:
    """Random numbers in a shape, in which sizes may stand that only a run knows."""
    sizes = run_sizes(shape)
    if sizes is None:
        return builder_of().emit(op_type, shape=shape, dtype=dtype, name=prefix, **attrs)
    like = full_of(sizes, 0, dtype)
    return builder_of(like).emit(f"{op_type}_like", like, name=prefix, **attrs)


def uniform_random_batch_size_like(
    input: Variable, shape: Any, dtype: Any = "float32", input_dim_idx: int = 0, output_dim_idx: int = 0,
    min: float = -1.0, max: float = 1.0, seed: int = 0,
) -> Variable:  # fmt: skip
    """uniform(shape), whose size of axis output_dim_idx is that of `input` along input_dim_idx, known before a run."""
    sizes = list(shape)
    sizes[output_dim_idx] = variable(input, "uniform_random_batch_size_like", "input").shape[input_dim_idx]
    return uniform(sizes, dtype, min, max, seed)


def rand(shape: Any, dtype: Any = None, name: str | None = None) -> Variable:
    """Uniform numbers in [0, 1)."""
    return uniform(shape, dtype, 0.0, 1.0, name=name)


def standard_normal(shape: Any, dtype: Any = None, name: str | None = None) -> Variable:
    """Normal numbers with mean 0 and standard deviation 1."""
    return _drawn("gaussian_random", shape, _dtype(dtype), output_prefix("gaussian", name))


randn = standard_normal


@whole
def normal(mean: Any = 0.0, std: Any = 1.0, shape: Any = None, name: str | None = None) -> Variable:
    """Normal numbers; `mean` or `std` may be a Variable, in whose shape they are then drawn."""
    given = next((v for v in (mean, std) if isinstance(v, Variable)), None)
    if given is None:
        prefix, shape = output_prefix("gaussian", name), () if shape is None else shape
        return _drawn("gaussian_random", shape, default_dtype(), prefix, mean=float(mean), std=float(std))
    g = builder_of(given)
    noise = g.gaussian_random_like(given)
    return g.assign(noise * std + mean, name=output_prefix("normal", name))


def _whole_numbers(low: Any, high: Any, shape: Any, dtype: Any, call: str, name: str | None) -> Variable:
    """Ints in [low, high), each with the same probability but for 2^-32 of it."""
    for value in (low, high):
        fits = is_number(plain(value)) and int(plain(value)) == plain(value)
        require(fits, f"bounds must be ints, one is {describe(value)}", DTypeError)
    require(low < high, f"there is no int in [{low}, {high})", ShapeError)
    require(high - low <= 2**32, f"[{low}, {high}) has more than 2^32 ints", ShapeError)
    drawn = _drawn("uniform_random", shape, float64, output_prefix("uniform", None), min=0.0, max=float(high - low))
    g = builder_of(drawn)
    drawn = g.floor(drawn)
    ints = cast(drawn, "int64")
    return cast(g.scale(ints, bias=float(low)) if low else ints, dtype, name=output_prefix(call, name)[:-4])


@whole
def randint(
    low: int = 0, high: int | None = None, shape: Any = (1,), dtype: Any = None, name: str | None = None
) -> Variable:  # fmt: skip
    """Ints in [low, high), in [0, low) for high=None; int64 by default. At most 2^32 different ones."""
    low, high = (0, low) if high is None else (low, high)
    return _whole_numbers(low, high, shape, dtype or "int64", "randint", name)


@whole
def randint_like(
    x: Variable, low: int = 0, high: int | None = None, dtype: Any = None, name: str | None = None
) -> Variable:  # fmt: skip
    """Ints as of randint in the shape and by default the type of x."""
    x = variable(x, "randint_like")
    low, high = (0, low) if high is None else (low, high)
    return _whole_numbers(low, high, shape_of(x), dtype or x.dtype, "randint_like", name)


@whole
def bernoulli(x: Variable, name: str | None = None) -> Variable:
    """1 with the probability x[...], else 0."""
    x = variable(x, "bernoulli")
    require(x.dtype in FLOATS, f"probabilities are floats, x is {x}", DTypeError)
    g = builder_of(x)
    drawn = g.uniform_random_like(g.fill_any_like(x, value=0, dtype=float64), min=0.0, max=1.0)
    return g.cast(drawn < g.cast(x, dtype=float64), dtype=x.dtype, name=output_prefix("bernoulli", name))


__all__ = ["bernoulli", "normal", "rand", "randint", "randint_like", "randn", "standard_normal", "uniform"]
