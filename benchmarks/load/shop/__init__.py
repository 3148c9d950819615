"""A Django site with one view that sells; the guard that keeps buyers apart is in its address."""
