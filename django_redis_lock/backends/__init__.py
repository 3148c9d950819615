"""The backends that an entry of ``LOCKS`` can name."""
