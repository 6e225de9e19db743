"""What lies in a candidate's memory: its own job, and nothing of any other."""

import os

import pytest

from steadyrl.environments.code.sandbox.pool import Limits, Sandbox
from tests.environments.code.sandbox.memory_scan import SCAN, secret

ENOUGH = 8 << 20  # bytes; a bare interpreter holds more


@pytest.fixture(scope="module")
def slow_sandbox(jail):
    """Return a pool whose candidates have the time to read all their memory."""
    with Sandbox(jail, Limits(wall_s=60.0, cpu_s=30, memory_mib=512)) as pool:
        yield pool


def scanned(sandbox, *own):
    """Return what a candidate finds that holds these secrets itself."""
    outcome = sandbox.run(f"{SCAN}\nOWN = {list(own)!r}\n", "scan", [()])
    found, read = outcome.results[0].value
    assert read > ENOUGH
    return set(found)


def test_the_scan_finds_what_is_there(slow_sandbox):
    own = secret()
    assert own in scanned(slow_sandbox, own)


def test_nothing_of_other_jobs_lies_in_a_candidates_memory(slow_sandbox):
    secrets = [secret() for _ in range(6)]
    code, argument, comment, returned, raised, late = secrets
    for _ in range(5):
        slow_sandbox.run(
            f"KEPT = {code!r}  # {comment}\ndef f(x):\n    return x", "f", [(argument,), ([argument] * 999,)]
        )
        slow_sandbox.run(f"def f():\n    return {returned!r}", "f", [()])
        slow_sandbox.run(f"def f():\n    raise ValueError({raised!r})", "f", [()])
        slow_sandbox.run(f"{'x = 1;' * 20_000}\nraise ValueError({late!r})", "f", [()])
    own = secret()
    assert scanned(slow_sandbox, own) == {own}


def test_nothing_of_the_environment_and_arguments_of_the_trainer_lies_there(jail, monkeypatch):
    hidden = secret()
    monkeypatch.setitem(os.environ, "STEADYRL_TEST_SECRET", hidden)
    with Sandbox(jail, Limits(wall_s=60.0, cpu_s=30, memory_mib=512)) as pool:
        assert scanned(pool) == set()


# The status of exit code 77 beside "E", by which the worker says that a candidate ended; in either order.
REPORT = r'rb"E\x01\x00[M]\x00\x00|\x00[M]\x00\x00E\x01"'


def test_how_an_answer_ended_does_not_lie_in_the_memory_of_the_next(slow_sandbox):
    """The exit code and the time that an answer takes are of its own choice: some thirty bits for the next one."""
    look = SCAN.replace('rb"S[E]CRE[T]-[0-9a-f]{16}"', REPORT).replace("decode()", "hex()")
    for own in ("b'E' + bytes([1, 0, 77, 0, 0])", "bytes([0, 77, 0, 0]) + b'E' + bytes([1])"):
        assert slow_sandbox.run(f"{look}\nOWN = {own}\n", "scan", [()]).results[0].value[0]
    for _ in range(3):
        assert slow_sandbox.run("import os\ndef f():\n    os._exit(77)", "f", [()]).verdict == "killed"
    assert slow_sandbox.run(look, "scan", [()]).results[0].value[0] == []
