import pytest

from steadyrl.environments.code.sandbox.pool import Limits, Sandbox
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
