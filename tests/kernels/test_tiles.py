"""Which of cuBLASLt's candidates is preferred, by rule and by what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minigraph.kernels.cuda.device.tiles import GAIN, SMALL, Candidate, preferred

MEASURED = Path(__file__).parents[2] / "bench/results/studies/product_candidates.json"
LARGE = Candidate("", 1, 4.0)


def small(waves, tile="128x128", parts=1):
    return Candidate(tile, parts, waves)


@pytest.mark.parametrize(
    ("k", "itemsize", "offered", "taken"),
    [
        (768, 2, [LARGE, small(8.0)], 1),  # short sums
        (2048, 2, [LARGE, small(8.0)], 1),
        (4096, 2, [LARGE, small(8.0)], 0),  # too long
        (4096, 4, [LARGE, small(8.0)], 1),  # twice the bytes
        (768, 2, [LARGE, small(8.0, "")], 0),  # other tiles
        (768, 2, [Candidate("", 1, 1.94), small(2.91)], 0),  # there is hardly a next tile
        (768, 2, [LARGE, small(8.2)], 0),  # the last round is empty
        (768, 2, [LARGE, small(7.9, "128x160"), small(7.7)], 2),  # the faster of two
        (16384, 2, [Candidate("", 2, 0.48), small(0.91)], 1),  # whole sums, even though some multiprocessors are idle
        (16384, 2, [Candidate("", 2, 0.48), small(0.91, "128x160"), small(0.97, "192x96")], 2),  # fewer that are idle
        (16384, 2, [Candidate("", 2, 0.48), small(0.85)], 0),  # too many of them
        (16384, 2, [small(0.27, parts=3), small(0.23, "128x160", parts=4)], 1),  # more parts that fill the GPU
        (16384, 2, [Candidate("", 2, 0.41), small(0.16, parts=6)], 0),  # parts cost more than that gives
        (768, 2, [Candidate("", 1, 0.0), small(8.0)], 1),  # where the library says nothing of its first
        (768, 2, [small(5.0, "128x160")], 0),
    ],
)  # fmt: skip
def test_the_account_of_tiles(k, itemsize, offered, taken):
    assert preferred(offered, k, itemsize) == taken


def test_what_is_preferred_was_measured_to_be_faster():
    gains = []
    for row in json.loads(MEASURED.read_text())["rows"]:
        found = row["candidates"]
        offered = [Candidate(c["tile"] if c["tile"] in SMALL else "", c["parts"], c["waves"]) for c in found]
        taken = preferred(offered, row["m_n_k"][2], 2 if row["result"] == "bfloat16" else 4)
        if taken:
            gains.append([found[0][way] / found[taken][way] for way in ("rested", "sustained")])
    assert len(gains) > 20
    assert min(map(min, gains)) > 0.97
    assert min(map(max, gains)) > 1
    rested, sustained = (sum(column) / len(gains) for column in zip(*gains, strict=True))
    assert rested > GAIN
    assert sustained > GAIN
