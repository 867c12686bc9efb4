"""Programs with branches and loops: cut where the host decides, one plan for each piece and each block."""
