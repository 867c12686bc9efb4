"""Blocks that operators hold: their owners, numbers and gradients."""
