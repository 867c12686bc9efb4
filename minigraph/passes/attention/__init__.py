"""memory_efficient_attention: attention that a user wrote out becomes one operator."""
