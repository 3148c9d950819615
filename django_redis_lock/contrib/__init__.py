"""Integrations with other libraries, each switched on by a line in the settings."""
