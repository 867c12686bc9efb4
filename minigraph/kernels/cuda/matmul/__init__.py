"""Matrix products and what is computed around them."""
