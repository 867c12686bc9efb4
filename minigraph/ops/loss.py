"""Losses over class scores."""
