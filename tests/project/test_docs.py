"""The documentation, tested against the code.

The Python blocks of README and of each page run in order, in one namespace and one process for each
page, with Django set up. ``127.0.0.1:6379`` and ``/run/valkey/valkey.sock`` stand for the session's
server. A block that assigns LOCKS or CACHES sets them, and the system checks then find nothing.
HTML comments, which readers do not see, control this:

    <!-- test: skip REASON -->       the block below is not run
    <!-- test                        code that tests what the block above defined
    CODE -->
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import doctest
import importlib
import inspect
import math
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import redis
from django.core.checks import Tags, run_checks
from django.dispatch import Signal
from django.test import override_settings

import django_redis_lock
from django_redis_lock import exceptions, lock, lock_many, locks, signals
from django_redis_lock.backends import settings as entry_settings
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.getset import GetSetLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.redis.backend import WAITING_SCHEMES, RedisLockBackend
from django_redis_lock.backends.redlock import RedlockLockBackend
from django_redis_lock.celery import conflicts, single_instance_task
from django_redis_lock.celery.conflicts import Conflict
from django_redis_lock.celery.message import Slip
from django_redis_lock.celery.options import ON_CONFLICT
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.handler import DEFAULT_BACKEND
from django_redis_lock.support.arguments import Default
from django_redis_lock.views import locked
from example_project.embedded import EmbeddedServer
from tests.contracts.capabilities import CAPABILITIES, LACKS
from tests.tools import ROOT, Background, counted, eventually, syntax_tree, waiters

PACKAGE = Path(django_redis_lock.__file__).parent
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial" / "first-lock.md"
PAGES = sorted(
    path
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]
    if "_build" not in path.parts
    and path != TUTORIAL
    and re.search(r"^```py", path.read_text(), re.MULTILINE)
)

SETTINGS = ("CACHES", "LOCKS", "DJANGO_REDIS_CONNECTION_FACTORY")
BACKENDS = (
    RedisLockBackend,
    RedlockLockBackend,
    GetSetLockBackend,
    LocMemLockBackend,
    DummyLockBackend,
)
_BLOCK = re.compile(
    r"<!-- test\n(?P<hidden>.*?)-->"
    r"|(?:<!-- test: (?P<how>\w+) ?(?P<what>[^\n]*?) -->\n+)?"
    r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, or a hidden one in a comment."""

    language: str
    text: str
    line: int
    how: str
    what: str


