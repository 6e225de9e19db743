"""Landlock: a process that may read the given paths and touch no other file, for good. Inside the jail only.

Source: Linux, Documentation/userspace-api/landlock.rst and include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable

from steadyrl.environments.code.sandbox.libc import libc

# Equal on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION, _RULE_PATH_BENEATH = 1, 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_PR_SET_NO_NEW_PRIVS = 38
# Bits known to each version: file system, TCP (bind, connect), scope (abstract sockets, signals).
_FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
_FILE_BITS_NEWEST, _TCP_SINCE, _SCOPE_SINCE = 16, 4, 6
_ALL_TCP, _ALL_SCOPES = 0b11, 0b11


def version() -> int:
    """Return the version that the kernel offers, 0 without Landlock."""
    if sys.platform != "linux":  # there the number may be that of any other call
        return 0
    try:
        return max(0, _call(_CREATE_RULESET, None, 0, _GET_VERSION))
    except OSError:
        return 0


def read_only(paths: Iterable[str]) -> None:
    """Let the calling process and its children read these files and folders, and nothing else on any disk.

    Args:
        paths: Those that do not exist are passed over.

    Raises:
        OSError: The kernel has no Landlock or refuses.
    """
    abi = version()
    if not abi:
        raise OSError("the kernel offers no Landlock")
    files = (1 << _FILE_BITS.get(abi, _FILE_BITS_NEWEST)) - 1
    attributes = struct.pack(
        "=QQQ", files, _ALL_TCP if abi >= _TCP_SINCE else 0, _ALL_SCOPES if abi >= _SCOPE_SINCE else 0
    )
    size = 24 if abi >= _SCOPE_SINCE else 16 if abi >= _TCP_SINCE else 8
    ruleset = _call(_CREATE_RULESET, attributes, size, 0)
    try:
        for path in paths:
            _allow_reading(ruleset, path)
        if libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no_new_privs was refused")
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow_reading(ruleset: int, path: str) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rule = struct.pack("=Qi", _READ_FILE | (_READ_DIR if folder else 0), descriptor)
        _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    call = libc().syscall
    call.restype = ctypes.c_long
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(call(ctypes.c_long(number), *wide))
    if result < 0:
        raise OSError(ctypes.get_errno(), "a Landlock call failed")
    return result
