"""A program that reads all memory of its own process and returns the secrets that it finds there.

It knows nothing beforehand. The map of the address space comes from asking the kernel for fixed mappings that replace
nothing: EEXIST says that something lies in a range, and halving the range finds it exactly. Memory is read by writing
it to a pipe, which answers EFAULT where reading would crash. So stacks, freed heap, arguments of the program, the
environment and pages of libraries are all read. A secret is ``SECRET-`` and 16 hexadecimal digits.
"""

import secrets

SCAN = r"""
import ctypes, gc, os, re

_PATTERN = re.compile(rb"S[E]CRE[T]-[0-9a-f]{16}")
_CHUNK, _PAGE, _END = 1 << 16, 4096, 0x7FFFFFFFF000
_READ, _FIXED = 1, 0x100022 | 0x4000  # PROT_READ; MAP_FIXED_NOREPLACE, PRIVATE, ANONYMOUS, NORESERVE


def memory_map():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    found, ranges = [], [(0x10000, _END)]
    while ranges:
        low, high = ranges.pop()
        got = libc.mmap(low, high - low, _READ, _FIXED, -1, 0)
        if got == low:
            libc.munmap(low, high - low)
            continue
        if ctypes.get_errno() != 17:  # not EEXIST: it is free, and larger than what may be mapped
            continue
        if high - low <= _PAGE or (high - low <= 1 << 30 and libc.madvise(low, high - low, 0) == 0):
            found.append((low, high))
            continue
        middle = (low + high) // 2 // _PAGE * _PAGE
        ranges += [(low, middle), (middle, high)]
    return found


def memory(low, high):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    read, write = os.pipe()
    while low < high:
        size = libc.write(write, low, min(_CHUNK, high - low))
        if size <= 0:
            low += _PAGE
            continue
        yield os.read(read, size)
        low += size
    os.close(read), os.close(write)


def scan():
    found, read = set(), 0
    for low, high in memory_map():
        tail = b""
        for part in memory(low, high):
            found.update(match.decode() for match in _PATTERN.findall(tail + part))
            tail, read = part[-64:], read + len(part)
    for kept in gc.get_objects():
        if isinstance(kept, (str, bytes)):
            found.update(m.decode() for m in _PATTERN.findall(kept.encode() if isinstance(kept, str) else kept))
    for descriptor in range(64):
        if descriptor != 3:
            try:
                __import__("fcntl").fcntl(descriptor, 4, os.O_NONBLOCK)
                found.update(m.decode() for m in _PATTERN.findall(os.read(descriptor, 1 << 20)))
            except OSError:
                pass
    return sorted(found), read
"""


def secret() -> str:
    """Return a new secret."""
    return f"SECRET-{secrets.token_hex(8)}"
