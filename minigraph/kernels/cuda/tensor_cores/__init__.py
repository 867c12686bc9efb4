"""What kernels on tensor cores are made of: mma.sync, wgmma, tensor maps."""
