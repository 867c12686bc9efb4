"""Linear algebra of matrices beyond their products."""
