"""Lists of work for attention's blocks that stay: pieces of tiles of queries, one after the other.

A piece is a tile with the tiles of keys that it sees, or with some of them: where whole tiles leave blocks without
work at the end, the first ones are cut, so that all blocks end together. A unit of cost is a tile of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import NamedTuple

import numpy as np

TILE_COST, PART_COST = 0.7, 2.0  # of beginning and ending a tile, a part of one; units
LEAST, CRUMB = 4, 2  # units that a block gets of cut tiles; fewer than a crumb are not cut off
MOST = 14  # blocks for each tile that is cut, on average
PARTS = 15  # of one tile at most, what a Piece has bits for


class TilePiece(NamedTuple):
    """Tiles of keys begin to end of a tile of queries; cut as the kernel reads it, -1 of a whole tile."""

    tile: int
    begin: int
    end: int
    cut: int = -1

    @property
    def units(self) -> int:
        return self.end - self.begin


class Pieces(NamedTuple):
    """order: [rounds, blocks, 4], one block's pieces in a column, -1 behind the last; parts: how many there are."""

    order: np.ndarray
    parts: int


@lru_cache(maxsize=64)
def pieces(
    spans: tuple[tuple[int, int], ...], lines: int, together: int, blocks: int, worth: float = 4
) -> Pieces:  # fmt: skip
    """What each of at most `blocks` blocks computes of `lines` lines of tiles, alike all of them.

    spans  of a line's tiles: the tiles of keys that it sees; tile t of line l has the number l * len(spans) + t
    worth  units by which the end must come earlier for tiles to be cut
    Tiles of `together` lines at a time, the last ones of a line first, which see most where they differ.
    """
    whole = [
        TilePiece(line * len(spans) + tile, *spans[tile])
        for first in range(0, lines, together)
        for tile in reversed(range(len(spans)))
        for line in range(first, min(first + together, lines))
    ]
    count = to_cut(whole, blocks, worth)
    lists, parts = _cut(whole[:count], blocks)
    _deal(whole[count:], lists)
    lists = [items for items in lists if items]
    order = np.full((max(map(len, lists)) + 1, len(lists), 4), -1, np.int32)
    for block, items in enumerate(lists):
        order[: len(items), block] = items
    return Pieces(order, parts)


def to_cut(whole: Sequence[TilePiece], blocks: int, worth: float) -> int:
    """How many of the first tiles are shared out evenly; the others are dealt whole."""
    if len({p.units for p in whole}) == 1:
        rest, end = len(whole) % blocks, -(-len(whole) // blocks) * whole[0].units
        if 0 < rest < blocks // 4 and len(whole) > blocks:  # too few to be shared by all
            rest += blocks
    elif len(whole) <= 2 * blocks:
        rest, lists = len(whole), [[] for _ in range(blocks)]
        _deal(whole, lists)
        end = max(map(units_of, lists))
    else:
        return 0
    cut = whole[:rest]
    earliest = units_of(cut) / sharing(cut, blocks) + units_of(whole[rest:]) / blocks
    return rest if end - earliest > worth else 0


def units_of(items: Sequence[TilePiece]) -> int:
    return sum(p.units for p in items)


def sharing(tiles: Sequence[TilePiece], blocks: int) -> int:
    """How many blocks share these tiles."""
    return max(1, min(blocks, units_of(tiles) // LEAST, len(tiles) * MOST))


def _cut(tiles: Sequence[TilePiece], blocks: int) -> tuple[list[list[TilePiece]], int]:
    """Equal shares of these tiles for the first blocks, and how many parts there are."""
    lists: list[list[TilePiece]] = [[] for _ in range(blocks)]
    units, sharers = units_of(tiles), sharing(tiles, blocks)
    parts = done = block = 0
    for tile, begin, end, _ in tiles:
        cuts: list[tuple[int, int, int]] = []
        while begin < end:
            share_ends = round((block + 1) * units / sharers)
            to = min(end, begin + max(share_ends - done, CRUMB))
            if end - to < CRUMB or len(cuts) == PARTS - 1:
                to = end
            cuts.append((block, begin, to))
            done, begin = done + to - begin, to
            while block < sharers - 1 and done > round((block + 1) * units / sharers) - CRUMB:
                block += 1
        for i, (own, first, last) in enumerate(cuts):
            cut = parts << 8 | len(cuts) << 4 | i if len(cuts) > 1 else -1
            lists[own].append(TilePiece(tile, first, last, cut))
        parts += len(cuts) if len(cuts) > 1 else 0
    return lists, parts


def _deal(tiles: Sequence[TilePiece], lists: Sequence[list[TilePiece]]) -> None:
    """Each tile to the block that is done first."""
    costs = [sum(p.units + (TILE_COST if p.cut < 0 else PART_COST) for p in items) for items in lists]
    free = [(cost, block) for block, cost in enumerate(costs)]
    heapify(free)
    for piece in tiles:
        cost, block = free[0]
        heapreplace(free, (cost + piece.units + TILE_COST, block))
        lists[block].append(piece)
