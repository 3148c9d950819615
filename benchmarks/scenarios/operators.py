"""What the admin's list and the command cost when very many locks are held."""

import http.client
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from threading import Event, Lock, Thread

from benchmarks.bench import Bench, Chart, Scenario
from benchmarks.frame.figures import number
from benchmarks.frame.processes import peak_memory
from benchmarks.frame.server import commands
from benchmarks.frame.table import Column, Row
from benchmarks.site import BACKEND, Site, environ, serve
from example_project.settings import TEMPLATES

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
"""How the script in the browser polls unless the server sets a pause: see held_locks.js."""
ANSWER_WITHIN = 30.0
"""Seconds after which a tab's request has failed, as behind a proxy."""
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
ADMIN_APPS = ("admin", "auth", "contenttypes", "messages", "sessions")


def environment(bench: Bench, directory: Path) -> dict[str, str]:
    return environ(
        directory,
        ROOT_URLCONF="benchmarks.scenarios.operators_urls",
        STATIC_URL="static/",
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(directory / "site.sqlite3"),
            }
        },
        SESSION_ENGINE="django.contrib.sessions.backends.file",
        SESSION_FILE_PATH=str(directory),
        LOCKS={"default": {"BACKEND": BACKEND, "LOCATION": f"redis://127.0.0.1:{bench.port}/0"}},
        INSTALLED_APPS=[*(f"django.contrib.{app}" for app in ADMIN_APPS), "django_redis_lock"],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=TEMPLATES,
    )


def get(
    site: Site, cookie: str, query: str = "", live: bool = False, path: str = LIST
) -> tuple[int, str | None]:
    """Get the list; return the status, and the pause that the server asks the script for."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=ANSWER_WITHIN)
    try:
        headers = {"Cookie": f"sessionid={cookie}", **(LIVE if live else {})}
        connection.request("GET", path + query, headers=headers)
        response = connection.getresponse()
        response.read()
        return response.status, response.getheader("X-Held-Locks-Every")
    finally:
        connection.close()


def views(site: Site, cookie: str, rounds: int) -> Row:
    """Open pages of the list, each once without and once with a recent snapshot of the names."""
    took: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for query in ("", "?p=3&o=1", "?q=00042", "?using=default"):
            get(site, cookie, path=FORGET)
            for key in ("first_cpu", "view_cpu"):
                before = site.cpu_seconds()
                get(site, cookie, query)
                took.setdefault((key, query), []).append(site.cpu_seconds() - before)
    row: Row = {}
    for (key, _), times in took.items():
        row[key] = max(row.get(key, 0.0), median(times))
    return {**row, "views_memory": peak_memory(site.processes())}


def tabs(bench: Bench, site: Site, cookie: str) -> Row:
    """Keep tabs open that poll as the script in the browser does."""
    count, seconds = bench.sizes.operator_tabs, bench.sizes.operator_seconds
    end, mutex = Event(), Lock()
    answered, failed, pauses = 0, 0, [0.0]

    def tab(place: int) -> None:
        nonlocal answered, failed
        if end.wait(place * EVERY / count):
            return
        while not end.is_set():
            began = time.monotonic()
            try:
                status, every = get(site, cookie, live=True)
            except OSError:
                status, every = 0, None
            pause = max(float(every or EVERY), PATIENCE * (time.monotonic() - began))
            with mutex:
                answered += status == 200
                failed += status != 200
                pauses.append(pause)
            end.wait(pause)

    threads = [Thread(target=tab, args=(place,), daemon=True) for place in range(count)]
    cpu, calls, began = site.cpu_seconds(), commands(bench.admin), time.monotonic()
    for thread in threads:
        thread.start()
    try:
        time.sleep(seconds)
        took = time.monotonic() - began
        evals = commands(bench.admin).get("evalsha", 0) - calls.get("evalsha", 0)
        used = site.cpu_seconds() - cpu
    finally:
        end.set()
    for thread in threads:
        thread.join()
    return {
        "tabs_cpu": 100 * used / took,
        "tabs_calls": evals / took,
        "answers": answered / took,
        "failed": failed,
        "pause": median(pauses),
        "memory": peak_memory(site.processes()),
    }


def command(env: dict[str, str], *arguments: str) -> Row:
    """Run the command; return its seconds and its peak memory in MB."""
    code = f"import sys; sys.argv[1:] = {list(arguments)!r}; " + (
        "from django.core.management import execute_from_command_line as run; run()"
        if arguments
        else "import django; django.setup(); import django_redis_lock.management.commands.locks"
    )
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.DEVNULL)
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
    sizes, step = bench.sizes, 5000
    for first in range(1, sizes.operator_locks + 1, step):
        bench.admin.eval(FILL, 0, first, min(first + step - 1, sizes.operator_locks))
    with tempfile.TemporaryDirectory() as directory:
        env = environment(bench, Path(directory))
        login = [sys.executable, "-c", LOGIN]
        printed = subprocess.run(login, env=env, capture_output=True, text=True, check=True)
        cookie = printed.stdout.strip()
        for workers in (1, 4):
            with serve(env, workers, threads=8) as site:
                row: Row = {"title": f"the admin's list, {workers} worker{'s'[: workers - 1]}"}
                if workers == 1:
                    row |= views(site, cookie, sizes.operator_rounds)
                bench.rows[f"workers-{workers}"] = row | tabs(bench, site, cookie)
        bare = command(env)
        for slug, *arguments in (("table",), ("json", "--format", "json")):
            row = command(env, "locks", "list", *arguments)
            bench.rows[slug] = {
                "title": f"`{' '.join(('locks', 'list', *arguments))}`",
                "memory_more": row["memory"] - bare["memory"],
                **row,
            }


SCENARIO = Scenario(
    name="operators",
    title="{operator_locks:,} held locks, watched by {operator_tabs} operators",
    how=(
        "The admin's list on gunicorn, with 8 threads in each worker. CPU seconds of a view: the "
        "greatest median of the first page, one sorted by name, a search and a backend, where the "
        "names must be read (a first view) and where they were just read; peak MB of the worker "
        "after {operator_rounds} rounds of these. Then {operator_tabs} tabs for "
        "{operator_seconds:.0f} s, each of which polls when the page says, with the script calls "
        "that reach the server. The command writes to `/dev/null`; its memory is compared with a "
        "Django process that has imported it."
    ),
    measure=measure,
    seconds=lambda sizes: (
        25 + 2 * sizes.operator_seconds + sizes.operator_rounds * sizes.operator_locks / 100_000
    ),
    columns=(
        Column("first_cpu", "CPU s a first view", number),
        Column("view_cpu", "CPU s a view", number),
        Column("views_memory", "MB after the views", number),
        Column("tabs_cpu", "tabs: % of a core", number),
        Column("tabs_calls", "EVALSHA/s", number),
        Column("answers", "answers/s", number),
        Column("failed", "failed", number),
        Column("pause", "s between two", number),
        Column("seconds", "s", number),
        Column("cpu", "CPU s", number),
        Column("memory", "MB at most", number),
        Column("memory_more", "MB more than Django", number),
    ),
    charts=(Chart("tabs_cpu", "% of a core; lower is better"),),
)
