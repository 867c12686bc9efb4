"""Mixed precision: which operators compute in 16 bits, and the casts between them and the others."""
