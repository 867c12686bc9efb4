"""Files of weights are read here and by the safetensors package: both take the same ones, and find the same in them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, deserialize

from minigraph.errors import ProgramError
from minigraph.runtime.checkpoint import storage
from minigraph.runtime.checkpoint.header import DTYPES, parsed
from minigraph.runtime.checkpoint.tensors import read
from tests.support.grades import graded

VALUES = (0, 1, -1, 2, 4, 8, 12, 2**31, 2**64, 2**70, 1.0, True, None, "F32", "I8", "BF16", "x", [], {}, [0, 4], [2, 2])
ENTRY = '"dtype":"U8","shape":[4],"data_offsets":'


def made(entries: Any, data: bytes, padding: bytes = b"") -> bytes:
    header = json.dumps(entries).encode() + padding
    return len(header).to_bytes(8, "little") + header + data


FILE = made({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}, bytes(range(24)))


def own(path: Path, content: bytes) -> dict[str, bytes] | str:
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        arrays, _ = read(str(path), descriptor, None)
    except ProgramError as problem:
        return str(problem)
    finally:
        os.close(descriptor)
    return {name: repr((a.shape, a.dtype.name)).encode() + a.tobytes() for name, a in arrays.items()}


def theirs(content: bytes) -> dict[str, bytes] | None:
    try:
        found = deserialize(content)
        return {
            name: repr((tuple(t["shape"]), DTYPES[t["dtype"]].name)).encode() + bytes(t["data"]) for name, t in found
        }
    except (SafetensorError, KeyError):
        return None


def some_file(rng: random.Random) -> tuple[dict[str, Any], bytes]:
    """Entries of a few tensors in any order, and their bytes."""
    entries: dict[str, Any] = {"__metadata__": {"minigraph_save": "00"}} if rng.random() < 0.5 else {}
    at = 0
    for name in rng.sample(["a", "b", "ü", "long name", ""], rng.randrange(4)):
        dtype = rng.choice(list(DTYPES))
        shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
        size = int(np.prod(shape, dtype=int)) * np.dtype(DTYPES[dtype]).itemsize
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    names = rng.sample(list(entries), len(entries))
    return {name: entries[name] for name in names}, rng.randbytes(at)


def spoiled(rng: random.Random, entries: dict[str, Any]) -> dict[str, Any]:
    """The same with one thing changed somewhere."""
    if not entries:
        return {"a": rng.choice(VALUES)}
    name = rng.choice(list(entries))
    entry = entries[name]
    field = rng.choice(list(entry))
    kind = rng.randrange(5)
    if kind == 0 and isinstance(entry[field], list) and entry[field]:
        entry[field][rng.randrange(len(entry[field]))] = rng.choice(VALUES)
    elif kind == 1:
        entry[field] = rng.choice(VALUES)
    elif kind == 2:
        del entry[field]
    elif kind == 3:
        entry["more"] = rng.choice(VALUES)
    else:
        entries[name] = rng.choice(VALUES)
    return entries


@pytest.mark.parametrize("seed", graded(range(20), now=lambda seed: seed < 8))
def test_both_take_the_same_files(tmp_path: Path, seed: int) -> None:
    rng, taken = random.Random(seed), 0
    for turn in range(200):
        entries, data = some_file(rng)
        content = made(entries, data, b" " * rng.randrange(3))
        kind = turn % 4
        if kind == 1:
            content = made(spoiled(rng, entries), data)
        elif kind == 2:
            at = rng.randrange(8 + int.from_bytes(content[:8], "little"))
            content = content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
        elif kind == 3:
            content = content[: rng.randrange(len(content))] + rng.randbytes(rng.randrange(3))
        mine, other = own(tmp_path / "w", content), theirs(content)
        if isinstance(mine, str):
            assert "is no file of weights" in mine
            assert other is None or "stands twice" in mine, content
        else:
            taken += 1
            assert mine == other, content
    assert taken >= 50


REFUSED = {
    "a name in UTF-16": '{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'.encode("utf-16-le"),
    "half of a surrogate pair": b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
    "a shape that no array has": b'{"a":{"dtype":"U8","shape":[9223372036854775808,0],"data_offsets":[0,0]}}',
    "a hundred axes": f'{{"a":{{"dtype":"U8","shape":{[0] * 100},"data_offsets":[0,0]}}}}'.encode(),
    "a number of many digits": b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,0]}}',
    "twins": b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],'
             b'"data_offsets":[0,0]}}',
    "many brackets": b"[" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_headers_that_are_refused(tmp_path: Path, what: str) -> None:
    header = REFUSED[what]
    assert "is no file of weights" in str(own(tmp_path / "w", len(header).to_bytes(8, "little") + header))


@pytest.mark.parametrize(
    ("first", "second", "size"),
    [([0, 4], [2, 6], 6), ([0, 4], [5, 9], 9), ([0, 4], [4, 8], 9), ([1, 5], [5, 9], 9), ([0, 4], [0, 4], 4)],
    ids=["overlap", "hole", "bytes at the end", "bytes at the beginning", "the same bytes twice"],
)
def test_every_byte_belongs_to_one_tensor(first: list[int], second: list[int], size: int) -> None:
    header = f'{{"a":{{{ENTRY}{first}}},"b":{{{ENTRY}{second}}}}}'.encode()
    with pytest.raises(ValueError, match=r"overlap|its header says"):
        parsed(header, 8 + len(header) + size)


def test_a_system_that_reads_a_few_bytes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PIECE", 3)
    assert own(tmp_path / "w", FILE) == theirs(FILE) != {}


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made up for what is not there."""
    monkeypatch.setattr(storage, "size_of", lambda descriptor: len(FILE))
    with pytest.raises(OSError, match="while it was read"):
        own(tmp_path / "w", FILE[:-1])
