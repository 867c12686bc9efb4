"""Children that save in a loop are killed at random: python tests/support/killed_saves.py KILLS [SAVERS] [SEED]

After each kill a load must give one whole state: the last that a child reported, or a later one. Prints what was seen.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.checkpoints import FILES, Trained


def save_for_ever(trained: Trained, path: Path, first: int, step: int, report: int) -> None:
    number = first
    while True:
        trained.save(path, number)
        os.write(report, number.to_bytes(8, "little"))
        number += step


def main(kills: int, savers: int, seed: int) -> None:
    trained, rng = Trained(), random.Random(seed)
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m"
        trained.save(path, 0)
        for _ in range(kills):
            before = trained.loaded(path)
            assert before is not None
            read, write = os.pipe()
            children = []
            for saver in range(savers):
                child = os.fork()
                if not child:
                    save_for_ever(trained, path, before + 1 + saver, savers, write)
                children.append(child)
            os.close(write)
            time.sleep(rng.random() * 0.03)
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            reported = b"".join(iter(lambda end=read: os.read(end, 1 << 16), b""))
            os.close(read)
            numbers = [int.from_bytes(reported[i : i + 8], "little") for i in range(0, len(reported), 8)]
            last = numbers[-1] if numbers else before
            found = trained.loaded(path)
            possible = {last, last + 1} if savers == 1 else {last, *range(before, before + 10_000)}
            assert found in possible, f"{found} is there after {numbers}"
            seen["between two saves" if found == last else "after a commit that was not reported"] += 1
            seen["kills that left something"] += sorted(p.name for p in Path(folder).iterdir()) != FILES
        trained.save(path, 7)
        assert trained.loaded(path) == 7
        assert sorted(p.name for p in Path(folder).iterdir()) == FILES
    print(f"{kills} kills, 0 states lost: {dict(seen)}")


if __name__ == "__main__":
    main(*map(int, (*sys.argv[1:], *("25", "1", "0")[len(sys.argv) - 1 :])))
