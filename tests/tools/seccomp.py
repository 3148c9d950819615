"""A filter of system calls, as container runtimes set one."""

from __future__ import annotations

import ctypes
import struct

PIDFD_OPEN = 434
"""The number of the call on every machine that Linux runs on."""
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def refuse_calls(error: int, *calls: int) -> None:
    """Let system calls fail with an error in this process, and in all that come from it."""
    steps = [(_LOAD, 0, 0, 0)]
    for number in calls:
        steps += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert libc.prctl(_SET_SECCOMP, _FILTER, program, 0, 0) == 0, ctypes.get_errno()
