"""Kernels that own whole rows: softmax, layer norm, losses, running sums."""
