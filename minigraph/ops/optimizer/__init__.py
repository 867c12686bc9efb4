"""Updates of parameters."""

from . import adam, foreach, loss_scaling, optimizer, update  # noqa: F401
