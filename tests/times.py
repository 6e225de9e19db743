"""Which tests are slow. `make test-times` runs all tests one after the other and writes their names to tests/slow.txt.

A test in that list carries the marker `slow`, and `make test-fast` leaves it out.
"""

import os
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("slow.txt")
LIMIT_S = 0.1  # processor time of the costliest case of a test, with its fixtures and the processes that it waited for

_seconds: dict[str, float] = {}


def slow_tests():
    """Return the names of the slow tests, without their parameters."""
    return frozenset(LIST.read_text(encoding="utf-8").split())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    before = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        name = item.nodeid.partition("[")[0]
        _seconds[name] = max(_seconds.get(name, 0.0), sum(os.times()[:4]) - before)


def pytest_sessionfinish():
    """Write the list; tests of files that did not run stay in it."""
    files = {name.partition("::")[0] for name in _seconds}
    others = {name for name in slow_tests() if name.partition("::")[0] not in files}
    slow = {name for name, seconds in _seconds.items() if seconds >= LIMIT_S}
    LIST.write_text("".join(f"{name}\n" for name in sorted(others | slow)), encoding="utf-8")
