"""Migrations of the admin's model; none makes a table."""
