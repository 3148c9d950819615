"""A small shop that shows the locks at work.

Nothing is imported here: ``example_project.embedded`` works without Django and Celery.
"""
