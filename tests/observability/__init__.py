"""The alert rules and the dashboard; needs the promtool of Prometheus: make services."""
