"""Attention in the type it is asked for, on ordinary cores."""
