"""Faster code for a CPU than the references, named by `cpu=` of an operator."""
