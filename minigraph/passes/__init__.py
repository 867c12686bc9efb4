"""Rewrites of a Graph: one file, or one room, for each flag of BuildStrategy."""
