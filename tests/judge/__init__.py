"""A judge of recorded histories, which knows nothing of the package that made them."""
