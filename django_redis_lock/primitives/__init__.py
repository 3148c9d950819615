"""What a caller holds: locks, groups of locks, and what happens to them."""
