"""``manage.py locks``: lists held locks, releases stuck ones, and checks their servers."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser, no_translations

from django_redis_lock import __version__
from django_redis_lock.management.console import arguments, doctor, releasing, showing
from django_redis_lock.management.console.selection import INTERRUPTED
from django_redis_lock.management.console.terminal import Terminal

RUN = {
    "list": showing.list_held,
    "show": showing.show,
    "release": releasing.run,
    "doctor": doctor.run,
    "history": showing.history,
}
CLOSED_PIPE = 128 + 13
"""The exit code of a program that SIGPIPE ended."""


class Command(BaseCommand):
    """Lists, shows and releases held locks, and checks their servers."""

    help = "List held locks, force the release of stuck ones, and check their servers."
    # Must work even if something else is wrong with the project.
    requires_system_checks: ClassVar[list[str]] = []  # type: ignore[misc]

    def add_arguments(self, parser: CommandParser) -> None:
        arguments.add_commands(parser)

    def get_version(self) -> str:
        """Return the package's version, for ``--version``."""
        return f"django-redis-lock {__version__}"

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Return a parser that takes ``locks`` for ``locks list``."""
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parse = parser.parse_args

        def parse_completed(args: Any = None, namespace: Any = None) -> Any:
            try:
                words = arguments.complete(list(args or []))
            except ValueError as error:
                parser.error(str(error))
            return parse(words, namespace)

        parser.parse_args = parse_completed  # type: ignore[method-assign]
        return parser

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as a program: escape what can't be encoded, and handle Ctrl-C and a closed pipe."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        try:
            super().run_from_argv(argv)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(CLOSED_PIPE)
        except KeyboardInterrupt:
            sys.stderr.write("\nInterrupted.\n")
            sys.exit(INTERRUPTED)

    @no_translations  # what is shared with the admin is translated there
    def handle(self, *args: Any, **options: Any) -> None:
        terminal = Terminal(
            self.stdout,
            self.stderr,
            self.style,
            force_color=options["force_color"],
            as_json=options["format"] == "json",
        )
        RUN[options["command"]](options, terminal)
