"""Operators that rearrange, cut and join arrays."""
