"""Worker processes of Celery and uWSGI that die, hang and are asked: ``make workers``."""
