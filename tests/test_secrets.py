"""No message tells a password: of the checks, the command, the admin, the logs and the errors."""

from __future__ import annotations

import html
import io
import logging
import pickle
import traceback
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery
from django.conf import LazySettings
from django.test import RequestFactory, override_settings
from django.views.debug import ExceptionReporter, get_default_exception_reporter_filter
from hypothesis import example, given
from hypothesis import settings as bounded
from hypothesis import strategies as some

from django_redis_lock import lock, locks
from django_redis_lock.checks import check_locks, check_reports
from django_redis_lock.exceptions import InvalidLockBackend, LockUnavailable
from django_redis_lock.support.text import keep_secrets, without_passwords
from tests.tools.admin import LIST, page_of, root
from tests.tools.console import command

BACKENDS = "django_redis_lock.backends"
DJANGO_REDIS = "django_redis.cache.RedisCache"
CLOSED = "127.0.0.1:1"
OTHERS = [f"redis://{CLOSED}1", f"redis://{CLOSED}2"]
WORDS = some.text("qxzvkwj0189", min_size=5, max_size=8).filter(lambda word: not word.isdigit())
"""Of letters that stand together in no word of a message."""

URLS = [
    *(f"redis://:{{}}@{CLOSED}/0", f"redis://ada:{{}}@{CLOSED}", f"redis://{{}}@{CLOSED}"),
    *("redis//:{}@localhost", "redis:/:{}@localhost", "://:{}@localhost", ":{}@localhost"),
    *("http://ada:{}@localhost", "REDIS://:{}@localhost", " redis://:{}@localhost"),
    *("redis://:{}@localhost:port", "redis://:{}@localhost:99999999", "redis://:{}@localhost/x"),
    *("redis://:{}@[::1", "redis://:{}@localhost?nonsense=1", "redis://:{}@a..b"),
    *("redis://ada:1/{}@localhost", "redis://:1#{}@localhost", "redis://:1?{}@localhost"),
    *("unix://:{}@/nowhere/a.sock?db=x", "unix:///nowhere/a.sock?password={}", "unix:{}@/x"),
    f"redis://:{{}}@{CLOSED},redis://:{{}}@{CLOSED}",
    *("{}@localhost", "{}@localhost:6379/0", "redis.{}@localhost"),
    *(f"redis://localhost?{name}={{}}" for name in ("pass", "pwd", "auth", "access_token")),
]
PLACES: dict[str, Callable[[str], Any]] = {
    "LOCATION": lambda url: {"default": {"LOCATION": url}},
    "a cluster": lambda url: {"default": {"LOCATION": [url, *OTHERS]}},
    "a quorum": lambda url: {
        "default": {
            "BACKEND": f"{BACKENDS}.redlock.RedlockLockBackend",
            "LOCATION": [*OTHERS, url],
        }
    },
    "getset": lambda url: {
        "default": {"BACKEND": f"{BACKENDS}.getset.GetSetLockBackend", "LOCATION": url}
    },
    "another type": lambda url: {"default": {"LOCATION": {"HOST": url}}},
    "bytes": lambda url: {"default": {"LOCATION": url.encode()}},
    "an entry": lambda url: {"default": url},
    "no dict": lambda url: [url],
    "LOCKS": lambda url: url,
    "an alias": lambda url: {url: {"LOCATION": url}},
    "BACKEND": lambda url: {"default": {"BACKEND": url}},
    "KEY_PREFIX": lambda url: {"default": {"KEY_PREFIX": f"{url} "}},
    "TIMEOUT": lambda url: {"default": {"TIMEOUT": url}},
    "an option": lambda url: {"default": {"LOCATION": OTHERS[0], "OPTIONS": {"WAIT": url}}},
    "OPTIONS": lambda url: {"default": {"OPTIONS": [url]}},
    "an unknown setting": lambda url: {"default": {url: 1}},
    "OPERATORS": lambda url: {"default": {"OPERATORS": {"TASK_LINKS": {"a": f"ftp{url}"}}}},
    "CACHES": lambda url: {"default": {"LOCATION": "cache"}},
}


