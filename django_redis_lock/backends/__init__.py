"""The backends that an alias of ``LOCKS`` can use."""
