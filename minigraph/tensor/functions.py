"""Functions of numbers, element by element: Paddle's names over operators, mostly one line each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minigraph.errors import AttrError, DTypeError, call_site, require
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.types import FLOATS, bool_, float32, float64

from .arguments import Number, Operand, as_type, emit, operands, output_prefix, variable
from .logic import equal, where
from .math import arithmetic, cast, clip, multiply, scale


def _function(op_type: str, doc: str, ints: bool = False) -> Callable[..., Variable]:
    """A function of x that is one operator; with `ints` integers become float32 first, as in Paddle."""

    @whole
    def function(x: Variable, name: str | None = None) -> Variable:
        x = variable(x, op_type)
        return emit(op_type, op_type, as_type(x, float32) if ints and x.dtype not in FLOATS else x, name=name)

    function.__name__ = function.__qualname__ = op_type
    function.__doc__ = doc
    return function


acos = _function("acos", "The angle in [0, pi] whose cosine is x.")
asin = _function("asin", "The angle in [-pi/2, pi/2] whose sine is x.")
atan = _function("atan", "The angle in (-pi/2, pi/2) whose tangent is x.")
acosh = _function("acosh", "The number >= 0 whose cosh is x.")
asinh = _function("asinh", "The number whose sinh is x.")
atanh = _function("atanh", "The number whose tanh is x.")
cosh = _function("cosh", "(e ** x + e ** -x) / 2")
sinh = _function("sinh", "(e ** x - e ** -x) / 2")
tan = _function("tan", "tan(x), x in radians.")
expm1 = _function("expm1", "e ** x - 1, accurate near 0.", ints=True)
log2 = _function("log2", "The logarithm of x to base 2.", ints=True)
log10 = _function("log10", "The logarithm of x to base 10.", ints=True)
erf = _function("erf", "The error function.")
erfinv = _function("erfinv", "The number whose error function is x; infinite at -1 and 1.")
lgamma = _function("lgamma", "log |gamma(x)|")
i0e = _function("i0e", "The modified Bessel function I0, divided by e ** |x|.")
i1e = _function("i1e", "The modified Bessel function I1, divided by e ** |x|.")
digamma = _function("polygamma", "The derivative of lgamma; NaN at 0, -1, -2, ...")
trunc = _function("trunc", "x without its fraction; its gradient is 0.")
exp = _function("exp", "e ** x", ints=True)
log = _function("log", "The natural logarithm of x.", ints=True)
log1p = _function("log1p", "log(1 + x), accurate near 0.", ints=True)
sigmoid = _function("sigmoid", "1 / (1 + e ** -x)")
sqrt = _function("sqrt", "The square root of x.")
rsqrt = _function("rsqrt", "1 / sqrt(x)")
square = _function("square", "x * x")
abs = _function("abs", "|x|; its gradient at 0 is 0.")
sign = _function("sign", "-1, 0 or 1 with the sign of x; its gradient is 0.")
sin = _function("sin", "sin(x), x in radians.")
cos = _function("cos", "cos(x), x in radians.")
tanh = _function("tanh", "The hyperbolic tangent of x.")
reciprocal = _function("reciprocal", "1 / x")
floor = _function("floor", "The largest whole number <= x; its gradient is 0.")
ceil = _function("ceil", "The smallest whole number >= x; its gradient is 0.")
round = _function("round", "The nearest whole number, halves away from zero; its gradient is 0.")
isnan = _function("isnan", "Whether x is NaN, as bool.")
isinf = _function("isinf", "Whether x is infinite, as bool.")
isfinite = _function("isfinite", "Whether x is neither infinite nor NaN, as bool.")

sgn = sign


def polygamma(x: Variable, n: int, name: str | None = None) -> Variable:
    """The n-th derivative of digamma."""
    return emit("polygamma", "polygamma", variable(x, "polygamma"), n=n, name=name)


@whole
def multigammaln(x: Variable, p: int, name: str | None = None) -> Variable:
    """The logarithm of the multivariate gamma function of dimension p, for x > (p - 1) / 2."""
    x = _float(x, "multigammaln")
    require(isinstance(p, int) and p >= 1, f"p must be an int >= 1, is {p!r}", AttrError)
    g = builder_of(x)
    terms = [g.lgamma(scale(x, bias=-0.5 * i) if i else x) for i in range(p)]
    return scale(g.sum(terms), bias=p * (p - 1) / 4 * math.log(math.pi), name=name)


@whole
def _grown(scaled: Variable, x: Variable, call: str, name: str | None) -> Variable:
    """scaled * e ** |x|, infinite only where the result is."""
    g = builder_of(x)
    half = g.exp(scale(g.abs(x), 0.5))
    grown = g.elementwise_mul(g.elementwise_mul(scaled, half), half)
    return where(g.isinf(x), g.abs(x) if call == "i0" else x, grown, name=name)


def i0(x: Variable, name: str | None = None) -> Variable:
    """The modified Bessel function of the first kind of order 0."""
    return _grown(i0e(x), x, "i0", name)


def i1(x: Variable, name: str | None = None) -> Variable:
    """The modified Bessel function of the first kind of order 1."""
    return _grown(i1e(x), x, "i1", name)


@whole
def frexp(x: Variable, name: str | None = None) -> tuple[Variable, Variable]:
    """The fraction, of a size in [0.5, 1), and the exponent, in x's type, with x = fraction * 2 ** exponent."""
    x = _float(x, "frexp")
    g = builder_of(x)
    plain = g.logical_and(g.isfinite(x), x != 0)
    safe = where(plain, x, 1.0)
    exponent = g.floor(g.log2(g.abs(safe)))  # of near powers of 2 it may be one too large or small
    two = g.fill_any_like(x, value=2.0)
    fraction = g.scale(g.elementwise_div(safe, g.elementwise_pow(two, exponent)), scale=0.5)
    low, high = g.abs(fraction) < 0.5, g.abs(fraction) >= 1.0
    fraction = where(low, scale(fraction, 2.0), where(high, scale(fraction, 0.5), fraction))
    exponent = scale(exponent, bias=1.0) + cast(high, x.dtype) - cast(low, x.dtype)
    return where(plain, fraction, x, name=name), where(plain, exponent, 0.0, name=name)