def told_by_the_command(*words: str) -> str:
    done = command(*words)
    return done.out + done.err


def told_by_the_admin(browser: Any, address: str) -> str:
    page = browser.get(address, follow=True)
    assert page.status_code in (200, 404)
    return html.unescape(page.content.decode())


def told_by_the_errors() -> str:
    """Return what errors and their causes tell, in a traceback, in a result and in a log."""
    told = [f"{item.msg} {item.hint}" for item in check_locks()]
    log = io.StringIO()
    handler, logger = logging.StreamHandler(log), logging.getLogger("django_redis_lock")
    logger.addHandler(handler)
    for attempt in (
        lock("a").locked,
        lambda: list(locks["default"].holders()),
        lambda: locks["nowhere"],
    ):
        try:
            attempt()
        except (InvalidLockBackend, LockUnavailable) as error:
            told += [str(error), repr(error), str(error.args), str(pickle.dumps(error))]
            told += traceback.format_exception(error)
            logger.warning("It failed: %s", error, exc_info=True)
    logger.removeHandler(handler)
    return "\n".join([*told, log.getvalue()])


@pytest.mark.django_db
@pytest.mark.usefixtures("no_workers")
def test_no_message_tells_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stands in LOCKS or CACHES, however that is written, in whole or in part."""
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    browser = root()
    ways: dict[str, Callable[[], str]] = {
        "list": lambda: told_by_the_command("list"),
        "show": lambda: told_by_the_command("show", "a"),
        "release": lambda: told_by_the_command("release", "a", "--noinput"),
        "doctor": lambda: told_by_the_command("doctor"),
        "doctor, JSON": lambda: told_by_the_command("doctor", "--format", "json"),
        "the list of the admin": lambda: told_by_the_admin(browser, LIST),
        "a page of the admin": lambda: told_by_the_admin(browser, page_of("a")),
    }

    @bounded(max_examples=30, deadline=None, database=None, derandomize=True)
    @given(
        words=some.lists(WORDS, min_size=1, max_size=3),
        between=some.sampled_from("/#?@:%&=,;'\"\\<[\N{SNOWMAN} +"),
        is_quoted=some.booleans(),
        written=some.sampled_from(URLS),
        place=some.sampled_from([*PLACES]),
        way=some.sampled_from([*ways]),
    )
    @example(["qqxzv"], "/", False, "redis//:{}@localhost", "BACKEND", "list")
    @example(["qqxzv", "zzqxk"], ":", False, "unix:{}@/x", "LOCATION", "list")
    @example(["qqxzv", "zzqxk"], " ", False, "unix:///x?password={}", "LOCATION", "list")
    @example(["qqxzv"], "/", False, "{}@localhost:6379", "LOCATION", "list")
    @example(["qqxzv", "zzqxk"], "/", False, "{}@localhost", "CACHES", "list")
    @example(["qqxzv"], "/", False, "redis.{}@localhost", "a cluster", "list")
    @example(["qqxzv"], "/", False, "redis://:{}:localhost:6379", "LOCATION", "list")
    @example(["qqxzv"], "/", False, "redis://localhost?pass={}", "LOCATION", "list")
    @example(["qqxzv", "zzqxk"], "&", False, "redis://h?password={}=1", "LOCATION", "list")
    def no_word_is_told(
        words: list[str], between: str, is_quoted: bool, written: str, place: str, way: str
    ) -> None:
        password = between.join(words)
        url = written.replace("{}", quote(password, safe="") if is_quoted else password)
        caches = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
        if place == "CACHES":
            caches["cache"] = {"BACKEND": DJANGO_REDIS, "LOCATION": url}
        with override_settings(CACHES=caches, LOCKS=PLACES[place](url)):
            told = (told_by_the_errors() + ways[way]()).casefold()
        leaks = [told[max(0, told.find(word) - 150) :][:200] for word in words if word in told]
        assert leaks == [], (url, place)

    no_word_is_told()


KNOWN = {
    "default": {"LOCATION": "redis://ada:ab%2Fcdefg@host:6379/0"},
    "short": {"LOCATION": "redis://:abc@host", "KEY_PREFIX": "short"},
    "a word": {"LOCATION": "redis://locker:locker@host/2", "KEY_PREFIX": "word"},
    "alias": {"LOCATION": "locks", "KEY_PREFIX": "alias"},
}
CACHES = {
    "several": {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://h1:6379,redis://h2:6379"},
    "locks": {
        "BACKEND": DJANGO_REDIS,
        "LOCATION": "redis://host/1",
        "OPTIONS": {"PASSWORD": "option-1", "SENTINEL_KWARGS": {"password": "sentinel-1"}},
    },
}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        # Known from the settings: anywhere.
        ("it said ab/cdefg, ab%2fcdefg and AB%2FCDEFG", "it said ***, *** and ***"),
        ("not cast to integer value as 'cdefg'", "not cast to integer value as '***'"),
        ("option-1 and sentinel-1 of ada@host", "*** and *** of ada@host"),
        ("amqp: br0ker", "amqp: ***"),
        # Too short, or a word that messages need: by its place alone.
        ("abc, redis://:abc@host and", "abc, redis://***@host and"),
        ("locker, redis://locker:locker@host", "locker, redis://***@host"),
        # Of redis-py 6.4 and 7.0, for a sentinel that is away.
        ("<Connection(password=unknown,db=0)>", "<Connection(password=***,db=0)>"),
        ("{'password': 'un)kn,own', 'db': 0}", "{'password': ***, 'db': 0}"),
        ("rediss://:p@ss@host/1", "rediss://***@host/1"),
        ("unix:///run/a.sock?db=1&password=unknown&x=1", "unix:///run/a.sock?db=1&password=***&x=1"),
        ("redis://host?username=unknown", "redis://host?username=***"),
        ("redis://:un/kno#wn@host:1/0,redis://host2", "redis://***@host:1/0,redis://host2"),
        ("redis//:unknown@host", "redis//***@host"),
        ("redis://host?db=1&pwd=unknown&token=unknown", "redis://host?db=1&pwd=***&token=***"),
        ("product:ada@example.com", "product:ada@example.com"),
        # A port of several servers is none.
        ("Error 111 connecting to h1:6379", "Error 111 connecting to h1:6379"),
    ],
)  # fmt: skip
def test_what_is_masked(settings: Any, text: str, clean: str) -> None:
    """What the settings have as a password wherever it stands, any other one by its place."""
    settings.CACHES, settings.LOCKS = CACHES, KNOWN
    settings.CELERY_BROKER_URL = "amqp://guest:br0ker@host//"
    assert without_passwords(text) == clean
    assert without_passwords(clean) == clean


BROKEN_BROKER = "redis://:zzqxk/x@127.0.0.1:1/0"
"""What kombu tells of it has the beginning of its password, as a port."""


@pytest.mark.usefixtures("server", "no_workers")
@pytest.mark.parametrize("place", ["the app", "the settings"])
def test_no_message_tells_the_password_of_the_broker(settings: Any, place: str) -> None:
    """The doctor asks it."""
    settings.LOCKS = {"default": settings.LOCKS["default"]}
    app = Celery("with a broken broker")
    if place == "the app":
        app.conf.update(broker_url=BROKEN_BROKER, result_backend=BROKEN_BROKER)
    else:
        settings.CELERY_BROKER_URL = settings.CELERY_RESULT_BACKEND = BROKEN_BROKER
        app.config_from_object("django.conf:settings", namespace="CELERY")
    told = told_by_the_command("doctor") + told_by_the_command("doctor", "--format", "json")
    assert told.count("Port could not be cast to integer value as '***'") >= 2
    assert "zzqxk" not in told
    urls = ["redis://host", "redis://:qqxzv@host"]
    app.conf.broker_url = settings.CELERY_BROKER_URL = urls  # Celery 5.6 reads it only from there
    assert without_passwords("qqxzv") == "***"


def test_settings_that_come_later_are_known(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message before the settings are there takes no later one its mask."""
    settings.LOCKS = {}  # so that what was known before and after is forgotten
    late = LazySettings()
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    monkeypatch.setattr("django_redis_lock.support.passwords.settings", late)
    assert without_passwords("qqxzv") == "qqxzv"
    late.configure(LOCKS={"default": {"LOCATION": "redis://:qqxzv@host"}})
    assert without_passwords("qqxzv") == "***"


