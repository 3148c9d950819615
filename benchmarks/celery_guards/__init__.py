"""What guards against duplicate Celery tasks do when things go wrong, in real workers."""
