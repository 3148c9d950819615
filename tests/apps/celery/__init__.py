"""The Celery app of the tests: ``app``, its ``settings``, and its tasks by theme."""
