import pytest

from steadyrl.environments.search.cache import stdlib_with_index


@pytest.fixture(scope="session")
def stdlib_cache(tmp_path_factory):
    """Return a cache folder with the standard library's corpus in it, built once for all tests."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        _, index = stdlib_with_index()
        index.close()
    return folder
