"""``manage.py locks``: lists held locks, releases stuck ones, and checks their servers."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from django.core.management import base
from django.core.management.base import BaseCommand, CommandParser

from django_redis_lock import __version__, management
from django_redis_lock.management import changing, doctor, showing
from django_redis_lock.management.output import INTERRUPTED, Terminal
from django_redis_lock.operators import ORDERS, UNITS
from django_redis_lock.support.arguments import DEFAULT, LONGEST_LEASE, MOST_AT_ONCE
from django_redis_lock.support.text import escape_unprintable

NO_INPUT = "--noinput", "--no-input"
EXIT_CODES = """\
Exit codes: 0 done; 1 error, or declined; 2 wrong usage, or a server is
unavailable; 3 the holder changed, or nothing matched; 130 Ctrl-C;
141 the reader closed the pipe."""
RUN_EXIT_CODES = """\
Exit codes: that of the program, or 128 and the signal that ended it; 69 the
server is unavailable; 75 another caller holds the lock; 76 the lock was lost;
126 and 127 the program can't be run."""
EXAMPLES = {
    "": ("locks", "locks show import:7", "locks release import:7 --reason 'stuck since 9 am'"),
    "list": (
        "locks list 'product:*'",
        "locks list --attention",
        "locks list --older-than 10m --sort held --limit 20",
        "locks list --format json | jq -r '.locks[].name'",
    ),
    "show": ("locks show import:7",),
    "release": (
        "locks release import:7 --reason 'stuck since 9 am'",
        "locks release import:7 --token-id b8c47b2e4040e965 --noinput",
        "locks release --pattern 'import:*' --dry-run",
        "locks release --all --only-dead --reason 'web2 was killed'",
    ),
    "limit": ("locks limit", "locks limit render 6", "locks limit render --clear"),
    "unpark": (
        "locks unpark import:7",
        "locks unpark import:7 --task-id 16b2acbf-22e4-43de-a9cd-9f6f3d2d5a0b",
        "locks unpark --due",
        "locks unpark import:7 --aside --delete",
    ),
    "run": (
        "locks run migrate -- python manage.py migrate",
        "locks run nightly --no-wait -- ./nightly.sh --fast",
    ),
    "doctor": ("locks doctor --using default",),
    "history": ("locks history import:7", "locks history --limit 500 --format json"),
}


class Command(BaseCommand):
    help = "List held locks, force the release of stuck ones, and check their servers."
    # Must work even if something else is wrong with the project.
    requires_system_checks: ClassVar[list[str]] = []  # type: ignore[misc]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = _epilog("")
        parser.formatter_class = Formatter
        commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
        self._parsers: dict[str, CommandParser] = commands.choices
        add = _add(commands, "list", "list the held locks (the default)", showing.list_held)
        add("pattern", nargs="?", default="*", help="a shell pattern such as 'product:*'")
        text = "sort key; by default, the lease that ends last comes first"
        add("--sort", choices=ORDERS, help=text)
        add("--reverse", action="store_true", help="reverse the order")
        text = "only locks held for at least this long, such as 90s, 10m, 1h30m or 2d"
        add("--older-than", type=parse_duration, metavar="DURATION", help=text)
        add("--attention", action="store_true", help="only locks that need attention")
        add("--limit", type=_count, metavar="N", help="show at most N holders")
        text = "show one lock with its holder, waiters and history"
        add = _add(commands, "show", text, showing.show)
        add("name", help="the lock's name")
        _add_release(commands)
        text = "list, set and clear the limits of semaphores"
        add = _add(commands, "limit", text, changing.limit)
        add("name", nargs="?", help="the semaphore's name")
        text = "maximum number of permits, overriding the limit in code; 0 pauses the semaphore"
        add("limit", nargs="?", type=_whole, help=text)
        add("--clear", action="store_true", help="clear it; the limit in code applies again")
        add("--by", metavar="NAME", help="operator who sets it; by default, the system user")
        text = "send parked Celery tasks back to the broker"
        add = _add(commands, "unpark", text, changing.unpark)
        add("name", nargs="?", help="the name of the lock they are parked for")
        add("--task-id", metavar="ID", help="only the task with this id")
        add("--due", action="store_true", help="only tasks whose turn it is, of all locks")
        add("--aside", action="store_true", help="messages set aside, without NAME of all locks")
        add("--delete", action="store_true", help="delete these messages; with --aside only")
        add(*NO_INPUT, dest="interactive", action="store_false", help="do not ask for confirmation")
        _add_run(commands)
        add = _add(commands, "doctor", "check whether the servers are fit for locks", doctor.run)
        text = "exit with 1 on a failure (fail), or on a warning too (warn)"
        add("--fail-level", choices=("warn", "fail"), default="fail", help=text)
        add = _add(commands, "history", "show forced releases and freed locks", showing.history)
        add("name", nargs="?", help="only events of this lock")
        text = "show at most N events (default: 50)"
        add("--limit", type=_count, default=50, metavar="N", help=text)

    def get_version(self) -> str:
        return f"django-redis-lock {__version__}"

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)

        def parse_completed(args: Any = None, namespace: Any = None) -> Any:
            words, program = self._complete(parser, list(args or [])), []
            runs = words[:1] == ["run"]
            if runs and "--" in words:  # the rest is for another program
                at = words.index("--")
                words, program = words[:at], words[at + 1 :]
            parsed, unknown = parser.parse_known_args(words, namespace)
            if unknown and (program or not runs):  # without the dashes, `run` asks for them
                self._parsers[words[0]].error(f"unrecognized arguments: {' '.join(unknown)}")
            parsed.program = program
            return parsed

        parser.parse_args = parse_completed  # type: ignore[method-assign]
        return parser

    def _complete(self, parser: CommandParser, words: list[str]) -> list[str]:
        """Return the command line with its command in front: ``list`` if it names none."""
        actions = [action for each in self._parsers.values() for action in each._actions]
        options = [" ".join(["", *one.option_strings]) for one in actions if one.nargs is None]
        takers = "".join(options)  # of which an option may be the beginning
        pairs = zip(words, ["list", *words], strict=False)
        free = [word for word, before in pairs if word[:1] != "-" and f" {before}" not in takers]
        first = next(iter(free), "")
        if first in self._parsers:
            words.remove(first)
            return [first, *words]
        if any(word in ("-h", "--help", "--version") for word in words):
            return words
        for meant in difflib.get_close_matches(first, self._parsers, n=1):
            text = f"There is no command {first!r}; did you mean {meant!r}? To list the locks "
            parser.error(f"{text}with that name, use: locks list {escape_unprintable(first)}")
        return ["list", *words]

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as a program: escape what can't be encoded, and handle Ctrl-C and a closed pipe."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        try:
            super().run_from_argv(argv)
        except BrokenPipeError:  # the reader has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(128 + 13)  # as a program that SIGPIPE ended
        except KeyboardInterrupt:
            sys.stderr.write("\nInterrupted.\n")
            sys.exit(INTERRUPTED)

    @base.no_translations  # what is shared with the admin is translated there
    def handle(self, *args: Any, **options: Any) -> None:
        try:
            options["run"](options, Terminal(self, options))
        finally:
            self.stdout.flush()  # ahead of an error, and while a closed pipe can be reported


