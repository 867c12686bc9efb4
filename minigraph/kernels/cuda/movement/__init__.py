"""Arrays under another shape or order, rows picked or added by index."""
