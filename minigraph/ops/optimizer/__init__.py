"""Updates of parameters."""

from . import adam, foreach, optimizer, update  # noqa: F401
