"""Plans of NumPy kernels."""
