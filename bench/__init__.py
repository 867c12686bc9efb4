"""Comparisons with other frameworks: `python -m bench list`, `python -m bench mlp_cpu --peers torch`."""
