"""A list of the system calls that a candidate may make; the kernel refuses every other one.

The list is what computing, reading and writing of open files, and threads need. No sockets, no new processes or
programs, no signals to others, no writing to the file system's tree, no ptrace, mounts, keys or shared memory.
Runs inside the jail: nothing but the standard library.

Source: Linux, Documentation/userspace-api/seccomp_filter.rst; numbers from arch/x86/entry/syscalls/syscall_64.tbl
and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable

from steadyrl.environments.code.sandbox.libc import libc

# name: (x86-64, arm64); None where the architecture lacks the call.
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "readv": (19, 65),
    "writev": (20, 66),
    "pread64": (17, 67),
    "open": (2, None),
    "openat": (257, 56),
    "close": (3, 57),
    "close_range": (436, 436),
    "stat": (4, None),
    "lstat": (6, None),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "lseek": (8, 62),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "brk": (12, 214),
    "futex": (202, 98),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getppid": (110, 173),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getrandom": (318, 278),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "getrusage": (98, 165),
    "getrlimit": (97, 163),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "getcpu": (309, 168),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "setitimer": (38, 103),
    "getitimer": (36, 102),
    "alarm": (37, None),
    "restart_syscall": (219, 128),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
_CLONE, _CLONE3, _KILL, _TGKILL, _PRLIMIT = (56, 220), (435, 435), (62, 129), (234, 131), (302, 261)
_IOCTL, _FCNTL = (16, 29), (72, 25)
_CLOCKS = (228, 113), (229, 114)  # clock_gettime, clock_getres
_OF_A_PROCESS = 0x80000000  # from here on the number of a clock means a process, of anybody, by its id
_CLONE_THREAD = 0x00010000
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC. Not F_SETOWN: a pipe's owner is sent signals.
_FCNTLS = (0, 1, 2, 3, 4, 1030)
_IOCTLS = (0x5401, 0x5450, 0x5451, 0x541B)  # TCGETS, FIONCLEX, FIOCLEX, FIONREAD

# machine: (column of the tables, AUDIT_ARCH constant)
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32_BIT = 0x40000000

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data; low halves come first on both architectures

_ANY_PID = b"PIDS"  # in the place of a number that no process has, for it is above 2^22

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2


def supported() -> bool:
    """Return whether the numbers of this machine's system calls are known."""
    return platform.system() == "Linux" and platform.machine() in _MACHINES


def install(filter: bytes, pid: int) -> None:
    """Filter the calling process from here on; it cannot be undone.

    Args:
        filter: From ``build``.
        pid: The caller's own, the only one that it may send signals to.

    Raises:
        OSError: The kernel refuses.
    """
    program = filter.replace(_ANY_PID, struct.pack("=I", pid))
    if libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    if libc().prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the seccomp filter was refused")


def build() -> bytes:
    """Return the filter in classic BPF, eight bytes an instruction, with a place for the process's own id."""
    column, arch = _MACHINES[platform.machine()]
    refuse = _op(_RETURN, _ERRNO | errno.EPERM)
    allow = _op(_RETURN, _ALLOW)
    program = [_op(_LOAD, _ARCH), _op(_EQUAL, arch, 1, 0), _op(_RETURN, _KILL_PROCESS), _op(_LOAD, _NUMBER)]
    if column == 0:  # x32 calls are other names for the same calls
        program += [_op(_AT_LEAST, _X32_BIT, 0, 1), _op(_RETURN, _KILL_PROCESS)]
    program += _allow_each(number for numbers in _ALLOWED.values() if (number := numbers[column]) is not None)
    # C libraries fall back to clone, whose flags a filter can read, when clone3 is not there.
    program += [_op(_EQUAL, _CLONE3[column], 0, 1), _op(_RETURN, _ERRNO | errno.ENOSYS)]
    # Each of these ends in a return, so the accumulator still holds the number at the next one.
    program += _when(_CLONE[column], [_op(_LOAD, _ARGS), _op(_ANY_BIT, _CLONE_THREAD, 0, 1), allow, refuse])
    any_pid = struct.unpack("=I", _ANY_PID)[0]
    for number in (_KILL[column], _TGKILL[column]):
        program += _when(number, [_op(_LOAD, _ARGS), _op(_EQUAL, any_pid, 0, 1), allow, refuse])
    for number in (clock[column] for clock in _CLOCKS):
        program += _when(number, [_op(_LOAD, _ARGS), _op(_AT_LEAST, _OF_A_PROCESS, 1, 0), allow, refuse])
    no_new_limit = [_op(_LOAD, _ARGS + 16), _op(_EQUAL, 0, 0, 3), _op(_LOAD, _ARGS + 20), _op(_EQUAL, 0, 0, 1), allow]
    program += _when(_PRLIMIT[column], [_op(_LOAD, _ARGS), _op(_EQUAL, 0, 0, 5), *no_new_limit, refuse])
    program += _when(_FCNTL[column], [_op(_LOAD, _ARGS + 8), *_allow_each(_FCNTLS), refuse])
    # Of all other requests: "not a terminal", which is what callers are prepared for.
    no_terminal = _op(_RETURN, _ERRNO | errno.ENOTTY)
    program += _when(_IOCTL[column], [_op(_LOAD, _ARGS + 8), *_allow_each(_IOCTLS), no_terminal])
    return b"".join([*program, refuse])


def _allow_each(values: Iterable[int]) -> list[bytes]:
    """Return a comparison of the accumulator with each value, which lets the call through where they are equal."""
    return [op for value in values for op in (_op(_EQUAL, value, 0, 1), _op(_RETURN, _ALLOW))]


def _when(number: int, body: list[bytes]) -> list[bytes]:
    return [_op(_EQUAL, number, 0, len(body)), *body]


def _op(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_true, jump_false, k)
