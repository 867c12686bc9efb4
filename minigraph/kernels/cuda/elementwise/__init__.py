"""One expression at every element, reductions, random numbers."""
