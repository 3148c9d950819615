"""The documentation, done as it says; apart from the other tests, for it takes a minute."""
