"""fuse_elementwise: operators on elements and rows become one operator and one kernel."""