def neg(x: Variable, name: str | None = None) -> Variable:
    """-x"""
    return scale(x, -1.0, name=name)


def deg2rad(x: Variable, name: str | None = None) -> Variable:
    """Degrees as radians; ints become float32."""
    return scale(_float(x, "deg2rad"), math.pi / 180, name=name)


def rad2deg(x: Variable, name: str | None = None) -> Variable:
    """Radians as degrees; ints become float32."""
    return scale(_float(x, "rad2deg"), 180 / math.pi, name=name)


def _float(x: Any, call: str) -> Any:
    x = variable(x, call)
    return x if x.dtype in FLOATS else as_type(x, float32)


@whole
def frac(x: Variable, name: str | None = None) -> Variable:
    """x - trunc(x)"""
    return arithmetic("elementwise_sub", x, trunc(x), "frac", output_prefix("frac", name))


@whole
def stanh(x: Variable, scale_a: float = 0.67, scale_b: float = 1.7159, name: str | None = None) -> Variable:
    """scale_b * tanh(scale_a * x)"""
    g = builder_of(x)
    return scale(g.tanh(scale(x, scale_a)), scale_b, name=name)


@whole
def logit(x: Variable, eps: float | None = None, name: str | None = None) -> Variable:
    """log(x / (1 - x)), with x brought into [eps, 1 - eps] first; without eps NaN outside [0, 1]."""
    x = variable(clip(x, eps, 1 - eps) if eps else x, "logit")
    return log(x / (1.0 - x), name=name)


@whole
def nan_to_num(
    x: Variable, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None, name: str | None = None
) -> Variable:  # fmt: skip
    """x with NaN and infinities replaced; None stands for the largest and the smallest number of its type."""
    x = variable(x, "nan_to_num")
    largest = float(_largest(x))
    g = builder_of(x)
    out = where(g.isnan(x), float(nan), x)
    out = where(equal(x, math.inf), largest if posinf is None else float(posinf), out)
    return where(equal(x, -math.inf), -largest if neginf is None else float(neginf), out, name=name)


def _largest(x: Variable) -> Any:
    if x.dtype not in FLOATS:
        raise DTypeError(f"x must be a float, is {x}", call="nan_to_num", site=call_site())
    return LARGEST[x.dtype.name]


LARGEST = {
    "float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
}  # fmt: skip


@whole
def angle(x: Variable, name: str | None = None) -> Variable:
    """0 where x >= 0, pi where x < 0, NaN where x is: the angle of a real number."""
    x = _float(x, "angle")
    return where(x < 0, math.pi, where(builder_of(x).isnan(x), x, 0.0), name=name)


# Two operands


def _binary(op_type: str, call: str, doc: str) -> Callable[..., Variable]:
    @whole
    def function(x: Operand, y: Operand, name: str | None = None) -> Variable:
        return _two(op_type, x, y, call, output_prefix(call, name))

    function.__name__ = function.__qualname__ = call
    function.__doc__ = f"{doc} Operands broadcast."
    return function


def _two(op_type: str, x: Any, y: Any, call: str, prefix: str) -> Variable:
    x, y = operands(x, y, call)
    return builder_of(x).emit(op_type, x, y, name=prefix)


fmax = _binary("fmax", "fmax", "The larger of x and y, the other one where one is NaN.")
fmin = _binary("fmin", "fmin", "The smaller of x and y, the other one where one is NaN.")
floor_divide = _binary("floor_divide", "floor_divide", "x / y rounded down; an int divided by 0 is refused.")
remainder = _binary("elementwise_mod", "remainder", "What floor_divide leaves, with the sign of y.")
mod = floor_mod = remainder
gcd = _binary("gcd", "gcd", "The greatest common divisor of ints.")


