"""The shop as a Django application."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Products and orders."""

    name = "example_project.shop"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Load the shop's Celery application, which ``manage.py locks`` needs."""
        import example_project.celery  # noqa: F401
