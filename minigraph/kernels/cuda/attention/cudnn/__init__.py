"""Attention by cuDNN, where a user asks for it by name."""
