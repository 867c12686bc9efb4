"""Code over arrays. It knows no Program."""
