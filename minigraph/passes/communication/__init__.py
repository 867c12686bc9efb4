"""Rewrites of what ranks send each other."""
