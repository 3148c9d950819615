"""Reading for all waiters of a process, without a server."""

from __future__ import annotations

from typing import Any

from django_redis_lock.support.clock import monotonic
from django_redis_lock.transport.leading import LOOK_UP, LeadingHub
from tests.protocol.steps import joined


class QuietHub(LeadingHub):
    """Hears nothing; somebody leaves meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[float] = []
        self.leaving = joined(self, "leaving")

    def _hear(self, seconds: float) -> bool:
        self.heard.append(seconds)
        self.leave(self.leaving)
        return True

    def _dial(self, name: str) -> Any:
        raise NotImplementedError

    def _adopt(self, connection: Any) -> None:
        raise NotImplementedError

    def _hang_up(self) -> None:
        raise NotImplementedError


def test_leader_notices_that_it_has_to_look_for_the_others() -> None:
    """The one that looked until then can't wake it while it reads."""
    hub = QuietHub()
    hub.leaving.looks = True
    leader = joined(hub, "leader")
    hub.wait(leader, monotonic() + 60)
    assert leader.stirred
    assert hub.heard == [LOOK_UP]
