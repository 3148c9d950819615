"""A project whose requests and tasks are traced, in gunicorn and in a Celery worker."""
