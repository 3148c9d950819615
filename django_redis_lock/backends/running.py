"""How a backend carries out the protocol."""

from __future__ import annotations

from typing import Any, TypeVar

from django_redis_lock import signals
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.calls import Call, Emit
from django_redis_lock.protocol.drivers import Steps, arun, run

Result = TypeVar("Result")


class ProtocolRunner:
    """Runs the steps of the protocol, with the calls that a subclass carries out."""

    alias: str

    def call(self, call: Call) -> Any:
        """Carry out one call. Raises ``LockUnavailable``."""
        raise NotImplementedError

    async def acall(self, call: Call) -> Any:
        """Carry out one call under asyncio. Raises ``LockUnavailable``."""
        return self.call(call)

    def post(self, call: Call) -> None:
        """Send a call whose reply is not needed. Raises ``LockUnavailable``.

        By default it waits for the reply; a backend that can send without waiting overrides it.
        """
        self.call(call)

    async def apost(self, call: Call) -> None:
        """Send a call whose reply is not needed, under asyncio."""
        await self.acall(call)

    def run(self, steps: Steps[Result]) -> Result:
        """Carry out steps of the protocol, blocking."""
        try:
            return run(self, steps)
        except LockUnavailable as error:
            run(self, self.tell_unavailable(error))
            raise

    async def arun(self, steps: Steps[Result]) -> Result:
        """Carry out steps of the protocol under asyncio."""
        try:
            return await arun(self, steps)
        except LockUnavailable as error:
            await arun(self, self.tell_unavailable(error))
            raise

    def tell_unavailable(self, error: LockUnavailable) -> Steps[None]:
        """Send ``lock_unavailable`` for an operation that failed with this error."""
        signal = signals.lock_unavailable
        if signal.receivers:
            arguments = {"sender": type(self), "using": self.alias, "name": error.name}
            yield Emit(signal, {**arguments, "error": error})
