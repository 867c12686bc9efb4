"""Parameter updates of many parameters as one operator, or as operations on lists."""
