"""Tests that need a PostgreSQL server on the machine: make services."""
