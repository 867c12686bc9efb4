"""Equal chains of elementwise operators on different tensors as one operator on lists."""
