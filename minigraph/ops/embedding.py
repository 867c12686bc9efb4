"""Rows of a table by integer index."""
