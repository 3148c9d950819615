"""Integrations with other packages, each an app of its own."""
