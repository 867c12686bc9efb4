"""Operators that all ranks of a group run together."""

from . import coalesce, collective, shards  # noqa: F401
