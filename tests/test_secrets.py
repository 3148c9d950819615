"""No message tells a password: of the checks, the command, the admin, the logs and the errors."""

from __future__ import annotations

import asyncio
import html
import pickle
import traceback
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
import redis
from celery import Celery
from django.test import RequestFactory, override_settings
from django.views.debug import ExceptionReporter, get_default_exception_reporter_filter
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as some

from django_redis_lock import lock
from django_redis_lock.checks import check_locks, check_reports
from django_redis_lock.exceptions import InvalidLockBackend, LockUnavailable
from django_redis_lock.support.text import hide_secrets, without_passwords
from example_project.embedded import EmbeddedServer
from tests.tools.admin import LIST, page_of, root
from tests.tools.console import command

DJANGO_REDIS = "django_redis.cache.RedisCache"
SECRET = "-".join(("qqxzv", "7"))  # in no line of this file, for reports show those
REPORTS = "django_redis_lock.reporting.PasswordsInUrlsFilter"
PASSWORDS = some.text(some.characters(codec="utf-8", exclude_categories=["C"]), min_size=4).map(
    lambda text: f"qxz{text}vkj"
)


@bounded(max_examples=60, deadline=None, database=None, derandomize=True)
@given(
    password=PASSWORDS,
    place=some.sampled_from(["LOCKS", "a list", "CACHES", "an option", "CELERY_BROKER_URL"]),
    message=some.sampled_from(
        ["it said {!s}", "cast as {!r}", "WRONGPASS {!s}, {!s}", "a{!s}b", "{{'PASSWORD': {!r}}}"]
    ),
)
def test_a_password_of_the_settings_is_masked_anywhere(
    password: str, place: str, message: str
) -> None:
    """And one that is in no setting, where it stands in a URL or after ``password=``."""
    encoded = quote(password, safe="")
    assert encoded not in without_passwords(f"no redis://ada:{encoded}@h:1/0, redis://h2")
    assert password not in without_passwords(f"<Connection(password={password!r}, db=0)>")
    url = f"redis://ada:{encoded}@h:6379/0"
    cache: dict[str, Any] = {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://h"}
    given: dict[str, Any] = {"LOCKS": {}, "CACHES": {"default": cache}}
    match place:
        case "LOCKS":
            given["LOCKS"] = {"default": {"LOCATION": url}}
        case "a list":
            given["LOCKS"] = {"default": {"LOCATION": ["redis://h2", url]}}
        case "CACHES":
            cache["LOCATION"] = f"redis://h1,{url}"
        case "an option":
            cache["OPTIONS"] = {"SENTINEL_KWARGS": {"password": password}}
        case _:
            given[place] = url
    with override_settings(**given):
        for form in (password, encoded):
            clean = without_passwords(message.format(form, form))
            assert not {form, repr(form)[1:-1]} & {clean[i:] for i in range(len(clean))}
            assert form not in clean
            assert without_passwords(clean) == clean


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        # Too short, or a word that messages need: by its place alone.
        ("abc, redis://:abc@host and", "abc, redis://***@host and"),
        ("redis, redis://locker:redis@host", "redis, redis://***@host"),
        ("redis://:un/kno#wn@host:1/0,redis://host2", "redis://***@host:1/0,redis://host2"),
        ("redis://host?db=1&password=unknown&db=2", "redis://host?db=1&password=***&db=2"),
        ("product:ada@example.com, h1:6379", "product:ada@example.com, h1:6379"),
    ],
)
def test_ordinary_words_stay(settings: Any, text: str, clean: str) -> None:
    settings.LOCKS = {
        "short": {"LOCATION": "redis://:abc@host"},
        "a word": {"LOCATION": "redis://locker:redis@host/2"},
    }
    assert without_passwords(text) == clean


def test_the_broker_of_an_app_is_known() -> None:
    """Celery may have it from elsewhere than the settings."""
    app = Celery("with a broker")
    app.conf.update(broker_url=f"redis://:{SECRET}@h", result_backend="redis://:an0ther@h")
    assert app.conf.task_always_eager is False  # now it is configured
    assert without_passwords(f"{SECRET} an0ther") == "*** ***"


