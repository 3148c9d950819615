"""Measure django-redis-lock beside its peers: one server, one run, one loop for all."""
