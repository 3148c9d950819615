"""The flash sale under load: one view behind a real web server, with one guard after the other."""
