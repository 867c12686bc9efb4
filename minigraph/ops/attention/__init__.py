"""Attention and its gradient."""

from . import attention, attention_grad, random_key  # noqa: F401
