"""The app of a worker with the new code, which has the bridges."""

from tests.apps.moving.new import app, bridges

__all__ = ["BRIDGES", "app"]

BRIDGES = bridges()
