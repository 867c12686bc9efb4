"""Machine code for a CPU by numba, an optional package: only who needs it imports the files here."""
