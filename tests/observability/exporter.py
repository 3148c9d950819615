"""The shop's Celery app, with what the documentation adds to serve the metrics of a worker."""

import os

from example_project.celery import app  # noqa: F401 - the worker looks for it here
from tests.tools.docs import DOCS, blocks

(block,) = [each for each in blocks(DOCS / "how-to/metrics.md") if "worker_ready" in each.text]
exec(block.text.replace("9808", os.environ["EXPORTER_PORT"]))  # noqa: S102 - our documentation
