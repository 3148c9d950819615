"""django-redis-lock measured beside its peers: ``python -m benchmarks``."""
