"""Lists of pieces of tiles: everything stands in one, parts fit, and all blocks end at about the same time."""

from __future__ import annotations

import numpy as np
import pytest

from minigraph.kernels.cuda.attention.hopper.pieces import CRUMB, PARTS, pieces


def columns(made):
    """What each block computes; a list ends with the first -1 and no list is empty."""
    found = []
    for column in made.order.transpose(1, 0, 2).tolist():
        count = sum(tile >= 0 for tile, *_ in column)
        assert 1 <= count < len(column)
        assert all(tile >= 0 for tile, *_ in column[:count]) and all(x == [-1] * 4 for x in column[count:])
        found.append(column[:count])
    return found


def require_whole(made, spans, lines):
    """Each tile's pieces are what it sees, and parts are numbered as the kernel puts them together."""
    seen, numbers = {}, []
    for column in columns(made):
        for tile, *piece in column:
            seen.setdefault(tile, []).append(piece)
    assert sorted(seen) == list(range(len(spans) * lines))
    for tile, parts in seen.items():
        parts.sort()
        begin, end = spans[tile % len(spans)]
        assert [b for b, _, _ in parts] == [begin, *[e for _, e, _ in parts[:-1]]] and parts[-1][1] == end
        assert all(b < e for b, e, _ in parts) and len(parts) <= PARTS
        if len(parts) == 1:
            assert parts[0][2] == -1
        else:
            assert [cut & 15 for *_, cut in parts] == list(range(len(parts)))
            assert {cut >> 4 & 15 for *_, cut in parts} == {len(parts)}
            (first,) = {cut >> 8 for *_, cut in parts}
            numbers += range(first, first + len(parts))
    assert sorted(numbers) == list(range(made.parts))


@pytest.mark.parametrize("seed", range(200))
def test_every_tile_is_computed_once(seed):
    rng = np.random.default_rng(seed)
    tiles, lines, blocks = int(rng.integers(1, 30)), int(rng.integers(1, 40)), int(rng.choice([1, 2, 7, 66, 132]))
    if seed % 2:
        spans = ((0, int(rng.integers(1, 200))),) * tiles
    else:
        begin = rng.integers(0, 50, tiles)
        spans = tuple(zip(begin.tolist(), (begin + rng.integers(1, 60, tiles)).tolist(), strict=True))
    made = pieces(spans, lines, int(rng.integers(1, lines + 1)), blocks)
    assert made.order.shape[1] <= blocks
    require_whole(made, spans, lines)


@pytest.mark.parametrize(
    ("tiles", "lines", "units", "blocks"),
    [(16, 64, 26, 66), (32, 64, 26, 132), (64, 32, 103, 66), (22, 64, 32, 132), (22, 4, 32, 132), (11, 4, 32, 66)],
)
def test_tiles_are_cut_where_blocks_would_wait_at_the_end(tiles, lines, units, blocks):
    made = pieces(((0, units),) * tiles, lines, 4, blocks)
    loads = [sum(end - begin for _, begin, end, _ in column) for column in columns(made)]
    assert made.parts > 0 and len(loads) == blocks
    assert max(loads) - min(loads) <= 2 * CRUMB
    assert max(len(column) for column in columns(made)) <= -(-tiles * lines // blocks) + 1


@pytest.mark.parametrize(("tiles", "lines", "units"), [(32, 66, 26), (8, 8, 7), (1, 1, 1), (2, 66, 4)])
def test_tiles_stay_whole_where_that_would_save_little(tiles, lines, units):
    made = pieces(((0, units),) * tiles, lines, 4, 132)
    assert made.parts == 0


def test_tiles_stay_whole_where_parts_cost_more_than_that_saves():
    spans = ((0, 52),) * 32
    assert pieces(spans, 16, 4, 132).parts > 0
    assert pieces(spans, 16, 4, 132, 16).parts == 0


def test_one_tile_is_cut_among_as_many_blocks_as_may_share_it():
    made = pieces(((0, 1000),), 1, 1, 132)
    assert made.order.shape[1] == made.parts == PARTS - 1
    require_whole(made, ((0, 1000),), 1)


@pytest.mark.parametrize(("tiles", "lines", "together"), [(32, 64, 8), (22, 64, 16), (60, 7, 2)])
def test_whole_tiles_that_see_most_come_first_and_lists_take_equally_long(tiles, lines, together):
    spans = tuple((0, tile + 1) for tile in range(tiles))
    made = pieces(spans, lines, together, 132)
    assert made.parts == 0
    require_whole(made, spans, lines)
    loads = [sum(end - begin + 0.7 for _, begin, end, _ in column) for column in columns(made)]
    assert max(loads) - min(loads) <= tiles + 0.7


def test_tiles_that_see_most_keys_begin_and_heads_take_turns():
    made = pieces(((0, 1), (0, 2), (0, 3)), 4, 2, 100)
    assert made.order[0, :, 0].tolist() == [2, 5, 1, 4, 0, 3, 8, 11, 7, 10, 6, 9]  # line * 3 + tile


def test_few_tiles_that_see_differently_are_cut_too():
    spans = tuple((0, tile + 1) for tile in range(32))
    made = pieces(spans, 4, 4, 132)
    loads = [sum(end - begin for _, begin, end, _ in column) for column in columns(made)]
    assert made.parts > 0 and max(loads) <= sum(e for _, e in spans) * 4 / 132 + 2
    require_whole(made, spans, 4)
