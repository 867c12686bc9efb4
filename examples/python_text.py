"""The text of `train_gpt.py`: the source of Python's standard library, cut into parts, as numbers of a vocabulary."""

from __future__ import annotations

import lzma
import random
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VALIDATION = 0.05  # share of the files that training never sees


@dataclass
class Vocabulary:
    """Numbers of a text and back.

    lengths  bytes that each number stands for
    """

    encode: Callable[[str], np.ndarray]
    decode: Callable[[Sequence[int]], str]
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)


def python_source(most_bytes: int, file: Path | None = None) -> tuple[str, str]:
    """(training text, validation text): whole files of the standard library in a drawn order, or parts of one file."""
    if file is not None:
        text = file.read_text(encoding="utf-8", errors="replace")[:most_bytes]
        cut = len(text) - int(len(text) * VALIDATION)
        return text[:cut], text[cut:]
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(_sources(library))
    random.Random(0).shuffle(paths)
    parts: tuple[list[str], list[str]] = [], []
    sizes = [0, 0]
    for path in paths:
        part = int(sizes[1] < VALIDATION * sum(sizes))
        text = path.read_text(encoding="utf-8", errors="replace")
        parts[part].append(text)
        sizes[part] += len(text)
        if sum(sizes) >= most_bytes:
            break
    return "".join(parts[0]), "".join(parts[1])


def _sources(folder: Path) -> Iterator[Path]:
    """All Python files of a folder but installed packages, in which it is not looked."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            if path.name != "site-packages":
                yield from _sources(path)
        elif path.suffix == ".py":
            yield path


def vocabulary(training: str, size: int) -> Vocabulary:
    """Byte pairs that are learned from the text by the library `tokenizers`; bytes for size 256 or without it."""
    if size > 256:
        try:
            from tokenizers import ByteLevelBPETokenizer
        except ImportError:
            print("the library tokenizers is not installed: the vocabulary are the 256 bytes")
        else:
            return _byte_pairs(ByteLevelBPETokenizer(), training, size)
    return Vocabulary(
        lambda text: np.frombuffer(text.encode(), np.uint8).astype(np.int64),
        lambda numbers: bytes(numbers).decode(errors="replace"), np.ones(256, np.int64),
    )  # fmt: skip


def _byte_pairs(learner: Any, training: str, size: int) -> Vocabulary:
    learner.train_from_iterator(training.splitlines(keepends=True), size, min_frequency=2, show_progress=False)
    known = learner.get_vocab()
    lengths = np.ones(max(known.values()) + 1, np.int64)
    for piece, number in known.items():
        lengths[number] = len(piece)  # one character stands for each byte
    return Vocabulary(
        lambda text: np.array(learner.encode(text).ids, np.int64), lambda numbers: learner.decode(list(numbers)),
        lengths,
    )  # fmt: skip


def lzma_bits(training: str, validation: str) -> float:
    """Bits per byte that lzma adds for the validation text behind the training text."""
    before, both = (len(lzma.compress(text.encode(), preset=9)) for text in (training, training + validation))
    return 8 * (both - before) / len(validation.encode())
