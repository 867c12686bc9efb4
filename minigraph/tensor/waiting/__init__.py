"""Calls whose numbers only a run knows."""
