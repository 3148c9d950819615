"""A Django app with one view that sells; its URL names the guard."""
