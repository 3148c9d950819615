"""What the admin's list and the command cost where very many locks are held."""

import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Lock, Thread
from typing import Any

from example_project.embedded import free_port

from ..model import Bench, Chart, Column, Row, Scenario
from ..server import commands, wait_until
from ..show import number

FILL = """
local time = redis.call('TIME')
local now = time[1] * 1000
for i = ARGV[1], ARGV[2] do
  local name = string.format('product:%06d', i)
  local lease = 600000 + i * 7 % 3600000
  local record = string.format('{"host":"web-%d","pid":%d,"thread":"MainThread","auto_renew":true'
    .. ',"lease":30000', i % 20, 1000 + i % 400)
  if i % 3 == 0 then
    record = record .. string.format(
      ',"task_id":"8c1f0000-0000-0000-0000-%012d","task_name":"shop.tasks.import_products"', i)
  end
  redis.call('SET', 'lock:' .. name,
    string.format('%032x %.0f %s}', i, (now - i % 900000) * 1000, record), 'PX', lease)
  redis.call('ZADD', 'lock-index', now + lease, name)
end
"""
"""Holds locks as other processes would."""
LIST = "/admin/django_redis_lock/heldlock/"
FORGET = "/forget/"
LIVE = {"X-Held-Locks": "live"}
EVERY, PATIENCE = 3.0, 4
"""What the script in the browser does where the server does not tell: see held_locks.js."""
ANSWER_WITHIN = 30.0
"""Seconds after which a tab takes its request to have failed, as a proxy in front would."""
LOGIN = """
import django; django.setup()
from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY, BACKEND_SESSION_KEY, get_user_model
from django.contrib.sessions.backends.file import SessionStore
from django.core.management import call_command
call_command("migrate", verbosity=0)
user = get_user_model().objects.create_superuser("root")
session = SessionStore()
session[SESSION_KEY] = str(user.pk)
session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
session[HASH_SESSION_KEY] = user.get_session_auth_hash()
session.save()
print(session.session_key)
"""
CLOCK = os.sysconf("SC_CLK_TCK")


class Site:
    """A site in worker processes of gunicorn, and its figures."""

    def __init__(self, port: int, pid: int, cookie: str) -> None:
        self.port = port
        self._pid = pid
        self._cookie = cookie

    def get(self, query: str = "", live: bool = False, path: str = LIST) -> tuple[int, str | None]:
        """Get the list; return the status and when the script is to come again."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_WITHIN)
        try:
            headers = {"Cookie": f"sessionid={self._cookie}", **(LIVE if live else {})}
            connection.request("GET", path + query, headers=headers)
            response = connection.getresponse()
            response.read()
            return response.status, response.getheader("X-Held-Locks-Every")
        finally:
            connection.close()

    def workers(self) -> list[int]:
        """Return the numbers of the worker processes."""
        listed = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    def cpu(self) -> float:
        """Return the processor's seconds that the workers have taken."""
        used = 0
        for pid in self.workers():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += int(fields[11]) + int(fields[12])
        return used / CLOCK

    def memory(self) -> float:
        """Return the most MB that a worker has had in memory."""
        return max(
            int(line.split()[1]) / 1024
            for pid in self.workers()
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("VmHWM:")
        )


def environment(bench: Bench, store: str) -> dict[str, str]:
    """Return what the processes of the site need to know."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "benchmarks.operators_settings",
        "OPERATORS_URL": f"redis://127.0.0.1:{bench.port}/0",
        "OPERATORS_STORE": store,
    }


@contextmanager
def site(bench: Bench, store: str, cookie: str, workers: int) -> Iterator[Site]:
    """Run the site."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "benchmarks.operators_site:application", "--log-level",
         "error", "--bind", f"127.0.0.1:{port}", "--workers", str(workers), "--threads", "8",
         "--timeout", "120"],
        env=environment(bench, store),
    )  # fmt: skip
    found = Site(port, server.pid, cookie)

    def answers() -> bool:
        try:
            return found.get("?q=nothing-has-this-name")[0] == 200
        except OSError:
            return False

    try:
        wait_until(answers, "the site answers")
        yield found
    finally:
        server.terminate()
        server.wait()


def views(found: Site, rounds: int) -> Row:
    """Open pages of the list, each first with names that must be read, then with names that were.

    The worker's memory is looked at when it has shown all of them so many times.
    """
    took: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for query in ("", "?p=3&o=1", "?q=00042", "?using=default"):
            found.get(path=FORGET)
            for key in ("first_cpu", "view_cpu"):
                before = found.cpu()
                found.get(query)
                took.setdefault((key, query), []).append(found.cpu() - before)
    row: Row = {}
    for (key, _), times in took.items():
        row[key] = max(row.get(key, 0.0), median(times))
    return {**row, "views_memory": found.memory()}


