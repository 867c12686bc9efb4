"""Matrix product with its epilogue: bias, activation and what backward needs of it."""
