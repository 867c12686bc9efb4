"""What others see of a plan: the list of its kernels, the times of its calls."""
