"""Data sets, and loaders that put their samples into batches."""
