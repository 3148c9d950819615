"""What guards against duplicate Celery tasks do when things go wrong, seen in real workers."""
