"""Attention: a registry of kernels, one room for each."""
