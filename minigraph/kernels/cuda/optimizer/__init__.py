"""Updates and elementary operations on lists of tensors in one launch."""
