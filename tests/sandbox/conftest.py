import pytest

from steadyrl.sandbox.outcome import Returned
from steadyrl.sandbox.pool import Limits, Sandbox
from tests import needs


@pytest.fixture(scope="session", params=["bubblewrap", "landlock"])
def jail(request):
    """Return the name of a jail that holds on this machine."""
    needs.skip_without(request.param)
    return request.param


@pytest.fixture(scope="session")
def sandbox(jail):
    """Return a pool with one worker; the sessions' attacks all meet the same one, one after the other."""
    with Sandbox(jail, Limits(wall_s=1.0, cpu_s=1, memory_mib=256)) as pool:
        pool.run("", "none", [])  # the worker starts with the first job
        yield pool


@pytest.fixture
def attack(sandbox):
    """Return a function that runs hostile code on add(2, 3) and add(10, -4) and returns what became of it.

    Whatever the code did, the worker must still be there, the same one, and right about the next candidate.
    """

    def run(code, calls=((2, 3), (10, -4))):
        sound = "def add(a, b):\n    return a + b\n"
        worker = sandbox._idle.queue[-1]
        outcome = sandbox.run(code, "add", calls)
        assert sandbox._idle.queue[-1] is worker, "the worker was lost"
        assert sandbox.run(sound, "add", [(1, 1)]).results == (Returned(2),)
        return outcome

    return run


@pytest.fixture
def right():
    """Return the function that counts how many of the two sums an outcome has right, as a judge does."""
    return _right


def _right(outcome):
    pairs = zip(outcome.results, (5, 6), strict=False)
    return sum(isinstance(result, Returned) and result.value == expected for result, expected in pairs)


@pytest.fixture
def done(attack):
    """Return a function that tries statements, each by itself, and returns those that no OSError stopped."""

    def attempt(*statements):
        code = (
            "import os, signal, socket, resource\n"
            "def add(statements):\n"
            "    done = []\n"
            "    for statement in statements:\n"
            "        try:\n"
            "            exec(statement, globals())\n"
            "        except (OSError, ModuleNotFoundError):\n"
            "            continue\n"
            "        done.append(statement)\n"
            "    return done\n"
        )
        return attack(code, [(list(statements),)]).results[0].value

    return attempt
