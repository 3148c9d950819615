"""Database changes of the shop."""
