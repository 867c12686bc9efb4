"""What passes are written with: patterns, rules, the log of what they did, surgery on a Graph."""
