"""What a user gives to the public functions in Python, and what is refused before anything is read."""

import inspect
import runpy
from decimal import Decimal
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import steadyrl
from steadyrl.core.arguments import checked
from steadyrl.core.errors import ConfigError, SteadyError

# Arguments that have to be there beside the wrong one, by name.
NEEDED = {
    "run": "runs/x", "request": "say it", "path": "x.toml", "log": [], "id": "1", "prompt": "?", "model": "base",
    "prompts": ["a", "b"], "reward": "length", "step": 3, "name": "after",
}  # fmt: skip
# The doctor takes frames of any library, and refuses what is none by itself.
FUNCTIONS = [
    steadyrl.load_config, steadyrl.run, steadyrl.sample, steadyrl.train, steadyrl.write_report,
    steadyrl.Watch, steadyrl.Problem, steadyrl.Run, steadyrl.RunDir, steadyrl.Run.open,
    *(getattr(steadyrl.Run("runs/x"), name) for name in ("sample", "export", "evaluations", "checkpoint_folder")),
]  # fmt: skip


class Foreign:
    """Stands for whatever fits nowhere."""


def places():
    """Return every public function with the name of each argument that is of a certain type."""
    for function in FUNCTIONS:
        hints = get_type_hints(function.__init__ if inspect.isclass(function) else inspect.unwrap(function))
        for name in inspect.signature(function).parameters:
            if hints.get(name, Any) not in (Any, object):
                yield pytest.param(function, name, id=f"{function.__qualname__}-{name}")


@pytest.mark.parametrize(("function", "name"), list(places()))
def test_an_argument_that_fits_nowhere_is_one_error_with_its_name(function, name):
    required = [key for key, given in inspect.signature(function).parameters.items() if given.default is given.empty]
    arguments = {key: NEEDED[key] for key in required if key in NEEDED}
    with pytest.raises(SteadyError, match=rf"^{name}: got <.*> \(Foreign\); expected .+; in Python help\('steadyrl\."):
        function(**arguments | {name: Foreign()})


def takes(
    path: Path | str | None = None, count: int = 0, share: float = 0.5, on: bool = True, names: tuple[str, ...] = ()
) -> tuple[Any, ...]:
    return path, count, share, on, names


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("path", Path("a")), ("path", steadyrl.Run("a")), ("path", "a"), ("path", None), ("count", np.int16(4)),
        ("share", 1), ("share", np.float32(0.25)), ("on", np.bool_(False)), ("names", ["a"]), ("names", ()),
    ],
)  # fmt: skip
def test_what_is_as_good_as_the_type_itself_passes(name, value):
    assert value in checked(takes)(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("path", "", "a path, a text or None"), ("path", b"a", "a path, a text or None"),
        ("count", True, "a whole number"), ("count", 2.0, "a whole number"), ("count", "2", "a whole number"),
        ("share", False, "a number"), ("share", Decimal("0.5"), "a number"), ("on", 1, "True or False"),
        ("names", "abc", "a list"),
    ],
)  # fmt: skip
def test_what_only_passes_for_the_type_is_refused(name, value, expected):
    with pytest.raises(
        ConfigError, match=rf"^{name}: got .*; expected {expected}; in Python help\('{__name__}\.takes'\)"
    ):
        checked(takes)(**{name: value})


@pytest.mark.parametrize(
    ("name", "count", "call"),
    [
        ("step", "1 argument", lambda: None), ("stop", "0 arguments", lambda line: False), ("note", "1 argument", max),
        ("steps", "1 argument", lambda first, total: None), ("finding", "1 argument", lambda *, change: None),
    ],
)  # fmt: skip
def test_a_callback_that_cannot_be_called_is_refused_before_a_run_begins(name, count, call):
    async def later(*arguments):
        return True

    for wrong in (later,) if call is max else (call, later):  # max takes what it gets
        with pytest.raises(ConfigError, match=rf"^{name}: got .*; expected a function of {count};"):
            steadyrl.Watch(**{name: wrong})
    steadyrl.Watch(note=print, step=[].append, stop=lambda *any_number: True, steps=lambda total=3: None)


def test_the_line_of_the_users_file_that_gave_a_wrong_argument_is_named(tmp_path):
    rows = tmp_path / "rows_of_mine.py"
    rows.write_text("from steadyrl.core.types import Problem\n\nrows = [\n    Problem(7, 'x')]\n")
    with pytest.raises(ConfigError, match=r"^id: got 7 \(int\); .* \(rows_of_mine.py, line 4\)$"):
        runpy.run_path(str(rows))


def test_arguments_that_python_refuses_stay_its_own_error():
    with pytest.raises(TypeError, match=r"takes\(\) got an unexpected keyword argument 'cuont'"):
        checked(takes)(cuont=3)
    assert inspect.signature(checked(takes)) == inspect.signature(takes)
