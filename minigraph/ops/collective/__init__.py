"""Operators that all ranks of a group run together."""

from . import bucket, collective, shards  # noqa: F401
