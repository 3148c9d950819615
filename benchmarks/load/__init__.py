"""The flash sale under load: one view behind a real web server, and each guard in its turn."""
