"""The command line: `minigraph explain train.py`. Commands are functions that return (data for --json, text)."""

from .main import main as main