@whole
def nextafter(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The float beside x in the direction of y, y where they are equal; of float32 and float64. Operands broadcast."""
    x, y = operands(x, y, "nextafter")
    wide = x.dtype in (float32, float64)
    require(wide, f"x is {x.dtype}, and neighbours are known of float32 and float64", DTypeError, "cast it")
    return builder_of(x).nextafter(x, y, name=output_prefix("nextafter", name))


@whole
def atan2(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The angle in [-pi, pi] of the point with ordinate x and abscissa y; of ints in float64."""
    x, y = variable(x, "atan2"), variable(y, "atan2", "y")
    x, y = (v if v.dtype in FLOATS else cast(v, "float64") for v in (x, y))
    return _two("atan2", x, y, "atan2", output_prefix("atan2", name))


@whole
def lcm(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The least common multiple of ints, 0 where one of them is 0."""
    x, y = operands(x, y, "lcm")
    divisor = gcd(x, y)
    divisor = where(equal(divisor, 0), 1, divisor)
    return builder_of(x).abs(multiply(floor_divide(x, divisor), y), name=output_prefix("lcm", name))


@whole
def hypot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """sqrt(x * x + y * y), also where a square would overflow."""
    return _two("hypot", variable(x, "hypot"), variable(y, "hypot", "y"), "hypot", output_prefix("hypot", name))


@whole
def logaddexp(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """log(e ** x + e ** y) without overflow."""
    return _two("logaddexp", x, y, "logaddexp", output_prefix("logaddexp", name))


@whole
def heaviside(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """0 where x < 0, y where x = 0, 1 where x > 0."""
    x, y = operands(x, y, "heaviside")
    step = as_type(x > 0, x.dtype)
    return where(equal(x, 0), y, where(builder_of(x).isnan(x), x, step), name=name)


@whole
def ldexp(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """x * 2 ** y; ints become float32."""
    x, y = _float(x, "ldexp"), variable(y, "ldexp", "y")
    two = builder_of(x).fill_any_like(as_type(y, x.dtype), value=2.0)
    return multiply(x, two ** as_type(y, x.dtype), name=name)


@whole
def lerp(x: Variable, y: Variable, weight: Variable | Number, name: str | None = None) -> Variable:
    """x + weight * (y - x)"""
    x, y = variable(x, "lerp"), variable(y, "lerp", "y")
    return arithmetic("elementwise_add", x, (y - x) * weight, "lerp", output_prefix("lerp", name))


# Bits


def bits(op_type: str, x: Any, y: Any, prefix: str) -> Variable:
    """x <op> y for ints, or for two bools."""
    x, y = operands(x, y, op_type)
    return builder_of(x).emit(op_type, x, y, name=prefix)


def _bitwise(op_type: str, word: str) -> Callable[..., Variable]:
    @whole
    def function(x: Operand, y: Operand, out: Variable | None = None, name: str | None = None) -> Variable:
        x, y = operands(x, y, op_type)
        return emit(op_type, op_type, x, y, name=name, out=None if out is None else {"Out": out})

    function.__name__ = function.__qualname__ = op_type
    function.__doc__ = f"x {word} y, bit by bit, of ints or of bools. Operands broadcast."
    return function


bitwise_and = _bitwise("bitwise_and", "and")
bitwise_or = _bitwise("bitwise_or", "or")
bitwise_xor = _bitwise("bitwise_xor", "xor")


def bitwise_not(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Every bit of ints turned over; not x of bools."""
    x = variable(x, "bitwise_not")
    op_type = "logical_not" if x.dtype == bool_ else "bitwise_not"
    return emit("bitwise_not", op_type, x, name=name, out=None if out is None else {"Out": out})


@whole
def isclose(
    x: Variable, y: Variable, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False, name: str | None = None
) -> Variable:  # fmt: skip
    """Whether |x - y| <= atol + rtol * |y|, as bool; equal infinities are close, NaNs with equal_nan."""
    x, y = operands(x, y, "isclose")
    g = builder_of(x)
    near = g.logical_or(g.abs(x - y) <= scale(g.abs(y), rtol, atol), x == y)
    near = g.logical_and(near, g.isfinite(y) | (x == y))
    if equal_nan:
        near = g.logical_or(near, g.logical_and(g.isnan(x), g.isnan(y)))
    return g.assign(near, name=output_prefix("isclose", name))


__all__ = [
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_not",
    "bitwise_or", "bitwise_xor", "ceil", "cos", "cosh", "deg2rad", "digamma", "erf", "erfinv", "exp", "expm1",
    "floor", "floor_divide", "floor_mod", "fmax", "fmin", "frac", "frexp", "gcd", "heaviside", "hypot", "i0", "i0e",
    "i1", "i1e", "isclose", "isfinite", "isinf", "isnan", "lcm", "ldexp", "lerp", "lgamma", "log", "log1p", "log2",
    "log10", "logaddexp", "logit", "mod", "multigammaln", "nan_to_num", "neg", "nextafter", "polygamma", "rad2deg",
    "reciprocal", "remainder", "round", "rsqrt", "sgn", "sign", "sin", "sinh", "sqrt", "square", "stanh", "tan",
    "tanh", "trunc",
]  # fmt: skip
