"""Plans of recorded GPU calls, laid out in one arena and captured into one CUDA graph."""
