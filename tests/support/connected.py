"""Ranks in processes with what torchrun or Paddle's launcher sets: no MPI, and no launcher that ends the others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parents[2]
Ranks = Sequence["subprocess.Popen[str]"]


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
        made.append(subprocess.Popen(
            [sys.executable, "tests/support/ranks.py", what, str(folder), device], cwd=HERE, text=True,
            env={**os.environ, **own, "PYTHONPATH": str(HERE), "NCCL_NVLS_ENABLE": "0"}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ))  # fmt: skip
    return made


def ended(ranks: Ranks, seconds: float = 120) -> list[tuple[int, str]]:
    """(exit code, what it said) of each; none is left behind."""
    try:
        said = [rank.communicate(timeout=seconds)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, text) for rank, text in zip(ranks, said, strict=True)]
