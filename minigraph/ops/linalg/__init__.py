"""Linear algebra of matrices beyond their products: solutions of equations, and factors."""

from . import factors, singular_values, solve  # noqa: F401
