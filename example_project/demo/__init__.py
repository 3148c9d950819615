"""The shop's locks at work on a real server, a real Celery worker and real HTTP.

Run it with ``python -m example_project.demo``.
"""