def test_all_that_led_to_an_error_is_cleaned() -> None:
    """Its causes, what it is about, and errors that are among its arguments."""
    secret = "redis://:unknown@host"
    error = RuntimeError([secret, secret.encode()], ValueError(secret))
    error.__cause__ = ImportError(secret)
    error.__cause__.__context__ = OSError(2, secret)
    hide_secrets(error, None)
    assert "unknown" not in "".join(traceback.format_exception(error))
    assert "unknown" not in repr((error, error.__cause__, error.__cause__.__context__))


class Reading(NamedTuple):
    sensor: str
    text: str


@pytest.mark.parametrize("moment", ["acquire", "release", "arelease"])
@pytest.mark.parametrize(
    "of_application",
    [
        ValueError(Reading("a", f"password={SECRET} redis://ada@h")),
        redis.ResponseError(f"their own, with args beginning with: {SECRET}"),
        OSError(2, f"//{SECRET}@h"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_application_stays_as_it_is(
    name: str, settings: Any, own_server: EmbeddedServer, moment: str, of_application: Exception
) -> None:
    """If a call fails while it is handled, only what led to that failure is masked."""
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    before = str(of_application), of_application.args
    of_application.__cause__ = KeyError(f"password={SECRET}")

    async def arelease() -> None:
        async with lock(name):
            own_server.kill()
            raise of_application

    with pytest.raises(type(of_application)) as caught:
        if moment == "arelease":
            asyncio.run(arelease())
        elif moment == "release":
            with lock(name):
                own_server.kill()
                raise of_application
        try:
            own_server.kill()
            raise of_application
        except type(of_application):
            with pytest.raises(LockUnavailable):
                lock(name).acquire()
            raise
    assert caught.value is of_application
    assert (str(of_application), of_application.args) == before
    assert SECRET in str(of_application.__cause__)


@pytest.mark.django_db
@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    "url", ["redis://:{}@127.0.0.1:1/0", "redis://:{}/x@127.0.0.1:1", "redis://:{}/0", "x//:{}@h"]
)
def test_nothing_that_is_shown_has_a_password(
    settings: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks, errors with their causes, the command, the page and reports; good URLs and wrong."""
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", ())
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    settings.LOCKS = {"default": {"LOCATION": url.format(SECRET)}}
    settings.DEFAULT_EXCEPTION_REPORTER_FILTER = REPORTS
    get_default_exception_reporter_filter.cache_clear()
    with pytest.raises((InvalidLockBackend, LockUnavailable)) as caught:
        lock("a").locked()
    error, browser = caught.value, root()
    told = [f"{item.msg} {item.hint}" for item in check_locks()]
    told += [repr(error), str(pickle.dumps(error)), *traceback.format_exception(error)]
    for words in (["list"], ["show", "a"], ["release", "a", "--noinput"], ["doctor"]):
        done = command(*words)
        told += [done.out, done.err]
    told += [html.unescape(browser.get(at).content.decode()) for at in (LIST, page_of("a"))]
    for settings.DEBUG in (False, True):
        reporter = ExceptionReporter(RequestFactory().get("/"), *caught._excinfo)  # type: ignore[misc]
        told += [reporter.get_traceback_html(), reporter.get_traceback_text()]
    get_default_exception_reporter_filter.cache_clear()
    assert [text for text in told if SECRET in text] == []


def test_mails_that_would_show_a_password_are_warned_of(settings: Any) -> None:
    """Before a deployment, where there is somebody to mail to and no filter of ours."""
    settings.LOCKS = {"default": {"LOCATION": f"redis://:{SECRET}@h"}}
    assert [*check_reports()] == []
    settings.ADMINS = [("Ada", "ada@example.com")]
    (message,) = check_reports()
    assert (message.id, REPORTS in message.hint) == ("django_redis_lock.W006", True)
    settings.DEFAULT_EXCEPTION_REPORTER_FILTER = REPORTS
    assert [*check_reports()] == []
