"""What needs a GPU or speaks of one: memory, streams, captured graphs, cuBLASLt, autotune."""
