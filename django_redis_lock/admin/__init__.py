"""Held locks in Django's admin, which imports this where it is installed.

The list, the page of a lock, the audit, and the release.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import django
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import router, transaction
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

from django_redis_lock import operators
from django_redis_lock.admin import changelist, pages
from django_redis_lock.admin.changelist import COLUMNS, HeldLockChangeList, read_holders, unwritable
from django_redis_lock.admin.filters import BackendFilter, LeaseFilter, TaskFilter, WaitersFilter
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.operators import aliases, change_limit
from django_redis_lock.support.arguments import MAX_TEXT_LENGTH
from django_redis_lock.support.text import escape_unprintable, without_passwords

__all__ = ["HeldLockAdmin"]

logger = logging.getLogger("django_redis_lock")
HEADER = "X-Held-Locks"
"""Sent by the script to ask for the part of a page that changes."""
TEMPLATES = "admin/django_redis_lock/heldlock"


@admin.register(HeldLock)
class HeldLockAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Lists the held locks and releases them; nothing is added, changed or deleted."""

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

    lock, holder, held_for, lease_left, waiters, fence, backend = map(changelist.column, COLUMNS)

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

    def get_list_display(self, request: HttpRequest) -> list[Any]:
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
            _("Select %(name)s") % {"name": escape_unprintable(obj.name)},
        )

    def response_action(  # type: ignore[override]
        self, request: HttpRequest, queryset: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Run an action on the checked rows; the queryset is empty."""
        return super().response_action(request, self.get_queryset(request), **kwargs)

    @admin.action(permissions=["release"], description=gettext_lazy("Release selected locks"))
    def release_locks(self, request: HttpRequest, queryset: Any) -> HttpResponse:
        return self._confirm(request, *self._shown_holds(request))

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> HeldLock | None:
        return pages.lock_of(object_id)

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
            text = _("“%(key)s” is not a lock of an alias in LOCKS.")
            messages.warning(request, text % {"key": escape_unprintable(key)})
            return HttpResponseRedirect(self._url("changelist"))
        context = {
            "subtitle": escape_unprintable(lock.name),
            "original": lock,
            **pages.detail(lock, self.recent_entries),
            "can_release": self.has_release_permission(request, lock),
            "refresh_seconds": str(self.refresh_seconds or ""),
            **(extra_context or {}),
        }
        page = self._page(request, "change_form.html", context, capfirst(self.opts.verbose_name))
        return self._answer(request, page, "detail.html")

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the audit of a lock, and what the admin's log has on it."""
        response = super().history_view(request, object_id, extra_context)
        if isinstance(response, TemplateResponse):  # else there is no such lock
            context: Any = response.context_data
            context |= {**pages.audit(context["object"]), "media": self.media}
        return response

    def audit_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self._page(request, "audit.html", pages.audit(), _("Forced releases"))

    def get_urls(self) -> list[URLPattern]:
        base = f"{self.opts.app_label}_{self.opts.model_name}"
        wrap = self.admin_site.admin_view
        return [
            path("release/", wrap(self.release_view), name=f"{base}_release"),
            path("limit/", wrap(self.limit_view), name=f"{base}_limit"),
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
        if not reason.strip() and operators.requires_reason(one.using for one in holds):
            return self._confirm(request, holds, denied, _("Enter a reason."))
        by = request.user.get_username()
        try:
            outcomes = operators.release_shown(holds, by=by, reason=reason)
        except ValueError as error:  # the page's own field allows no such reason
            raise BadRequest(str(error)) from error
        because = f" Reason: {escape_unprintable(reason)}" if reason else ""
        losers = [one.loser for one in outcomes if one.loser]
        texts = [(HeldLock.of_holder(one), f"Released from {one}.{because}") for one in losers]
        unlogged = self._log(request, texts)
        for one in outcomes:
            level = messages.SUCCESS if one.loser else messages.WARNING
            text = pages.message(one) + unlogged * bool(one.loser)
            messages.add_message(request, messages.ERROR if one.error else level, text)
        for name in denied:
            text = _("You don't have permission to release “%(name)s”.")
            messages.error(request, text % {"name": name})
        return HttpResponseRedirect(self._back(request)["back_url"])

    def _log(self, request: HttpRequest, texts: list[tuple[HeldLock, str]]) -> str:
        """Write what was done to the admin's log; return a sentence on why that failed."""
        try:
            with transaction.atomic(using=router.db_for_write(LogEntry)):
                for lock, text in texts:
                    self.log_change(request, lock, text)
        except Exception as error:
            logger.exception("Could not write releases or a limit to the admin's log")
            reason = {"reason": escape_unprintable(without_passwords(str(error)))}
            return " " + _("It could not be written to the admin's log: %(reason)s") % reason
        return ""

    def limit_view(self, request: HttpRequest) -> HttpResponse:
        """Set or clear the limit of a semaphore."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseRedirect(self._url("changelist"))
        lock = pages.lock_of(request.POST.get("lock", ""))
        if lock is None:
            raise BadRequest("There is no such lock.")
        if not self.has_release_permission(request, lock):
            raise PermissionDenied
        try:
            limit = None if "clear" in request.POST else int(request.POST.get("limit", ""))
            change_limit(locks[lock.using], lock.name, limit, by=request.user.get_username())
        except ValueError as error:  # the page's own field allows no such limit
            raise BadRequest(str(error)) from error
        except (LockError, InvalidLockBackend) as error:
            messages.error(request, escape_unprintable(without_passwords(str(error))))
        else:
            text = "Limit cleared." if limit is None else f"Limit set to {limit}."
            unlogged = self._log(request, [(lock, text)])
            now = _("The limit was cleared.") if limit is None else _("The limit is now %(limit)s.")
            messages.success(request, now % {"limit": limit} + unlogged)
        return HttpResponseRedirect(self._url("change", "", quote(lock.pk)))

    def _back(self, request: HttpRequest) -> dict[str, Any]:
        """Return the page that a form came from, a lock's or the list, with its query string."""
        filters = request.POST.get("filters", request.GET.urlencode())
        url = self._url("changelist", filters)
        if from_lock := "from_lock" in request.POST:
            for hold in pages.read_shown(request.POST.getlist(ACTION_CHECKBOX_NAME)[:1]):
                url = self._url("change", filters, quote(hold.pk))
        return {"back_url": url, "filters": filters, "from_lock": from_lock}

    def _shown_holds(self, request: HttpRequest) -> tuple[list[HeldLock], list[str]]:
        """Return what a form releases, and the names of the locks that the user may not release."""
        holds = pages.read_shown(request.POST.getlist(ACTION_CHECKBOX_NAME))
        allowed = [hold for hold in holds if self.has_release_permission(request, hold)]
        if holds and not allowed:
            raise PermissionDenied
        denied = (escape_unprintable(one.name) for one in holds if one not in allowed)
        return allowed, list(dict.fromkeys(denied))

    def _confirm(
        self, request: HttpRequest, holds: list[HeldLock], denied: list[str], error: str = ""
    ) -> HttpResponse:
        """Ask for confirmation: show who would lose what, and what has changed."""
        holders, problems = read_holders([(hold.using, hold.name) for hold in holds])
        found = {HeldLock.of_holder(one).hold: one for one in holders}
        silent = {problem.using for problem in problems}
        missing = {one.pk: one for one in holds if one.hold not in found}.values()
        context = {
            **self._back(request),
            "denied": denied,
            "reason": request.POST.get("reason", ""),
            "reason_error": error,
            "held": [pages.row_of(found[one.hold]) for one in holds if one.hold in found],
            "lock_count": len({one.pk for one in holds if one.hold in found}),
            "changed": [escape_unprintable(one.name) for one in missing if one.using not in silent],
            "problems": problems,
            "unwritable": unwritable({hold.using for hold in holds}, problems),
            "max_reason_length": MAX_TEXT_LENGTH,
            "reason_required": operators.requires_reason(one.using for one in holds) is not None,
        }
        return self._page(request, "release_confirmation.html", context, _("Release held locks"))

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
            "limit_url": self._url("limit"),
            "action_checkbox_name": ACTION_CHECKBOX_NAME,
            "tools_beside_title": django.VERSION >= (6, 1),
            **context,
        }
        return TemplateResponse(request, f"{TEMPLATES}/{template}", context)

    def _url(self, view: str, query: str = "", *args: str) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{view}"
        url = reverse(name, args=args, current_app=self.admin_site.name)
        return f"{url}?{query}" if query else url
