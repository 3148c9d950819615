"""The project in its first deployment after: our guard, and the bridges that the pages show."""

from __future__ import annotations

from typing import Any

from django_redis_lock.celery import single_instance_task
from tests.apps.moving import IMPORT, INDEX, OLD_LOCKS, new_app
from tests.tools.celery_worker import tell_and_wait
from tests.tools.docs import DOCS, blocks

PAGES = ("move-from-celery-once.md", "move-from-celery-singleton.md")

app = new_app("new")


@app.task(name=IMPORT, shared=False)
@single_instance_task(unique_on=["shop_id"], on_conflict="retry")
def import_products(shop_id: str, full: bool = False) -> str:
    """Run until the test lets it end."""
    return tell_and_wait(shop_id)


@app.task(name=INDEX, shared=False)
@single_instance_task(unique_on=["shop_id"], on_conflict="retry")
def build_index(shop_id: str, full: bool = False) -> str:
    """Run until the test lets it end."""
    return tell_and_wait(shop_id)


def bridges() -> list[dict[str, Any]]:
    """Run the blocks of the pages that free what old senders have locked; return what they define.

    Their receivers are connected for as long as that is kept.
    """
    defined: list[dict[str, Any]] = []
    for page in PAGES:
        (block,) = (block for block in blocks(DOCS / "how-to" / page) if block.how == "bridge")
        defined.append({})
        code = block.text.replace("redis://127.0.0.1:6379/0", OLD_LOCKS)
        exec(code, defined[-1])  # noqa: S102 - our own documentation
    return defined
