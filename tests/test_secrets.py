"""No message shows a password: of the checks, the command, the admin, the logs and the errors."""

from __future__ import annotations

import html
import pickle
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery
from django.test import override_settings
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as some

from django_redis_lock import lock
from django_redis_lock.checks import check_locks
from django_redis_lock.exceptions import InvalidLockBackend, LockUnavailable
from django_redis_lock.support.text import without_passwords
from tests.tools.admin import LIST, page_of, root
from tests.tools.console import command

DUMMY = "django.core.cache.backends.dummy.DummyCache"
SECRET = "qqxzv-7"
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
    given: dict[str, Any] = {
        "LOCKS": {"LOCKS": {"default": {"LOCATION": url}}},
        "a list": {"LOCKS": {"default": {"LOCATION": ["redis://h2", url]}}},
        "CACHES": {"CACHES": {"default": {"BACKEND": DUMMY, "LOCATION": f"redis://h1,{url}"}}},
        "an option": {"CACHES": {"default": {"BACKEND": DUMMY, "OPTIONS": {"PASSWORD": password}}}},
        "CELERY_BROKER_URL": {"CELERY_BROKER_URL": url},
    }[place]
    with override_settings(**given):
        for form in (password, encoded):
            clean = without_passwords(message.format(form, form))
            assert not {form, repr(form)[1:-1]} & {clean[i:] for i in range(len(clean))}
            assert form not in clean
            assert without_passwords(clean) == clean


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("abc, redis://:abc@host and", "abc, redis://***@host and"),
        ("redis, redis://locker:redis@host", "redis, redis://***@host"),
        ("redis://:un/kno#wn@host:1/0,redis://host2", "redis://***@host:1/0,redis://host2"),
        ("redis://host?db=1&password=unknown&db=2", "redis://host?db=1&password=***&db=2"),
        ("product:ada@example.com, h1:6379", "product:ada@example.com, h1:6379"),
        ("ERR unknown command 'X', with args beginning with: 'token'", "ERR unknown command 'X'"),
        ("cast as qqxzv-7, qqxzv", "cast as ***, ***"),  # one is part of another
    ],
)
def test_ordinary_words_stay(settings: Any, text: str, clean: str) -> None:
    settings.LOCKS = {
        "short": {"LOCATION": "redis://:abc@host"},
        "a word": {"LOCATION": "redis://locker:redis@host/2"},
        "a part": {"LOCATION": "redis://:qqxzv@host/3"},
        "whole": {"LOCATION": "redis://:qqxzv-7@host/4"},
    }
    assert without_passwords(text) == clean


def test_the_broker_of_an_app_is_known() -> None:
    """Celery may have it from elsewhere than the settings."""
    app = Celery("with a broker")
    app.conf.update(broker_url=f"redis://:{SECRET}@h", result_backend="redis://:an0ther@h")
    assert app.conf.task_always_eager is False  # now it is configured
    assert without_passwords(f"{SECRET} an0ther") == "*** ***"


@pytest.mark.django_db
@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("url", ["redis://:{}@127.0.0.1:1/0", "redis://:{}/0", "x//:{}@h"])
def test_nothing_that_is_shown_has_a_password(
    settings: Any, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Checks, errors, the log, the command and the page; good URLs and wrong."""
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", ())
    settings.CACHES = {"default": {"BACKEND": DUMMY}}
    settings.LOCKS = {"default": {"LOCATION": url.format(SECRET)}}
    with pytest.raises((InvalidLockBackend, LockUnavailable)) as caught:
        lock("a").locked()
    error, browser = caught.value, root()
    told = [f"{item.msg} {item.hint}" for item in check_locks()]
    told += [repr(error), str(pickle.dumps(error))]
    for words in (["list"], ["show", "a"], ["release", "a", "--noinput"], ["doctor"]):
        done = command(*words)
        told += [done.out, done.err]
    told.append(caplog.text)
    told += [html.unescape(browser.get(at).content.decode()) for at in (LIST, page_of("a"))]
    assert [text for text in told if SECRET in text] == []
