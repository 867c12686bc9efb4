"""What bind functions write into: buffers without addresses, calls, CUDA source and its compiler."""
