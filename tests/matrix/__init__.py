"""Runs the tests with old and new versions of Python, of all dependencies and of the server."""
