"""Metrics of locks for Prometheus. Add this app to ``INSTALLED_APPS`` to turn them on."""
