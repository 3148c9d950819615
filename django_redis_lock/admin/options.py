"""The ``ModelAdmin`` of held locks: the list, the page of a lock, and the release."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import django
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.cache import patch_vary_headers
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from django_redis_lock.admin.changelist import COLUMNS, HeldLockChangeList, column
from django_redis_lock.admin.filters import BackendFilter, LeaseFilter, TaskFilter, WaitersFilter
from django_redis_lock.admin.pages import (
    audit,
    confirmation,
    detail,
    lock_of,
    read_shown,
    release,
)
from django_redis_lock.admin.reading import aliases
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.operators import requires_reason
from django_redis_lock.support.text import visible

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[HeldLock]
else:
    _ModelAdmin = admin.ModelAdmin

HEADER = "X-Held-Locks"
"""Sent by the script to ask for the part of a page that changes."""

TEMPLATES = "admin/django_redis_lock/heldlock"


class HeldLockAdmin(_ModelAdmin):
    """Lists the held locks and releases them; nothing is added, changed or deleted.

    It reads the backends of ``LOCKS``; the model has no table.
    """

    list_display = tuple(COLUMNS)
    list_filter = (LeaseFilter, WaitersFilter, TaskFilter, BackendFilter)
    search_fields = ("name",)
    search_help_text = gettext_lazy("Name, host, task or metadata")
    show_facets = admin.ShowFacets.NEVER
    actions = ("release_locks",)

    refresh_seconds: float | None = 3
    """Seconds between two refreshes of a page; ``None`` for none."""
    most_records = 2000
    """How many locks the list reads at most. If more are held, the page says so, and only names are
    searched."""
    recent_entries = 20
    """Audit entries on the page of a lock."""

    @property
    def media(self) -> forms.Media:
        return forms.Media(
            js=["admin/js/actions.js", "django_redis_lock/held_locks.js"],
            css={"all": ["django_redis_lock/held_locks.css"]},
        )

    lock = column("lock")
    holder = column("holder")
    held_for = column("held_for")
    lease_left = column("lease_left")
    waiters = column("waiters")
    fence = column("fence")
    backend = column("backend")

    # Who may do what.

    def has_add_permission(self, request: HttpRequest, obj: HeldLock | None = None) -> bool:
        """Return False: programs take locks, and releasing one has its own permission."""
        return False

    has_change_permission = has_delete_permission = has_add_permission

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

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Leave out the backend if there is only one."""
        one = len(aliases()) == 1
        return [name for name in self.list_display if name != "backend" or not one]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[HeldLockChangeList]:
        return HeldLockChangeList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """List the held locks; the script gets only the part that changes."""
        context = {
            "title": capfirst(self.opts.verbose_name_plural),
            "refresh_seconds": str(self.refresh_seconds or ""),
            "audit_url": self._url("audit"),
            **(extra_context or {}),
        }
        response = super().changelist_view(request, context)
        return self._answer(request, response, "list.html")

    def action_checkbox(self, obj: HeldLock) -> SafeString:
        """Return the checkbox of a row, whose value identifies the holder."""
        if not obj.may_release:
            return SafeString("")
        # The same as Django's widget, which takes as long as the rest of the row.
        return format_html(
            '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">',
            ACTION_CHECKBOX_NAME,
            obj.hold,
            _("Select %(name)s") % {"name": visible(obj.name)},
        )

    def response_action(  # type: ignore[override]
        self, request: HttpRequest, queryset: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Run an action on the checked rows; the queryset is empty."""
        return super().response_action(request, self.get_queryset(request), **kwargs)

    @admin.action(permissions=["release"], description=gettext_lazy("Release selected locks"))
    def release_locks(self, request: HttpRequest, queryset: Any) -> HttpResponse:
        return self._confirm(request, *self._shown_holds(request))

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
        key = unquote(object_id)
        lock = self.get_object(request, key)
        if lock is None:
            if HEADER in request.headers:
                raise Http404("There is no such lock.")  # each redirect would leave a message
            text = _("“%(key)s” is no lock of a backend in LOCKS.") % {"key": visible(key)}
            messages.warning(request, text)
            return HttpResponseRedirect(self._url("changelist"))
        context = {
            "subtitle": visible(lock.name),
            "original": lock,
            **detail(lock, self.recent_entries),
            "can_release": self.has_release_permission(request, lock),
            "refresh_seconds": str(self.refresh_seconds or ""),
            **(extra_context or {}),
        }
        page = self._page(request, "change_form.html", context, capfirst(self.opts.verbose_name))
        return self._answer(request, page, "detail.html")

    def audit_view(self, request: HttpRequest) -> HttpResponse:
        """Show the latest forced releases of all locks."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self._page(request, "audit.html", audit(), _("Forced releases"))

    # The release.

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of ``ModelAdmin``, and those of the release and the audit."""
        base = f"{self.opts.app_label}_{self.opts.model_name}"
        wrap = self.admin_site.admin_view
        return [
            path("release/", wrap(self.release_view), name=f"{base}_release"),
            path("audit/", wrap(self.audit_view), name=f"{base}_audit"),
            *super().get_urls(),
        ]

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation; once confirmed, release the locks that were shown."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseRedirect(self._url("changelist"))  # e.g. after a new login
        holds, denied = self._shown_holds(request)
        if "confirmed" not in request.POST:
            return self._confirm(request, holds, denied)
        reason = request.POST.get("reason", "")
        if not reason.strip() and requires_reason(one.using for one in holds):
            return self._confirm(request, holds, denied, _("Say why they are released."))
        log = partial(self.log_change, request)
        try:
            outcomes = release(holds, request.user.get_username(), reason, log)
        except ValueError as error:  # the page's own field allows no such reason
            raise BadRequest(str(error)) from error
        for level, text in outcomes:
            messages.add_message(request, level, text)
        for name in denied:
            messages.error(request, _("You may not release “%(name)s”.") % {"name": name})
        return HttpResponseRedirect(self._back(request)["back_url"])

    def _back(self, request: HttpRequest) -> dict[str, Any]:
        """Return the page that a form came from, a lock's or the list, with its query string."""
        filters = request.POST.get("filters", request.GET.urlencode())
        url = self._url("changelist", filters)
        if from_lock := "from_lock" in request.POST:
            for hold in read_shown(request.POST.getlist(ACTION_CHECKBOX_NAME)[:1]):
                url = self._url("change", filters, quote(hold.pk))
        return {"back_url": url, "filters": filters, "from_lock": from_lock}

    def _shown_holds(self, request: HttpRequest) -> tuple[list[HeldLock], list[str]]:
        """Return the holds of a form, and the names of the locks that the user may not release.

        Raises ``PermissionDenied`` if the user may release none.
        """
        holds = read_shown(request.POST.getlist(ACTION_CHECKBOX_NAME))
        allowed = [hold for hold in holds if self.has_release_permission(request, hold)]
        if holds and not allowed:
            raise PermissionDenied
        return allowed, [visible(one.name) for one in holds if one not in allowed]

    def _confirm(
        self, request: HttpRequest, holds: list[HeldLock], denied: list[str], error: str = ""
    ) -> HttpResponse:
        """Show which holders would lose which locks."""
        context = {
            **self._back(request),
            "denied": denied,
            "reason": request.POST.get("reason", ""),
            "reason_error": error,
            **confirmation(holds),
        }
        return self._page(request, "release_confirmation.html", context, _("Release held locks"))

    # What the pages share.

    def _answer(self, request: HttpRequest, response: HttpResponse, part: str) -> HttpResponse:
        """Render only the part that changes if the script asks, without keeping a login alive."""
        patch_vary_headers(response, [HEADER])
        if HEADER in request.headers and isinstance(response, TemplateResponse):
            response.template_name = f"{TEMPLATES}/{part}"
            if not request.session.modified:
                request.session.save = lambda must_create=False: None  # type: ignore[method-assign]
        return response

    def _page(
        self, request: HttpRequest, template: str, context: dict[str, Any], title: Any
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "title": title,
            "subtitle": None,
            "original": title,
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

    def _url(self, view: str, query: str = "", *args: str) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{view}"
        url = reverse(name, args=args, current_app=self.admin_site.name)
        return f"{url}?{query}" if query else url
