"""Attention and its gradient."""

from . import attention, attention_grad, random_key, sight  # noqa: F401