def _add_release(commands: Any) -> None:
    add = _add(commands, "release", "force the release of locks", changing.release)
    add("names", nargs="*", metavar="name", help="names of locks")
    add("--pattern", dest="match", metavar="GLOB", help="release held locks that match")
    add("--all", action="store_true", help="release all held locks")
    add("--token-id", metavar="ID", help="only if the holder has this token id, as shown by show")
    text = "only if the holder's process ran on this host and is gone"
    add("--only-dead", action="store_true", help=text)
    add("--reason", default="", metavar="TEXT", help="reason for the audit; a terminal asks for it")
    add("--by", metavar="NAME", help="operator for the audit; by default, the system user")
    add("--dry-run", action="store_true", help="show what would be released")
    text = "ask neither for a reason nor for confirmation"
    add(*NO_INPUT, dest="interactive", action="store_false", help=text)


def _add_run(commands: Any) -> None:
    add = _add(commands, "run", "run a program while a lock is held", management.run)
    options = "[--timeout S] [--wait S | --no-wait] [--grace S] [--using ALIAS]"
    commands.choices["run"].usage = f"%(prog)s NAME {options} -- PROGRAM [ARGUMENT ...]"
    add("name", help="the lock's name")
    wait = commands.choices["run"].add_mutually_exclusive_group().add_argument
    seconds = {"type": parse_duration, "metavar": "S"}
    add("--timeout", default=DEFAULT, help="the lease, renewed while the program runs", **seconds)
    wait("--wait", default=DEFAULT, help="wait at most S seconds, then exit with 75", **seconds)
    wait("--no-wait", action="store_const", const=0.0, dest="wait", help="do not wait")
    text = "seconds between SIGTERM and SIGKILL after the lock is lost (default: 10)"
    add("--grace", default=10.0, help=text, **seconds)


class Formatter(base.DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the examples."""


def _epilog(name: str) -> str:
    examples = "".join(f"  manage.py {example}\n" for example in EXAMPLES[name])
    return f"Examples:\n{examples}\n{RUN_EXIT_CODES if name == 'run' else EXIT_CODES}"


def _add(commands: Any, name: str, text: str, run: Callable[..., None]) -> Callable[..., Any]:
    """Add a command; return what adds its arguments."""
    about = {"description": f"{text[0].upper()}{text[1:]}.", "epilog": _epilog(name)}
    parser: CommandParser = commands.add_parser(name, help=text, formatter_class=Formatter, **about)
    parser.set_defaults(run=run)
    if name != "run":  # its output is that of the program
        parser.add_argument("--format", choices=("table", "json"), default="table")
    text = "an alias in LOCKS; by default all, for run 'default'"
    parser.add_argument("--using", metavar="ALIAS", help=text)
    # Options that may stand before or after the command.
    anywhere = parser.add_argument_group("everywhere", argument_default=argparse.SUPPRESS)
    for word in ("--no-color", "--force-color", "--traceback"):
        anywhere.add_argument(word, action="store_true")
    for word in ("--settings", "--pythonpath"):
        anywhere.add_argument(word)
    anywhere.add_argument("-v", "--verbosity", type=int, choices=range(4))
    return parser.add_argument


def _whole(text: str, least: int = 0) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or not least <= int(text) <= MOST_AT_ONCE:
        why = f"{text!r} is not a whole number from {least} to {MOST_AT_ONCE}."
        raise argparse.ArgumentTypeError(why)
    return int(text)


_count = partial(_whole, least=1)


def parse_duration(text: str) -> float:
    """Return the seconds of ``90``, ``1.5h`` or ``1h30m``."""
    try:
        seconds = float(text)
    except ValueError:
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
        is_whole = bool(parts) and "".join(map("".join, parts)) == text
        seconds = sum(float(amount) * UNITS[unit] for amount, unit in parts) if is_whole else -1
    if not 0 <= seconds <= LONGEST_LEASE:
        why = f"{text!r} is not a duration of at most 100 years"
        use = "use seconds, such as 90, or units, such as 90s, 10m, 1h30m or 2d"
        raise argparse.ArgumentTypeError(f"{why}: {use}.")
    return seconds
