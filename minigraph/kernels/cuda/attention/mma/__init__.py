"""Attention by mma.sync, from compute capability 8.0."""
