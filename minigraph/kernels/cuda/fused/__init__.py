"""Kernels generated from the bodies of fused operators."""
