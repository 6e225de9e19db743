import fcntl
import os

import pytest

from steadyrl.environments.search.cache import stdlib_with_index


@pytest.fixture(scope="session")
def stdlib_cache(tmp_path_factory):
    """Return a cache folder with the standard library's corpus in it, built once for the tests of all processes."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "stdlib-cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch, (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("XDG_CACHE_HOME", str(folder))
        _, index = stdlib_with_index()
        index.close()
    return folder