def blocks(path: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    page = path.read_text()
    for match in _BLOCK.finditer(page):
        hidden = match["hidden"]
        group = "text" if hidden is None else "hidden"
        yield Block(
            language=match["language"] if hidden is None else "python",
            text=match[group],
            line=page.count("\n", 0, match.start(group)) + 1,
            how=match["how"] or "",
            what=match["what"] or "",
        )


def table(path: Path, heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading, without backticks."""
    section = path.read_text().split(f"# {heading}\n", 1)[1]
    rows = re.search(r"^\|.*?\n(?!\|)", section, re.MULTILINE | re.DOTALL)
    assert rows, f"no table below {heading!r} in {path.name}"
    lines = rows[0].strip().splitlines()[2:]
    return [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]


# This file runs the blocks of a page as a program of its own, so that they leave nothing behind.


def run_page(path: Path, port: int, unix_socket: str) -> None:
    """Run the Python of one page."""
    _set_up_django(port)
    namespace: dict[str, Any] = {"__name__": "example_project.shop.documentation"}
    for block in blocks(path):
        if block.how in ("skip", "append") or block.language not in ("python", "pycon"):
            continue
        text = block.text.replace("127.0.0.1:6379", f"127.0.0.1:{port}")
        text = text.replace("/run/valkey/valkey.sock", unix_socket)
        before = {key: namespace.get(key) for key in SETTINGS}
        if block.language == "pycon":
            _run_examples(path, block, text, namespace)
        else:
            code = compile("\n" * (block.line - 1) + text, str(path), "exec")
            exec(code, namespace)  # noqa: S102 - our own documentation
        changed = {key: namespace[key] for key in SETTINGS if namespace.get(key) is not before[key]}
        if changed:
            override_settings(**changed).enable()
            messages = run_checks()
            assert not messages, f"{path}:{block.line}: {messages}"


def _set_up_django(port: int) -> None:
    os.environ["SHOP_REDIS_URL"] = f"redis://127.0.0.1:{port}"
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    import django
    from celery import Celery
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    for name in ("", ".models"):  # the shop as a reader's own project would have it
        sys.modules[f"shop{name}"] = importlib.import_module(f"example_project.shop{name}")
    app = Celery("documentation", broker="memory://", set_as_current=True)
    app.conf.task_always_eager = True


def _run_examples(path: Path, block: Block, text: str, namespace: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(text, namespace, path.name, str(path), block.line)
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
    namespace.update(test.globs)
    assert not results.failed, f"{path}:{block.line}"


@pytest.mark.parametrize("path", PAGES, ids=[path.stem for path in PAGES])
def test_the_python_of_a_page_runs(path: Path, server: EmbeddedServer, tmp_path: Path) -> None:
    """The code of a page works when it is typed in."""
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.project.test_docs",
            path,
            str(server.port),
            server.unix_socket,
        ],
        cwd=ROOT,
        env={**os.environ, "SHOP_DATABASE": str(tmp_path / "shop.sqlite3")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout


def test_few_blocks_are_not_run() -> None:
    """A skipped block gives a reason, and few are skipped."""
    skipped = [block for path in PAGES for block in blocks(path) if block.how == "skip"]
    assert all(len(block.what) > 10 for block in skipped)
    assert len([block for block in skipped if block.language.startswith("py")]) <= 3


# The tables of the reference.


def test_the_settings_and_their_defaults_are_those_of_the_code(settings: Any) -> None:
    """The table lists the settings of an entry of LOCKS, with their defaults."""
    settings.LOCKS = {"default": {}}
    backend = locks.create("default")
    assert isinstance(backend, RedisLockBackend)
    documented = {row[0]: row[1] for row in table(DOCS / "reference/settings.md", "An entry")}
    assert {name: ast.literal_eval(default) for name, default in documented.items()} == {
        "BACKEND": DEFAULT_BACKEND,
        "LOCATION": backend.location.alias,
        "TIMEOUT": backend.timeout,
        "KEY_PREFIX": backend.key_prefix,
        "OPTIONS": {},
        "OPERATORS": {},
    }
    assert list(documented) == list(entry_settings.SETTINGS)
    of_operators = {row[0]: row[1] for row in table(DOCS / "reference/settings.md", "Operators")}
    assert {name: ast.literal_eval(default) for name, default in of_operators.items()} == {
        field.upper(): value for field, value in dataclasses.asdict(backend.operators).items()
    }


def test_the_options_and_their_defaults_are_those_of_the_code() -> None:
    """The table lists the options of each backend."""
    rows = table(DOCS / "reference/settings.md", "Options")
    taken = {(option, kind.__name__) for kind in BACKENDS for option in kind.options}
    assert {(row[0], row[1]) for row in rows} == taken
    assert [ast.literal_eval(row[2]) for row in rows if row[0] == "WAIT"] == [WAITING_SCHEMES[0]]


@pytest.mark.parametrize(
    ("page", "heading", "function"),
    [
        ("locks.md", "lock()", lock),
        ("locks.md", "lock_many()", lock_many),
        ("celery.md", "single_instance_task", single_instance_task),
        ("views.md", "locked", locked),
    ],
)
def test_the_arguments_and_their_defaults_are_those_of_the_code(
    page: str, heading: str, function: Any
) -> None:
    """The table of arguments matches the signature of the function."""
    documented = [row[:2] for row in table(DOCS / "reference" / page, heading)]
    parameters = inspect.signature(function).parameters.values()
    assert documented == [[item.name, _documented_default(item.default)] for item in parameters]


def _documented_default(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, Default):
        return "not given"
    return f'"{default}"' if isinstance(default, str) else repr(default)


def test_the_capabilities_of_the_backends_are_those_of_the_code() -> None:
    """The table of backends says what each one supports."""
    page = DOCS / "reference/backends.md"
    for name, *documented, many, _ in table(page, "Backends"):
        kind = {kind.__name__: kind for kind in BACKENDS}[name]
        lacked = LACKS.get(name, frozenset())
        assert documented == ["no" if item in lacked else "yes" for item in CAPABILITIES], name
        assert many == str(kind.supports_many), name


def test_the_tree_of_exceptions_is_that_of_the_code() -> None:
    """The page shows all exceptions, each below its base."""
    text = (DOCS / "reference/exceptions.md").read_text()
    (tree,) = re.findall(r"^```text\n(LockError\n.*?)```", text, re.MULTILINE | re.DOTALL)
    ancestors: list[type] = []
    for line in tree.splitlines():
        name = line.lstrip("│├└─ ")
        kind = getattr(exceptions, name)
        del ancestors[(len(line) - len(name)) // 4 :]
        assert kind.__bases__ == (ancestors[-1] if ancestors else Exception,), name
        ancestors.append(kind)
    kinds = {kind.__name__ for kind in vars(exceptions).values() if _is_lock_error(kind)}
    assert kinds == set(re.findall(r"\w+", tree))


def _is_lock_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, exceptions.LockError)


def test_the_arguments_of_the_signals_are_those_that_are_sent(
    server: EmbeddedServer, name: str
) -> None:
    """The table lists all signals, and the arguments of each."""
    sent: dict[Any, list[str]] = {}

    def note(signal: Any, sender: Any, **arguments: Any) -> None:
        sent[signal] = list(arguments)

    known = {key: value for key, value in vars(signals).items() if key.startswith("lock_")}
    for each in known.values():
        each.connect(note)
    try:
        with lock(name):
            lock(name, blocking=False).acquire()
        lost = lock(name)
        lost.acquire()
        locks["default"].force_release(name)
        lost.owned()
        lock(name).acquire()
        locks["default"].free(name, locks["default"].holder(name).token_id)
        with (
            override_settings(LOCKS={"default": {"LOCATION": "redis://127.0.0.1:1"}}),
            pytest.raises(LockUnavailable),
        ):
            lock(name).locked()
    finally:
        for each in known.values():
            each.disconnect(note)
    rows = table(DOCS / "reference/signals.md", "Signals")
    assert {row[0]: row[2].split(", ") for row in rows} == {
        key: sent[signal] for key, signal in known.items()
    }


SHARED = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:6379/1"}
MISTAKES = {
    "E001": ({}, ["default"]),
    "E002": ({}, {"default": {"TIMEOUT": 0}}),
    "E003": ({"locks": SHARED}, {"other": {"LOCATION": "locks"}}),
    "E004": ({}, {"default": {"LOCATION": "nowhere"}}),
    "E005": ({}, None),
    "E006": (
        {"locks": SHARED},
        {
            "default": {"LOCATION": "locks"},
            "shop": {"LOCATION": "locks", "KEY_PREFIX": "lock:shop"},
        },
    ),
    "E007": (
        {
            "locks": {
                **SHARED,
                "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"},
            }
        },
        {"default": {"LOCATION": "locks"}},
    ),
    "E009": (
        {"locks": {**SHARED, "LOCATION": "redis://127.0.0.1/one"}},
        {"default": {"LOCATION": "locks"}},
    ),
    "W001": ({"shared": SHARED}, {"default": {"LOCATION": SHARED["LOCATION"]}}),
    "W006": ({}, {"default": {"LOCATION": "redis://:coded@127.0.0.1"}}),
}


@pytest.mark.parametrize("number", MISTAKES)
def test_each_system_check_finds_what_its_page_says(number: str, settings: Any) -> None:
    """Each system check reports its mistake, and nothing else."""
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        **MISTAKES[number][0],
    }
    settings.LOCKS = MISTAKES[number][1]
    settings.ADMINS = [("Ada", "ada@example.com")]
    assert _found_by_checks() == [f"django_redis_lock.{number}"]


def _found_by_checks() -> list[str | None]:
    """Return the ids of the messages, except those about tasks that other tests define."""
    found = [
        *run_checks(),
        *run_checks(tags=[Tags.security], include_deployment_checks=True),
    ]
    ours = [item for item in found if (item.id or "").startswith("django_redis_lock.")]
    return [item.id for item in ours if not str(item.msg).startswith("Task ")]


def test_the_system_checks_are_those_of_the_code() -> None:
    """The page and the code have the same ids."""
    page = DOCS / "reference/checks.md"
    of_settings = [row[0].rpartition(".")[2] for row in table(page, "System checks")]
    of_tasks = [row[0].rpartition(".")[2] for row in table(page, "Celery tasks")]
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    in_code = sorted(set(re.findall(r"\b[EWI]\d{3}\b", source)))
    assert sorted([*of_settings, *of_tasks]) == in_code
    assert list(MISTAKES) == of_settings


def test_a_skipped_task_tells_what_its_page_says(server: EmbeddedServer, name: str) -> None:
    """The table lists the keys of TaskSkipped."""
    with lock(name):
        task, holder = SimpleNamespace(name="task"), locks["default"].holder(name)
        result = Conflict("run", task, None, name, holder, (), {}).skip()
    rows = table(DOCS / "reference/celery.md", "TaskSkipped")
    assert [row[0] for row in rows] == list(result)
    assert re.findall(r"task_id|task_name|host|pid|since|ttl", rows[-1][1]) == list(
        result["holder"]
    )


def test_the_signals_of_tasks_are_those_of_the_code() -> None:
    """The table lists all signals of tasks."""
    rows = table(DOCS / "reference/celery.md", "Signals")
    known = [name for name, value in vars(conflicts).items() if isinstance(value, Signal)]
    assert [row[0] for row in rows] == known


def test_the_fields_of_a_conflict_and_of_the_header_are_those_of_the_code() -> None:
    """The tables of Conflict and of the message header list each field."""
    page = DOCS / "reference/celery.md"
    told = [name for row in table(page, "Conflict") for name in row[0].split(", ")]
    assert told == [field.name for field in fields(Conflict)]
    assert [row[0] for row in table(page, "Message header")] == [
        field.name for field in fields(Slip)
    ]


def test_the_policies_are_those_of_the_code() -> None:
    """The table says at which moments each policy is possible."""
    rows = table(DOCS / "reference/celery.md", "Policies")
    told = {(policy, moment) for policy, moments, _ in rows for moment in moments.split(", ")}
    assert told == {(policy, moment) for moment, known in ON_CONFLICT.items() for policy in known}


def test_the_log_lines_of_tasks_are_those_of_the_code() -> None:
    """The table has every log line of the guard, and no other."""
    prefix = "Task %s[%s] "
    logged = {
        node.value.removeprefix(prefix)
        for path in (PACKAGE / "celery").glob("*.py")
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Constant)
        and re.search(r"%[srg]", str(node.value))
        and node.value not in (prefix, "%s %s (%s)")  # put together with another text
    }
    told = {row[1] for row in table(DOCS / "reference/celery.md", "Log")}
    without_values = {line for line in told if "%" not in line}
    assert {line.removeprefix(prefix) for line in told - without_values} == logged
    source = (PACKAGE / "celery/deaths.py").read_text()
    assert all(f'"{line}"' in source for line in without_values)


def test_the_log_lines_of_views_are_those_of_the_code() -> None:
    """The table has every log line of views, and no other."""
    logged = {
        (node.func.attr.upper(), node.args[0].value)
        for module in (PACKAGE / "views").glob("*.py")
        for node in ast.walk(syntax_tree(module))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "logger"
        and isinstance(node.args[0], ast.Constant)
    }
    assert {(level, line) for level, line in table(DOCS / "reference/views.md", "Log")} == logged


def test_the_numbers_are_those_of_the_code() -> None:
    """Each constant that a page names has the value that it gives."""
    for path, value, _ in table(DOCS / "reference/keys.md", "Numbers"):
        assert _constant(path) == ast.literal_eval(value), path


def _constant(path: str) -> Any:
    """Find ``module.NAME`` or ``module.Class.NAME`` in the package, whatever folder it is in."""
    parts = path.split(".")
    depth = next(number for number, part in enumerate(parts) if not part.islower())
    modules = [
        file.relative_to(PACKAGE).with_suffix("")
        for file in PACKAGE.rglob("*.py")
        if list(file.with_suffix("").parts[-depth:]) == parts[:depth]
    ]
    assert len(modules) == 1, f"{path} is in {modules}"
    found: Any = importlib.import_module(".".join(("django_redis_lock", *modules[0].parts)))
    for name in parts[depth:]:
        found = getattr(found, name)
    return found


def test_the_keys_on_the_server_are_those_that_the_reference_lists(
    server: EmbeddedServer, client: redis.Redis, name: str
) -> None:
    """A held lock with a waiter has the listed keys and channel; some of them stay for good."""
    page = DOCS / "reference/keys.md"
    listed = {row[0].replace("{name}", name): row[1] for row in table(page, "Keys on the server")}
    lock(name, timeout=60).acquire()
    locks["default"].force_release(name)
    lock(name, timeout=60).acquire()
    locks["default"].free(name, locks["default"].holder(name).token_id)
    with lock(name):
        waiter = Background(lock(name).acquire)
        eventually(lambda: waiters(name))
        eventually(lambda: client.exists("lock-heard"))  # by its next look
        kinds = {"zset": "sorted set"}
        found = {key: client.type(key) for key in client.keys("*")}
        assert {key: kinds.get(kind, kind) for key, kind in found.items()} == listed
        channels = client.pubsub_channels("*")  # those of closed ones for a moment
        assert locks["default"].hub.channel in channels
        assert all(re.fullmatch(r"lock-grant:\w+-\d+", channel) for channel in channels)
    assert waiter.outcome()
    locks["default"].force_release(name)
    for_good = {key for key in client.keys("*") if client.ttl(key) < 0}
    assert for_good == {"lock-audit", "lock-lost", "lock-fence"}


# The rule for the server's user.


USERS = {"queue": "locker", "blpop": "popper", "poll": "poller"}
"""The user on the page for each waiting scheme."""


def acl_rule(wait: str = "queue") -> list[str]:
    """Return the arguments of a rule on its page."""
    text = (DOCS / "how-to/restrict-by-acl.md").read_text()
    (rule,) = re.findall(rf"^ACL SETUSER {USERS[wait]} (.*)$", text, re.MULTILINE)
    return str(rule).split()


@pytest.fixture
def wait() -> str:
    """The waiting scheme."""
    return "queue"


@pytest.fixture
def locker(own_server: EmbeddedServer, wait: str) -> Iterator[Callable[[list[str]], redis.Redis]]:
    """Give the locks a user with a rule; return a client of the administrator."""
    entry = {
        "LOCATION": f"redis://locker:secret@127.0.0.1:{own_server.port}/1",
        "TIMEOUT": 20,
        "OPTIONS": {"WAIT": wait, "POLL_INTERVAL": 0.02},
    }
    with (
        redis.Redis.from_url(own_server.url(1), decode_responses=True) as admin,
        override_settings(LOCKS={"default": entry}),
    ):

        def become(rule: list[str]) -> redis.Redis:
            admin.execute_command("ACL", "SETUSER", "locker", "reset", *rule)
            return admin

        yield become


@pytest.mark.parametrize("wait", USERS)
def test_the_acl_rule_is_enough_and_has_nothing_to_spare(
    wait: str, locker: Callable[[list[str]], redis.Redis]
) -> None:
    """A user with the documented rule can do everything, and uses each command that it names."""
    admin = locker(acl_rule(wait))
    with counted(admin) as counts:
        _do_everything(admin)
    allowed = {word[1:] for word in acl_rule(wait) if word.startswith("+")}
    of_the_connection = {"auth", "hello", "client|setinfo"}
    of_this_test = {"config|resetstat", "info", "zscore", "subscribe", "unsubscribe"} - allowed
    used = {command for command, calls in counts.items() if calls}
    assert used - of_the_connection - of_this_test == allowed


def _do_everything(admin: redis.Redis) -> None:
    first = lock("a", timeout=20)
    assert first.acquire()
    assert first.extend(10)
    assert first.locked()
    first.ensure_held()
    heir = lock("a", timeout=20)
    waiting = Background(heir.acquire)
    eventually(lambda: waiters("a"))
    first.extend(5, replace_ttl=True)  # the waiters are told
    assert lock("a", blocking_timeout=0.05).acquire() is False  # and one of them gives up
    first.release()
    assert waiting.outcome()
    assert [holder.name for holder in locks["default"].holders()] == ["a"]
    admin.zadd("lock-index", {f"endless:{number}": math.inf for number in range(20)})
    with patch.object(RedisLockBackend, "page_size", 1):  # ten names a page
        assert len(list(locks["default"].read_index("endless:*").latest())) == 20
    assert locks["default"].force_release("a")
    assert len(locks["default"].history("a")) == 1

    with admin.pubsub() as deaf:  # a process that is told of its turn and does not run
        deaf.subscribe("lock-grant:deaf")
        deaf.get_message(timeout=5)
        with lock("deaf", timeout=20):
            admin.rpush("lock-queue:deaf", 'lock-grant:deaf token 20000 {"host":"deaf"}')
        assert lock("deaf", blocking_timeout=10).acquire()
        assert admin.lpos("lock-queue:deaf", 'lock-grant:deaf token 20000 {"host":"deaf"}') == 0
        locks["default"].force_release("deaf")

    with lock("renewed", timeout=2, auto_renew=True):
        end = admin.zscore("lock-index", "renewed")
        eventually(lambda: admin.zscore("lock-index", "renewed") > end)
    with lock("endless", timeout=None):
        pass
    assert lock("lapsed", timeout=0.001).acquire()
    eventually(lambda: not locks["default"].holder("lapsed"))
    eventually(_the_index_is_swept(admin))
    asyncio.run(_do_it_under_asyncio())


def _the_index_is_swept(admin: redis.Redis) -> Callable[[], bool]:
    def swept() -> bool:
        with lock("sweeper", timeout=5):
            return admin.zscore("lock-index", "lapsed") is None

    return swept


async def _do_it_under_asyncio() -> None:
    first, second = lock("b", timeout=20), lock("b", timeout=20)
    await first.aacquire()
    waiting = asyncio.ensure_future(second.aacquire())
    await asyncio.to_thread(eventually, lambda: waiters("b"))
    await first.arelease()
    assert await waiting
    await second.arelease()


@pytest.mark.parametrize("pattern", [word for word in acl_rule() if word.startswith("~")])
def test_each_key_pattern_of_the_acl_rule_is_needed(
    pattern: str, locker: Callable[[list[str]], redis.Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, a lock can't be taken, force-released or audited; the error says why."""
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    locker([word for word in acl_rule() if word != pattern])
    with pytest.raises(LockUnavailable, match=r"(?i)permissions to access .*key"):
        lock("a", timeout=20).acquire(blocking=False)
        locks["default"].force_release("a")
        locks["default"].history("a")


def test_without_its_channels_a_user_can_lock_but_not_wait(
    locker: Callable[[list[str]], redis.Redis],
) -> None:
    """A wait without its channel fails at once, and says that channels are refused."""
    locker([word for word in acl_rule() if not word.startswith("&")])
    with (
        lock("a", timeout=20),
        pytest.raises(LockUnavailable, match=r"listen for grants: .*channel"),
    ):
        lock("a", blocking_timeout=20).acquire()
    assert lock("a", timeout=20).acquire()


# README, CONTRIBUTING, the map of the pages, the architecture, and the changelog.


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/index.md"])
def test_the_links_of_a_page_outside_the_build_lead_somewhere(page: str) -> None:
    """Each relative link is a file of the project; Sphinx checks those of the other pages."""
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    assert links
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []


def test_the_readme_is_short() -> None:
    """The rest is on the pages that it links to."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_the_index_lists_every_page() -> None:
    """The map of the documentation has each page once."""
    index = (DOCS / "index.md").read_text()
    pages = [path.relative_to(DOCS) for path in DOCS.rglob("*.md") if path.stem != "index"]
    assert [
        str(page) for page in pages if index.count(f"({page})") != 1 and "_build" not in page.parts
    ] == []


def test_the_commands_of_the_readme_exist() -> None:
    """README says what to type first, and names only targets that the Makefile has."""
    assert {"demo", "test"} <= _targets_of("README.md") <= _targets()


def test_contributing_lists_the_targets() -> None:
    """Each target of the Makefile but those for maintainers has its row, and no other has one."""
    rows = {row[0].removeprefix("make ") for row in table(ROOT / "CONTRIBUTING.md", "Set up")}
    maintenance = {"help", "screenshots", "messages", "constraints", "format", "build", "clean"}
    assert rows == _targets() - maintenance
    assert _targets_of("CONTRIBUTING.md") <= _targets()


def _targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _targets_of(page: str) -> set[str]:
    """Return the ``make`` targets that a page names."""
    found = re.findall(r"`make (\w+)|\$ make (\w+)", (ROOT / page).read_text())
    return {first or second for first, second in found}


def test_the_files_that_contributing_names_exist() -> None:
    """Each path in code marks leads to a file of the project or the package."""
    names = re.findall(r"`([\w/]+\.(?:py|md|txt))`", (ROOT / "CONTRIBUTING.md").read_text())
    assert names
    assert [
        name for name in names if not ((PACKAGE / name).exists() or (ROOT / name).exists())
    ] == []


def test_the_picture_of_the_layers_is_that_of_the_contract() -> None:
    """The text diagram has the layers that import-linter enforces."""
    text = (DOCS / "explanation/architecture.md").read_text()
    picture = text.split("<!-- layers -->", 1)[1].split("```")[1]
    drawn = [line.split("│")[1].split() for line in picture.splitlines() if line.startswith("│")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (
        each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers"
    )
    assert drawn == [re.split(r"\s*[:|]\s*", layer) for layer in contract["layers"]]


def test_the_files_that_the_architecture_names_exist() -> None:
    """The table of what to open for which change leads to files of the package and its tests."""
    rows = table(DOCS / "explanation/architecture.md", "To change this, open that")
    named = [
        name
        for row in rows
        for cell in row[1:]
        for name in re.findall(r"(?<!\S)[\w/]*(?:/|\.\w+)(?=[,\s]|$)", cell)
    ]
    assert len(named) > len(rows)
    assert [
        name for name in named if not ((PACKAGE / name).exists() or (ROOT / name).exists())
    ] == []


def test_the_needed_versions_are_those_of_the_project() -> None:
    """README names the oldest versions that the package accepts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    readme = (ROOT / "README.md").read_text()
    sentence = re.search(r"^It needs .*?newer", readme, re.MULTILINE | re.DOTALL)
    assert sentence
    needed = [project["requires-python"].replace(">=", "Python>=")]
    needed += project["dependencies"] + project["optional-dependencies"]["celery"]
    titles = {"redis": "redis-py", "django": "Django", "celery": "Celery"}
    for item in needed:
        package, version = item.replace("[redis]", "").split(">=")
        assert f"{titles.get(package, package)} {version}" in sentence[0], item


def test_the_changelog_tells_of_this_version() -> None:
    """The version of the package has its entry."""
    assert f"## [{django_redis_lock.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


if __name__ == "__main__":
    run_page(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
