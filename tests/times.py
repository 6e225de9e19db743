"""Which tests are slow. `make test-times` runs all tests one after the other and writes their names to tests/slow.txt.

A test in that list carries the marker `slow`, and `make test-fast` leaves it out. The files that take longest are in
tests/long.txt with their seconds: they are run first, so that no process is left with a long file at the end.
"""

import os
import time
from collections import Counter
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("slow.txt")
LONG = Path(__file__).with_name("long.txt")
LONG_S = 3.0  # of all tests of a file, with all that they wait for: nobody counts what a server of forks computes
LIMIT_S = 0.1  # processor time of the costliest case of a test, with its fixtures and the processes that it waited for

_seconds: dict[str, float] = {}
_of_files: Counter[str] = Counter()


def slow_tests():
    """Return the names of the slow tests, without their parameters."""
    return frozenset(LIST.read_text(encoding="utf-8").split())


def long_files():
    """Return {file: seconds of all its tests} of the files that take longest."""
    lines = LONG.read_text(encoding="utf-8").splitlines()
    return {file: float(seconds) for seconds, file in map(str.split, lines)}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    before, began = sum(os.times()[:4]), time.monotonic()
    try:
        return (yield)
    finally:
        name, seconds = item.nodeid.partition("[")[0], sum(os.times()[:4]) - before
        _seconds[name] = max(_seconds.get(name, 0.0), seconds)
        _of_files[name.partition("::")[0]] += time.monotonic() - began


def pytest_sessionfinish():
    """Write the lists; files that did not run stay in them, and their tests."""
    long = {name: seconds for name, seconds in long_files().items() if name not in _of_files}
    long |= {name: round(seconds) for name, seconds in _of_files.items() if seconds >= LONG_S}
    ordered = sorted(long.items(), key=lambda file: (-file[1], file[0]))
    LONG.write_text("".join(f"{seconds:.0f} {name}\n" for name, seconds in ordered), encoding="utf-8")
    files = {name.partition("::")[0] for name in _seconds}
    others = {name for name in slow_tests() if name.partition("::")[0] not in files}
    slow = {name for name, seconds in _seconds.items() if seconds >= LIMIT_S}
    LIST.write_text("".join(f"{name}\n" for name in sorted(others | slow)), encoding="utf-8")
