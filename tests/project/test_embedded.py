"""The servers of the example project, which the tests use as well."""

from __future__ import annotations

from pathlib import Path

from tests.tools import Child, alive, eventually

STARTING = """
    from example_project.embedded import EmbeddedServer
    server = EmbeddedServer()
    server.start()
    say(server.pid, server.directory)
    hear()
"""


def test_a_server_ends_when_the_process_that_started_it_is_killed() -> None:
    """With SIGKILL, so that the process itself can clean up nothing."""
    with Child(STARTING) as child:
        pid, directory = child.hear().split()
        assert alive(int(pid))
        child.process.kill()
    eventually(lambda: not alive(int(pid)), "the end of the server")
    eventually(lambda: not Path(directory).exists(), "the removal of its directory")
