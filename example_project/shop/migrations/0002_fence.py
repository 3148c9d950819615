# ruff: noqa: RUF012 - Django writes migrations this way
"""Remember the highest fence that has written a product."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="product",
            name="fence",
            field=models.BigIntegerField(db_default=0, default=0, editable=False),
        ),
    ]
