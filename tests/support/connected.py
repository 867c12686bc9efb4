"""Ranks in processes with what torchrun or Paddle's launcher sets: no MPI, and no launcher that ends the others."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.support.scripts import begun

HERE = Path(__file__).parents[2]
Ranks = Sequence[tuple[BaseProcess, Path]]  # each with the file of what it says


def free_port() -> int:
    """A port of this host that nobody has."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def started(ranks: int, what: str, folder: Path, paddle: bool = False, device: str = "cpu") -> Ranks:
    """tests/support/ranks.py in so many processes."""
    port = free_port()
    made = []
    for rank in range(ranks):
        ends = ",".join(f"127.0.0.1:{port + r}" for r in range(ranks))
        own = (
            {"PADDLE_TRAINER_ID": f"{rank}", "PADDLE_TRAINERS_NUM": f"{ranks}", "PADDLE_TRAINER_ENDPOINTS": ends}
            if paddle else {"RANK": f"{rank}", "WORLD_SIZE": f"{ranks}", "LOCAL_RANK": f"{rank}",
                            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
        )  # fmt: skip
        said, command = folder / f"said_by_{rank}.txt", ("tests/support/ranks.py", what, folder, device)
        made.append((begun(HERE, command, (said, said), variables={**own, "NCCL_NVLS_ENABLE": "0"}), said))
    return made


def ended(ranks: Ranks, seconds: float = 120) -> list[tuple[int, str]]:
    """(exit code, what it said) of each; none is left behind."""
    try:
        for process, _ in ranks:
            process.join(seconds)
        assert all(process.exitcode is not None for process, _ in ranks), "a rank does not end"
    finally:
        for process, _ in ranks:
            process.kill()
    return [(process.exitcode or 0, said.read_text("utf-8")) for process, said in ranks]
