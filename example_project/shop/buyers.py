"""Many buyers over HTTP who buy at the same moment."""

import http.client
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlencode

TIMEOUT_SECONDS = 60
NO_ANSWER = 0


@dataclass(frozen=True)
class Opened:
    """A buyer has opened the shop's page."""


@dataclass(frozen=True)
class Answer:
    """The shop's answer to a buyer: an HTTP status, or `NO_ANSWER`."""

    buyer: str
    status: int


def rush(
    host: str, port: int, path: str, count: int, before: Callable[[], None] | None = None
) -> Iterator[Opened | Answer]:
    """Let `count` buyers open the page, then post to `path` at once; yield the events.

    `before` is called when all have opened the page.
    """
    events: queue.SimpleQueue[Opened | Answer] = queue.SimpleQueue()
    all_ready = threading.Barrier(count, before)

    def buy(buyer: str) -> None:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        try:
            headers = _open_page(connection)
            events.put(Opened())
            all_ready.wait(TIMEOUT_SECONDS)
            status = _post(connection, path, {"buyer": buyer}, headers)
        except (OSError, http.client.HTTPException, threading.BrokenBarrierError):
            all_ready.abort()
            status = NO_ANSWER
        finally:
            connection.close()
        events.put(Answer(buyer, status))

    for number in range(1, count + 1):
        # Daemon threads, so that an interrupted demo does not wait for their answers.
        threading.Thread(target=buy, args=(f"buyer {number}",), daemon=True).start()
    answered = 0
    while answered < count:
        event = events.get(timeout=2 * TIMEOUT_SECONDS)
        answered += isinstance(event, Answer)
        yield event


def buy_one(host: str, port: int, path: str, buyer: str) -> int:
    """Let one buyer open the page and post to `path`; return the status, or `NO_ANSWER`."""
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        return _post(connection, path, {"buyer": buyer}, _open_page(connection))
    except (OSError, http.client.HTTPException):
        return NO_ANSWER
    finally:
        connection.close()


def _open_page(connection: http.client.HTTPConnection) -> dict[str, str]:
    """Fetch the page, and return the headers that its form needs."""
    connection.request("GET", "/")
    response = connection.getresponse()
    response.read()
    cookie = (response.getheader("Set-Cookie") or "").partition(";")[0]
    return {"Cookie": cookie, "X-CSRFToken": cookie.partition("=")[2]}


def _post(
    connection: http.client.HTTPConnection, path: str, fields: dict[str, str], more: dict[str, str]
) -> int:
    headers = {"Content-Type": "application/x-www-form-urlencoded", **more}
    connection.request("POST", path, urlencode(fields), headers)
    response = connection.getresponse()
    response.read()
    return response.status
