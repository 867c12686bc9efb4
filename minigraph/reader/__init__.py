"""Readers, as paddle.reader."""

from .decorator import (
    ComposeNotAligned,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    shuffle,
    xmap_readers,
)

__all__ = [
    "ComposeNotAligned", "buffered", "cache", "chain", "compose", "firstn", "map_readers", "shuffle", "xmap_readers",
]  # fmt: skip