def test_all_that_led_to_an_error_is_cleaned() -> None:
    """Its causes, what it is about, and errors that are among its arguments."""
    secret = "redis://:unknown@host"
    error = RuntimeError([secret, secret.encode()], ValueError(secret))
    error.__cause__ = ImportError(secret)
    error.__cause__.__context__ = OSError(2, secret)
    keep_secrets(error)
    assert "unknown" not in "".join(traceback.format_exception(error))
    assert "unknown" not in repr((error, error.__cause__, error.__cause__.__context__))


UNKNOWN = "-".join(("written", "nowhere"))
"""A password that is in no line of this file, for reports show those."""
REPORTS = "django_redis_lock.reporting.PasswordsInUrlsFilter"


@pytest.fixture
def mailed(settings: Any) -> Any:
    """What returns the report that is mailed of an error, and what a debug page shows of it."""
    settings.CACHES, settings.ADMINS = CACHES, [("Ada", "ada@example.com")]
    settings.LOCKS = {
        "default": {"LOCATION": f"redis://:{UNKNOWN}@{CLOSED}"},
        "wrong": {"LOCATION": f"redis://:{UNKNOWN}@{CLOSED}x"},
    }

    def report(using: str, *, debug: bool = False) -> str:
        settings.DEBUG = debug
        get_default_exception_reporter_filter.cache_clear()
        with pytest.raises((InvalidLockBackend, LockUnavailable)) as caught:
            lock("a", using=using).acquire(blocking=False)
        reporter = ExceptionReporter(RequestFactory().get("/"), *caught._excinfo)  # type: ignore[misc]
        return reporter.get_traceback_html() + reporter.get_traceback_text()

    yield report
    get_default_exception_reporter_filter.cache_clear()


