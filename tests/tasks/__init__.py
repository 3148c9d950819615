"""Tests of tasks of django.tasks."""
