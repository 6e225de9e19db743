import pkgutil
from types import ModuleType

import pytest

import steadyrl
from steadyrl.core.plugins import BUILT_IN, load
from tests import needs

NAMES = [*steadyrl._PLACES]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_resolves_to_what_bears_it(name):
    own_name = {"load_config": "load"}.get(name, name)
    assert getattr(steadyrl, name).__name__ == own_name


def test_public_names_are_few_sorted_and_listed():
    assert len(steadyrl.__all__) <= 15
    assert list(steadyrl.__all__) == sorted(steadyrl.__all__)
    assert set(steadyrl.__all__) <= set(NAMES) <= set(dir(steadyrl))


def test_no_public_name_hides_behind_a_module():
    # `import steadyrl.x` would put the module in the place of a name that is called like it.
    assert not {module.name for module in pkgutil.iter_modules(steadyrl.__path__)} & set(NAMES)


def test_other_names_are_unknown():
    with pytest.raises(AttributeError, match="module 'steadyrl' has no attribute 'Trainer'"):
        steadyrl.Trainer  # noqa: B018  # looking it up is the test


def test_star_import_gives_the_public_names():
    found = {}
    exec("from steadyrl import *", found)
    assert set(found) - {"__builtins__"} == set(steadyrl.__all__)


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in BUILT_IN for n in BUILT_IN[k]])
def test_every_built_in_name_leads_to_something(kind, name):
    if (kind, name) == ("exporter", "mlx"):
        needs.skip_without("mlx")
    found = load(kind, name)
    assert callable(
        getattr(found, "create" if kind == "backend" else "build") if isinstance(found, ModuleType) else found
    )
