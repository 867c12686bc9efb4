"""Attention by wgmma and the copy engine, compute capability 9.0."""
