"""A Program for readers: text, drawings, tables, notebooks."""
