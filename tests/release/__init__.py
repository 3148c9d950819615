"""Checks what is about to be released: ``make release-check``."""
