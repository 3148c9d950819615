"""Views in transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.http import HttpResponse
from django.test import Client, RequestFactory

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockLost, LockUnavailable
from django_redis_lock.signals import lock_acquired, lock_released
from django_redis_lock.views import locked
from example_project.embedded import EmbeddedServer, free_port
from tests.apps import views_app

pytestmark = [pytest.mark.urls("tests.apps.views_app"), pytest.mark.usefixtures("server")]


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)


@pytest.fixture
def moments() -> Iterator[list[tuple[Any, bool]]]:
    """Return a list of the signals of locks, and whether they were sent in a transaction."""
    seen: list[tuple[Any, bool]] = []

    def note(signal: Any, **arguments: Any) -> None:
        seen.append((signal, connection.in_atomic_block))

    lock_acquired.connect(note)
    lock_released.connect(note)
    yield seen
    lock_acquired.disconnect(note)
    lock_released.disconnect(note)


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("kind", views_app.ATOMIC)
def test_the_transaction_is_inside_of_the_lock(
    web: Client, moments: list[tuple[Any, bool]], kind: str
) -> None:
    answer = web.post(f"/{kind}/")
    assert answer.json() == {"name": "atomic", "held": True, "atomic": True}
    assert moments == [(lock_acquired, False), (lock_released, False)]


@pytest.mark.usefixtures("atomic_requests")
def test_the_transaction_is_inside_of_two_locks(moments: list[tuple[Any, bool]]) -> None:
    inner = locked("inner")(lambda request: HttpResponse(str(connection.in_atomic_block)))
    assert locked("outer")(inner)(RequestFactory().post("/")).content == b"True"
    assert [in_transaction for _, in_transaction in moments] == [False] * 4


@pytest.mark.usefixtures("atomic_requests")
def test_a_method_is_inside_of_the_transaction(
    web: Client, moments: list[tuple[Any, bool]]
) -> None:
    """The transaction has begun by then, but the lock is released after its end."""
    assert web.post("/atomic-method/").json()["atomic"]
    assert moments == [(lock_acquired, True), (lock_released, False)]


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("address", ["/declined-below/", "/declined-above/"])
def test_a_declined_transaction(web: Client, address: str) -> None:
    assert web.post(address).json()["atomic"] is False


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("error", [LookupError, LockLost])
def test_an_error_or_a_loss_rolls_back(error: type[Exception]) -> None:
    @locked("view")
    def writing(request: Any) -> HttpResponse:
        get_user_model().objects.create(username="ghost")
        if error is LookupError:
            raise LookupError
        locks["default"].force_release("view")
        return HttpResponse("done")

    with pytest.raises(error):
        writing(RequestFactory().post("/"))
    assert not get_user_model().objects.exists()


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize(("on_unavailable", "status"), [("raise", 503), ("run", 200)])
def test_a_server_that_goes_away_rolls_back(
    own_server: EmbeddedServer, settings: Any, on_unavailable: Any, status: int
) -> None:
    """It is unknown whether the lock is held, so the transaction is rolled back if that matters."""
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "LOCATION": own_server.url()}}

    @locked("view", on_unavailable=on_unavailable)
    def answer(request: Any) -> HttpResponse:
        get_user_model().objects.create(username="ghost")
        own_server.kill()
        return HttpResponse("done")

    assert answer(RequestFactory().post("/")).status_code == status
    assert get_user_model().objects.exists() == (status == 200)


@pytest.mark.usefixtures("atomic_requests")
def test_the_unavailability_of_another_lock_is_the_views_own(settings: Any) -> None:
    """Only errors about the view's own lock are answered for it."""
    location = f"redis://127.0.0.1:{free_port()}/0"
    settings.LOCKS = {**settings.LOCKS, "gone": {**settings.LOCKS["url"], "LOCATION": location}}

    @locked("view")
    def answer(request: Any) -> HttpResponse:
        with lock("other", using="gone"):
            raise AssertionError

    with pytest.raises(LockUnavailable):
        answer(RequestFactory().post("/"))
    assert locks["default"].holder("view") is None


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("kind", ["async", "on-async-dispatch", "on-async-as-view"])
def test_asynchronous_views_have_no_transaction(web: Client, kind: str) -> None:
    with pytest.raises(RuntimeError, match="ATOMIC_REQUESTS"):
        web.post(f"/{kind}/7/")
