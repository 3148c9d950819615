"""Tests of the Celery guard on each broker and result backend: make services."""
