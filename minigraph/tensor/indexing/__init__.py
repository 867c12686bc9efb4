"""Parts of Variables: x[...], x[...] = v, gather and its kin."""
