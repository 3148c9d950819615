"""The tutorial, followed word for word; apart from the other tests, for it installs a project."""
