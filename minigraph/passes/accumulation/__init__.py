"""fuse_grad_accumulation: the product that computes a gradient adds it to the others."""
