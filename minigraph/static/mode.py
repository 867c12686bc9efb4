"""minigraph has static mode only; these two exist so that Paddle scripts run."""

from __future__ import annotations


def enable_static() -> None:
    """Static mode, which is always on."""


def in_dynamic_mode() -> bool:
    """False: programs are built first and run by an Executor."""
    return False
