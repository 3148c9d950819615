"""The ``ModelAdmin`` of held locks: the list, the page of a lock, and the release."""

from __future__ import annotations

from contextlib import suppress
from time import thread_time
from typing import TYPE_CHECKING, Any

import django
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from django_redis_lock.admin import live
from django_redis_lock.admin.changelist import HeldLockChangeList
from django_redis_lock.admin.columns import Columns
from django_redis_lock.admin.detail import detail
from django_redis_lock.admin.durations import patterns_json
from django_redis_lock.admin.filters import BackendFilter, LeaseFilter, TaskFilter, WaitersFilter
from django_redis_lock.admin.owner import liveness, task_links
from django_redis_lock.admin.reading import aliases
from django_redis_lock.admin.release import confirmation, reason_required, release
from django_redis_lock.admin.snapshots import snapshots
from django_redis_lock.admin.tickets import Ticket, lock_of, read_tickets, ticket_of
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[HeldLock]
else:
    _ModelAdmin = admin.ModelAdmin

MOST_FILTERS = 4000
"""Characters of the query string that a form may send back."""

TEMPLATES = "admin/django_redis_lock/heldlock"


class _Tampered(Exception):
    """A form has values that no page of this admin sent."""


class HeldLockAdmin(Columns, _ModelAdmin):
    """Lists the held locks and releases them; nothing is added, changed or deleted.

    It reads the backends of ``LOCKS``; the model has no table.
    """

    list_display = Columns.names
    list_filter = (LeaseFilter, WaitersFilter, TaskFilter, BackendFilter)
    search_fields = ("name",)
    search_help_text = gettext_lazy("Name, host, task or metadata")
    show_facets = admin.ShowFacets.NEVER
    actions = ("release_locks",)

    refresh_seconds: float | None = 3
    """Seconds between two refreshes of a page; ``None`` for none."""
    most_records = 2000
    """Up to so many locks are read whole. Of more, only the names and the ends of the leases are
    read, for searching and sorting, and the locks of the page shown."""
    recent_entries = 20
    """Audit entries on the page of a lock."""

    @property
    def media(self) -> forms.Media:
        return forms.Media(
            js=["django_redis_lock/held_locks.js"],
            css={"all": ["django_redis_lock/held_locks.css"]},
        )

    # Who may do what.

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: programs take locks."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: HeldLock | None = None) -> bool:
        """Return False."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: HeldLock | None = None) -> bool:
        """Return False: releasing a lock has its own permission."""
        return False

    def has_release_permission(self, request: HttpRequest, obj: HeldLock | None = None) -> bool:
        """Whether the user may view the lock and has the release permission of its alias.

        The permission is ``release_heldlock``, or the ``RELEASE_PERMISSION`` of the alias's
        ``OPERATORS``. Without ``obj``: whether the list has checkboxes. Called for each lock that
        is shown or released.
        """
        if not self.has_view_permission(request, obj):
            return False
        user: Any = request.user
        if obj is None:
            return any(user.has_perm(self._release_permission(using)) for using in ["", *aliases()])
        needed = self._release_permission(obj.using)
        # Django's own authentication backend grants no object permissions.
        return bool(user.has_perm(needed) or user.has_perm(needed, obj))

    def _release_permission(self, using: str) -> str:
        with suppress(InvalidLockBackend):
            if using and (needed := locks[using].operators.release_permission):
                return needed
        return f"{self.opts.app_label}.release_{self.opts.model_name}"

    # The list.

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[HeldLockChangeList]:
        return HeldLockChangeList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """List the held locks; the script gets only the part that changes."""
        begun = thread_time()
        context = {
            "title": capfirst(self.opts.verbose_name_plural),
            **self._live_context(),
            **(extra_context or {}),
        }
        try:
            response = super().changelist_view(request, context)
        except _Tampered as error:
            return self._refuse(request, str(error))
        return self._live(request, response, "list", begun)

    def action_checkbox(self, obj: HeldLock) -> SafeString:
        """Return the checkbox of a row, whose value identifies the holder."""
        if not obj.may_release:
            return SafeString("")
        # The same as Django's widget, which takes as long as the rest of the row.
        return format_html(
            '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">',
            ACTION_CHECKBOX_NAME,
            ticket_of(obj),
            _("Select %(name)s") % {"name": visible(obj.name)},
        )

    def response_action(  # type: ignore[override]
        self, request: HttpRequest, queryset: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Run an action on the checked rows; the queryset is empty."""
        return super().response_action(request, self.get_queryset(request), **kwargs)

    @admin.action(permissions=["release"], description=gettext_lazy("Release selected locks"))
    def release_locks(self, request: HttpRequest, queryset: Any) -> HttpResponse:
        tickets, denied = self._tickets(request)
        return self._confirm(request, tickets, denied)

    # The page of one lock.

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> HeldLock | None:
        """Return the object with a key, held or not, ``None`` if LOCKS can have no such lock."""
        return lock_of(object_id)

    @method_decorator(require_safe)
    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show one lock. The links of the admin's log lead here."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        begun = thread_time()
        lock = self.get_object(request, unquote(object_id))
        if lock is None:
            return self._not_a_lock(request, unquote(object_id))
        context = {
            "title": capfirst(self.opts.verbose_name),
            "subtitle": visible(lock.name),
            "original": lock,
            **(known := detail(lock, self.recent_entries)),
            "can_release": self.has_release_permission(request, lock),
            **self._more(request, known["row"].holder),
            **self._live_context(),
            **(extra_context or {}),
        }
        page = self._page(request, "change_form.html", context)
        return self._live(request, page, "detail", begun)

    def _more(self, request: HttpRequest, holder: Holder | None) -> dict[str, Any]:
        """Return the task's links and, unless the script asks, whether the holder is alive."""
        more: dict[str, Any] = {"task_links": task_links(holder) if holder else []}
        if holder and not live.is_live(request):
            more["liveness"] = liveness(holder)
        return more

    # The release.

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of ``ModelAdmin``, and that of the release."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_release"
        view = self.admin_site.admin_view(self.release_view)
        found = super().get_urls()
        for pattern in found:
            if isinstance(pattern, URLPattern):
                pattern.callback = live.live_view(pattern.callback, self.admin_site)
        return [path("release/", view, name=name), *found]

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation; once confirmed, release the locks that were shown."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseRedirect(self._url("changelist"))  # e.g. after a new login
        try:
            tickets, denied = self._tickets(request)
            if "confirmed" not in request.POST:
                return self._confirm(request, tickets, denied)
            reason = request.POST.get("reason", "")
            if not reason.strip() and reason_required(tickets):
                return self._confirm(request, tickets, denied, _("Say why they are released."))
            try:
                told = release(tickets, request.user, reason)
            except ValueError as error:  # the page's own field allows no such reason
                raise _Tampered(str(error)) from error
        except _Tampered as error:
            return self._refuse(request, str(error))
        for level, text in told:
            messages.add_message(request, level, text)
        for name in denied:
            messages.error(request, _("You may not release “%(name)s”.") % {"name": name})
        snapshots.forget()
        return HttpResponseRedirect(self._back(request)["back_url"])

    def _back(self, request: HttpRequest) -> dict[str, Any]:
        """Return the page that a form came from, a lock's or the list, with its query string."""
        filters = request.POST.get("filters", request.GET.urlencode())
        url = self._url("changelist", filters)
        if from_lock := "from_lock" in request.POST:
            for ticket in read_tickets(request.POST.getlist(ACTION_CHECKBOX_NAME)[:1]):
                key = HeldLock.of(ticket.using, ticket.name).pk
                url = self._url("change", filters, quote(key))
        return {"back_url": url, "filters": filters, "from_lock": from_lock}

    def _tickets(self, request: HttpRequest) -> tuple[list[Ticket], list[str]]:
        """Return the tickets of a form, and the names of the locks that the user may not release.

        Raises ``PermissionDenied`` if the user may release none.
        """
        if len(request.POST.get("filters", "")) > MOST_FILTERS:
            raise _Tampered(_("The filters of the list are too long."))
        try:
            tickets = read_tickets(request.POST.getlist(ACTION_CHECKBOX_NAME))
        except ValueError as error:
            raise _Tampered(str(error)) from error
        allowed = [
            ticket
            for ticket in tickets
            if self.has_release_permission(request, HeldLock.of(ticket.using, ticket.name))
        ]
        if tickets and not allowed:
            raise PermissionDenied
        return allowed, [visible(one.name) for one in tickets if one not in allowed]

    def _confirm(
        self, request: HttpRequest, tickets: list[Ticket], denied: list[str], error: str = ""
    ) -> HttpResponse:
        """Show which holders would lose which locks."""
        context = {
            **self._back(request),
            "denied": denied,
            "reason": request.POST.get("reason", ""),
            "reason_error": error,
            **confirmation(tickets),
        }
        return self._release_page(request, context)

    def _refuse(self, request: HttpRequest, error: str) -> HttpResponse:
        """Return a 400 for a form that no page of this admin sent."""
        context = {"error": error, "back_url": self._url("changelist")}
        response = self._release_page(request, context)
        response.status_code = 400
        return response

    def _release_page(self, request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
        title = _("Release held locks")
        context = {"title": title, "subtitle": None, "original": title, **context}
        return self._page(request, "release_confirmation.html", context)

    # What the pages share.

    def _not_a_lock(self, request: HttpRequest, key: str) -> HttpResponse:
        """Tell the user that there can be no such lock, and show the list."""
        if live.is_live(request):
            return live.refuse(request, 404)
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

    def _live(
        self, request: HttpRequest, response: HttpResponse, part: str, begun: float
    ) -> HttpResponse:
        template = f"{TEMPLATES}/{part}.html"
        return live.answer(request, response, template, self.refresh_seconds, begun)

    def _url(self, view: str, query: str = "", *args: str) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{view}"
        url = reverse(name, args=args, current_app=self.admin_site.name)
        return f"{url}?{query}" if query else url