def tabs(bench: Bench, found: Site, count: int, seconds: float) -> Row:
    """Keep so many tabs open, each as the script does."""
    end, mutex = Event(), Lock()
    answered, failed, pauses = 0, 0, [0.0]

    def tab(number: int) -> None:
        nonlocal answered, failed
        if end.wait(number * EVERY / count):
            return
        while not end.is_set():
            began = time.monotonic()
            try:
                status, every = found.get(live=True)
            except OSError:
                status, every = 0, None
            took = time.monotonic() - began
            pause = max(float(every or EVERY), PATIENCE * took)
            with mutex:
                answered += status == 200
                failed += status != 200
                pauses.append(pause)
            end.wait(pause)

    threads = [Thread(target=tab, args=(number,)) for number in range(count)]
    cpu, calls, began = found.cpu(), commands(bench.admin), time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    took = time.monotonic() - began
    evals = commands(bench.admin).get("evalsha", 0) - calls.get("evalsha", 0)
    used = found.cpu() - cpu
    end.set()
    for thread in threads:
        thread.join()
    return {
        "tabs_cpu": 100 * used / took,
        "tabs_calls": evals / took,
        "answers": answered / took,
        "failed": failed,
        "pause": median(pauses),
    }


def command(bench: Bench, store: str, *arguments: str) -> Row:
    """Run the command; return its seconds and the most MB that it had in memory."""
    code = f"import sys; sys.argv[1:] = {list(arguments)!r}; " + (
        "from django.core.management import execute_from_command_line as run; run()"
        if arguments
        else "import django; django.setup(); import django_redis_lock.management.commands.locks"
    )
    began = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(bench, store), stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"locks {arguments} ended with {child.returncode}")
    return {
        "seconds": time.monotonic() - began,
        "cpu": usage.ru_utime + usage.ru_stime,
        "memory": usage.ru_maxrss / 1024,
    }


def measure(bench: Bench) -> None:
    """Hold the locks; open the list, keep tabs open, and list with the command."""
    sizes, step = bench.sizes, 5000
    for first in range(1, sizes.operator_locks + 1, step):
        bench.admin.eval(FILL, 0, first, min(first + step - 1, sizes.operator_locks))
    with tempfile.TemporaryDirectory() as store:
        login = [sys.executable, "-c", LOGIN]
        told = subprocess.run(
            login, env=environment(bench, store), capture_output=True, text=True, check=True
        )
        cookie = told.stdout.strip()
        for workers in (1, 4):
            with site(bench, store, cookie, workers) as found:
                row: Row = {"title": f"the admin's list, {workers} worker{'s'[: workers - 1]}"}
                if workers == 1:
                    row |= views(found, sizes.operator_rounds)
                row |= tabs(bench, found, sizes.operator_tabs, sizes.operator_seconds)
                row["memory"] = found.memory()
                bench.rows[f"workers-{workers}"] = row
        bare = command(bench, store)
        for slug, arguments in {
            "table": ("locks", "list"),
            "json": ("locks", "list", "--format", "json"),
        }.items():
            row = {"title": f"`{' '.join(arguments)}`", **command(bench, store, *arguments)}
            row["memory_more"] = row["memory"] - bare["memory"]
            bench.rows[slug] = row


def column(key: str, heading: str, show: Callable[[Any], str] = number) -> Column:
    return Column(key, heading, show)


SCENARIO = Scenario(
    name="operators",
    title="{operator_locks:,} held locks, looked at by {operator_tabs} operators",
    how=(
        "The admin's list on gunicorn, with 8 threads in each worker: the processor's seconds of "
        "a view, the greatest median of the first page, of one by name, of a search and of a "
        "backend, where the names must be read for it (a first view) and where they were just now; "
        "the most MB of the worker after so many rounds of these: {operator_rounds}; then "
        "{operator_tabs} tabs for {operator_seconds:.0f} s, each of which asks again when the page "
        "says, with the calls of scripts that come to the server. The command writes to "
        "`/dev/null`; its memory is beside that of a Django process that has imported it."
    ),
    measure=measure,
    columns=(
        column("first_cpu", "CPU s a first view"),
        column("view_cpu", "CPU s a view"),
        column("views_memory", "MB after the views"),
        column("tabs_cpu", "tabs: % of a core"),
        column("tabs_calls", "EVALSHA/s"),
        column("answers", "answers/s"),
        column("failed", "failed"),
        column("pause", "s between two"),
        column("seconds", "s"),
        column("cpu", "CPU s"),
        column("memory", "MB at most"),
        column("memory_more", "MB more than Django"),
    ),
    charts=(
        Chart(
            "{operator_tabs} tabs on {operator_locks:,} locks",
            {"tabs_cpu": ""},
            "% of a core",
            "lower",
        ),
    ),
)
