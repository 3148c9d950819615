"""Processes that use locks on real servers, faults, their recorded history, and its checker."""
