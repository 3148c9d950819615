"""``locks completion``: a script with which bash completes ``locks``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.management.console.terminal import Terminal

SCRIPT = """\
# Completes "manage.py locks" and "python manage.py locks" in bash 4 and later. Load it after other
# completions of these programs, which go on to serve everything else.
declare -gA _django_locks_earlier
_django_locks() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    local first=1 command= word earlier=${_django_locks_earlier[${COMP_WORDS[0]##*/}]}
    case ${COMP_WORDS[1]} in *manage.py) first=2 ;; esac
    if [[ ${COMP_WORDS[first]} != locks ]] || (( COMP_CWORD <= first )); then
        if [[ -n $earlier ]]; then "$earlier" "$@"; fi
        return
    fi
    for word in "${COMP_WORDS[@]:first+1:COMP_CWORD-first-1}"; do
        case $word in @COMMANDS@) command=$word; break ;; esac
    done
    COMPREPLY=()
    if [[ $current == "=" ]]; then
        current=
    elif [[ $before == "=" ]]; then
        before=${COMP_WORDS[COMP_CWORD-2]}
    fi
    case $before in
@VALUES@
    esac
    case $command in
@WORDS@
    esac
}
for _django_locks_name in manage.py django-admin python python3; do
    case $(complete -p "$_django_locks_name" 2> /dev/null) in
        *_django_locks*) ;;
        *" -F "*) _django_locks_earlier[$_django_locks_name]=$(
            complete -p "$_django_locks_name" | sed "s/.* -F \\([^ ]*\\).*/\\1/") ;;
    esac
done
complete -o bashdefault -o default -F _django_locks manage.py django-admin python python3
"""


def run(options: dict[str, Any], terminal: Terminal) -> None:
    commands = _commands(options["parser"])
    values = [*_values(commands.values())]
    words = [_case(name, _words(parser)) for name, parser in commands.items()]
    words.append(_case("''", [*commands, *_words(commands["list"])]))
    terminal.say(
        SCRIPT.replace("@COMMANDS@", "|".join(commands))
        .replace("@VALUES@", "\n".join(values))
        .replace("@WORDS@", "\n".join(words)),
    )


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return dict(commands.choices)


def _words(parser: argparse.ArgumentParser) -> list[str]:
    return [word for action in parser._actions for word in action.option_strings]


def _values(parsers: Iterable[argparse.ArgumentParser]) -> Iterator[str]:
    """Yield a case for each option with a value: its choices, else file names."""
    choices: dict[str, list[str]] = {}
    for action in (action for parser in parsers for action in parser._actions):
        if action.nargs != 0:
            for word in action.option_strings:
                choices[word] = [str(one) for one in action.choices or ()]
    choices["--using"] = _aliases()
    for word, known in choices.items():
        yield _case(word, known, "return")


def _case(pattern: str, words: Iterable[str], then: str = "") -> str:
    reply = f'COMPREPLY=( $(compgen -W {shlex.quote(" ".join(words))} -- "$current") )'
    return f"        {pattern}) {reply}{f'; {then}' if then else ''} ;;"


def _aliases() -> list[str]:
    try:
        return list(locks)
    except InvalidLockBackend:
        return []
