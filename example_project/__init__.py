"""A small shop that shows the locks at work.

Nothing is imported here: ``example_project.embedded`` is to be usable without Django and Celery.
"""
