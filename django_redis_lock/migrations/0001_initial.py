"""The content type and the permissions of held locks; no table."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates nothing in the database itself, for the model is not managed."""

    initial = True
    dependencies: ClassVar = []
    operations: ClassVar = [
        migrations.CreateModel(
            name="HeldLock",
            fields=[
                ("key", models.TextField(editable=False, primary_key=True, serialize=False)),
                ("using", models.TextField(editable=False, verbose_name="alias")),
                ("name", models.TextField(editable=False, verbose_name="name")),
            ],
            options={
                "verbose_name": "held lock",
                "verbose_name_plural": "held locks",
                "permissions": [("release_heldlock", "Can release held locks")],
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
    ]
