"""One alias, on the session's server."""

from __future__ import annotations

from typing import Any

import pytest

from example_project.embedded import EmbeddedServer


@pytest.fixture(autouse=True)
def _one(server: EmbeddedServer, settings: Any) -> None:
    settings.LOCKS = {"default": {"LOCATION": server.url()}}
