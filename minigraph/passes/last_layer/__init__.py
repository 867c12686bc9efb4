"""fuse_linear_cross_entropy: the last layer and its loss become one operator."""
