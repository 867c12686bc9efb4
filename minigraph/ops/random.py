"""Random values: initialisers and dropout, by counter-based random numbers."""
