"""A server whose clock can be set while it runs; needs libfaketime."""

from __future__ import annotations

from pathlib import Path

from example_project.embedded import EmbeddedServer

_FAKETIME = "/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1"


class SteppedServer(EmbeddedServer):
    """An embedded server whose wall clock can be stepped; its monotonic clock is the real one."""

    def __init__(self, *config: str, persist: bool = False) -> None:
        super().__init__(*config, persist=persist)
        self._ahead = 0.0

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self._ahead += seconds
        new = self._clock.with_suffix(".new")
        new.write_text(f"{self._ahead:+.3f}")
        new.replace(self._clock)  # whole or not at all, for the server reads it all the time

    @property
    def _clock(self) -> Path:
        return self.directory / "clock"

    def _command(self, binary: Path) -> list[str]:
        self.step(0.0)
        environment = (
            f"LD_PRELOAD={_faketime()}",
            f"FAKETIME_TIMESTAMP_FILE={self._clock}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
        )
        return ["/usr/bin/env", *environment, *super()._command(binary)]


def _faketime() -> str:
    for machine in ("x86_64", "aarch64"):
        path = _FAKETIME.format(machine)
        if Path(path).exists():
            return path
    raise FileNotFoundError("steps of the clock need libfaketime: apt-get install faketime")