def test_reports_show_no_password_with_our_filter(
    settings: Any, mailed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the settings nor the variables of a frame tell it, in mails and on debug pages."""
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    assert UNKNOWN in mailed("default")
    settings.DEFAULT_EXCEPTION_REPORTER_FILTER = REPORTS
    for using in ("default", "wrong"):
        for debug in (False, True):
            told = mailed(using, debug=debug)
            assert UNKNOWN not in told
            assert "redis://***@" in told


def test_frames_that_read_the_settings_show_nothing_in_mails(mailed: Any) -> None:
    """An entry that is wrong is in no variable of a frame, with Django's own filter."""
    frames = mailed("wrong").partition('id="settings-info"')[0]
    ours = frames[frames.index("django_redis_lock/handler.py") :]
    assert UNKNOWN not in ours


def test_mails_that_would_show_a_password_are_warned_of(settings: Any) -> None:
    """Before a deployment, where there is somebody to mail to and no filter of ours."""
    settings.CACHES, settings.LOCKS = CACHES, KNOWN
    assert check_reports() == []
    settings.ADMINS = [("Ada", "ada@example.com")]
    (message,) = check_reports()
    assert (message.id, REPORTS in message.hint) == ("django_redis_lock.W006", True)
    settings.LOCKS = {"default": {"LOCATION": "locks"}}  # its password is an option, and hidden
    assert check_reports() == []
    settings.LOCKS = KNOWN
    settings.DEFAULT_EXCEPTION_REPORTER_FILTER = REPORTS
    assert check_reports() == []
