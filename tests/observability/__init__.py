"""The metrics in a real Prometheus; apart from the other tests, for it needs one and takes time."""
