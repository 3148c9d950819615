"""The admin of held locks: their list, a page for each, and the release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.cache import patch_vary_headers
from django.utils.decorators import method_decorator
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from django_redis_lock.admin.changelist import HeldLockChangeList
from django_redis_lock.admin.columns import Columns
from django_redis_lock.admin.detail import detail
from django_redis_lock.admin.durations import patterns_json
from django_redis_lock.admin.filters import BackendFilter, LeaseFilter, TaskFilter, WaitersFilter
from django_redis_lock.admin.reading import aliases
from django_redis_lock.admin.release import confirmation, release
from django_redis_lock.admin.tasks import tasks
from django_redis_lock.admin.tickets import ticket_of
from django_redis_lock.models import HeldLock
from django_redis_lock.records import check_name
from django_redis_lock.text import visible

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[HeldLock]
else:
    _ModelAdmin = admin.ModelAdmin

LIVE_HEADER = "X-Held-Locks"
"""The script sends it when it asks for the part of a page that changes."""

TEMPLATES = "admin/django_redis_lock/heldlock"


class HeldLockAdmin(Columns, _ModelAdmin):
    """Lists the locks that are held, and releases them; nothing is added, changed or deleted.

    What it shows comes from the backends of ``LOCKS``; the model's table, which does not exist,
    is never asked for.
    """

    list_display = Columns.names
    list_filter = (LeaseFilter, WaitersFilter, TaskFilter, BackendFilter)
    search_fields = ("name",)
    search_help_text = gettext_lazy("Name, host, task or metadata")
    show_facets = admin.ShowFacets.NEVER
    actions = ("release_locks",)

    refresh_seconds: float | None = 3
    """How often the script refreshes a page; ``None`` for never."""
    recent_entries = 20
    """How many audit entries the page of a lock shows."""
    worker_seconds: float | None = 1.0
    """How long Celery's workers may take to say what they have in hand for a lock, when its page is
    opened; ``None``: they are not asked."""

    @property
    def media(self) -> forms.Media:
        """Our own script and style; those of Django's forms have nothing to do here."""
        return forms.Media(
            js=["django_redis_lock/held_locks.js"],
            css={"all": ["django_redis_lock/held_locks.css"]},
        )

    # Who may do what.

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody: locks are taken by programs."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: HeldLock | None = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: HeldLock | None = None) -> bool:
        """Nobody: a lock is released, and that has its own permission."""
        return False

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Whoever may see held locks and has ``release_heldlock``."""
        user: Any = request.user
        needed = f"{self.opts.app_label}.release_{self.opts.model_name}"
        return self.has_view_permission(request) and bool(user.has_perm(needed))

    # The list.

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[HeldLockChangeList]:
        """Return the list that reads the backends."""
        return HeldLockChangeList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """List the held locks; for the script, only the part that changes."""
        context = {
            "title": capfirst(self.opts.verbose_name_plural),
            **self._live_context(),
            **(extra_context or {}),
        }
        return self._live(request, super().changelist_view(request, context), "list")

    def action_checkbox(self, obj: HeldLock) -> SafeString:
        """Return the box of a row; its value names the holder that is shown."""
        label = _("Select %(name)s") % {"name": visible(obj.name)}
        box = forms.CheckboxInput({"class": "action-select", "aria-label": label}, lambda _: False)
        return box.render(ACTION_CHECKBOX_NAME, ticket_of(obj))

    def response_action(  # type: ignore[override]
        self, request: HttpRequest, queryset: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Run an action; it goes by the boxes, and not by the query, which is empty."""
        return super().response_action(request, self.get_queryset(request), **kwargs)

    @admin.action(permissions=["release"], description=gettext_lazy("Release selected locks"))
    def release_locks(self, request: HttpRequest, queryset: Any) -> HttpResponse:
        """Ask for confirmation."""
        return self._confirm(request, request.POST.getlist(ACTION_CHECKBOX_NAME))

    # The page of one lock.

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> HeldLock | None:
        """Return the object with a key, held or not, if it can be a lock of ours."""
        lock = HeldLock.from_key(object_id)
        if lock is None or lock.using not in aliases():
            return None
        try:
            check_name(lock.name)
        except ValueError:
            return None
        return lock

    @method_decorator(require_safe)
    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show everything known of one lock. The links of the admin's log lead here."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        lock = self.get_object(request, unquote(object_id))
        if lock is None:
            return self._not_a_lock(request, unquote(object_id))
        context = {
            "title": capfirst(self.opts.verbose_name),
            "subtitle": visible(lock.name),
            "original": lock,
            **detail(lock, self.recent_entries),
            "tasks": self._tasks(request, lock),
            **self._live_context(),
            **(extra_context or {}),
        }
        return self._live(request, self._page(request, "change_form.html", context), "detail")

    def _tasks(self, request: HttpRequest, lock: HeldLock) -> dict[str, Any] | None:
        """Ask the workers; not for the script, which comes every few seconds."""
        if self.worker_seconds is None or LIVE_HEADER in request.headers:
            return None
        return tasks(lock, self.worker_seconds)

    # The release.

    def get_urls(self) -> list[URLPattern]:
        """Return the stock addresses, of which none asks for the table, and the release's."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_release"
        view = self.admin_site.admin_view(self.release_view)
        return [path("release/", view, name=name), *super().get_urls()]

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation, and once it is given release the locks that were shown."""
        if not self.has_release_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseRedirect(self._url("changelist"))  # as after a new login
        tickets = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if "confirmed" not in request.POST:
            return self._confirm(request, tickets)
        try:
            told = release(tickets, request.user, request.POST.get("reason", ""))
        except ValueError as error:  # the page's own field can't hold such a reason
            raise BadRequest(str(error)) from error
        for level, text in told:
            messages.add_message(request, level, text)
        return HttpResponseRedirect(self._url("changelist", request.POST.get("filters", "")))

    def _confirm(self, request: HttpRequest, tickets: list[str]) -> HttpResponse:
        """Show who would lose which locks."""
        filters = request.POST.get("filters", request.GET.urlencode())
        title = _("Release held locks")
        context = {
            "title": title,
            "subtitle": None,
            "original": title,
            "filters": filters,
            "back_url": self._url("changelist", filters),
            **confirmation(tickets),
        }
        return self._page(request, "release_confirmation.html", context)

    # What the pages share.

    def _not_a_lock(self, request: HttpRequest, key: str) -> HttpResponse:
        """Say that a link leads to no lock that LOCKS could have, and show the list."""
        text = _("“%(key)s” is no lock of a backend in LOCKS.") % {"key": visible(key)}
        self.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(self._url("changelist"))

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
            "can_release": self.has_release_permission(request),
            "release_url": self._url("release"),
            "action_checkbox_name": ACTION_CHECKBOX_NAME,
            "tools_beside_title": django.VERSION >= (6, 1),
            **context,
        }
        return TemplateResponse(request, f"{TEMPLATES}/{template}", context)

    def _live_context(self) -> dict[str, Any]:
        return {
            "refresh_seconds": str(self.refresh_seconds or ""),
            "duration_patterns": patterns_json(),
        }

    def _live(self, request: HttpRequest, response: HttpResponse, part: str) -> HttpResponse:
        """Render only the part that changes, where the script asks."""
        patch_vary_headers(response, [LIVE_HEADER])
        if LIVE_HEADER in request.headers and isinstance(response, TemplateResponse):
            response.template_name = f"{TEMPLATES}/{part}.html"
        return response

    def _url(self, view: str, query: str = "") -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{view}"
        url = reverse(name, current_app=self.admin_site.name)
        return f"{url}?{query}" if query else url
