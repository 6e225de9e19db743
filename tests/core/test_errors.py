"""What exceptions of other people's code look like where they are shown."""

import sys
from types import SimpleNamespace

import pytest

from steadyrl.core.errors import ConfigError, exception_line, raised_line, users_errors, without_keys
from steadyrl.core.types import Problem
from steadyrl.loop.rewards.functions import per_rollout
from steadyrl.loop.rewards.trl import from_trl
from tests.group_of_rewards import group


class Nameless(Exception):
    def __str__(self):
        raise RuntimeError("in __str__")


class Silent(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a plain one"), "ValueError: a plain one"),
        (
            ValueError("clears \x1b[2J the\nscreen\x9b \u202e \ud800"),
            r"ValueError: clears \x1b[2J the screen\x9b \u202e \ud800",
        ),
        (RuntimeError("x" * 10**7), f"RuntimeError: {'x' * 500} ..."),
        (Nameless(), "Nameless: its text cannot be had, which raises RuntimeError"),
        (Silent(), "Silent"),
        (type("Red\x1b[31m", (Exception,), {})("hot"), r"Red\x1b[31m: hot"),
    ],
)
def test_an_exception_is_one_short_line_that_no_terminal_obeys(error, line, caplog):
    assert exception_line(error) == line

    def reward(*args, **columns):
        raise error

    place = f"(test_errors.py, line {reward.__code__.co_firstlineno + 1})"
    (rollout,) = group("p", None).rollouts
    for scored in (per_rollout("r", reward), from_trl("r", reward)):
        (score,) = scored([(Problem("p", "p"), rollout)])
        assert (score.value, score.unscored) == (None, f"r raised {line} {place}")
    assert all(record.getMessage().endswith(f"r raised {line} {place}") for record in caplog.records)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET http://user:pa55word@host:8000/v1 failed", "GET http://[key]@host:8000/v1 failed"),
        ("http://host/v1?api_key=plain-text&n=2", "http://host/v1?api_key=[key]&n=2"),
        ("# export OPENAI_API_KEY=plain-text", "# export OPENAI_API_KEY=[key]"),
        ('{"Authorization": "Bearer plain-text"}', '{"Authorization": "[key]"}'),
        ("Bearer abcdef0123456789abcdef", "[key]"),
        ("password = 'plain-text'", "password = '[key]'"),
        ("key_env = 'OPENAI_API_KEY'", "key_env = 'OPENAI_API_KEY'"),
        ("max_new_tokens = 512, stop_token_ids = [1]", "max_new_tokens = 512, stop_token_ids = [1]"),
        ("eos_token = '<|im_end|>'", "eos_token = '<|im_end|>'"),
        ("you@example.org wrote http://example.org/@you", "you@example.org wrote http://example.org/@you"),
    ],
)
def test_keys_are_left_out_of_what_is_shown_and_nothing_else_is(text, shown):
    assert without_keys(text) == shown
    assert exception_line(ValueError(text)) == f"ValueError: {shown}"


USERS = """
import json
from steadyrl.core.plugins import BUILT_IN
from steadyrl.core.types import Problem, Sampling

def fails(): raise KeyError("no index")
def leaves(): raise SystemExit(3)
def misuses_a_library(): json.loads("{")
def is_refused(): Problem(1, "?")
def fails_as_pytest_fails(): raise BaseException("assert 1 == 2")
def meets_a_fault_of_the_package(): Sampling(1, top_p="?").truncates
"""


@pytest.fixture
def users(tmp_path):
    """The functions of a module outside of the package, by name."""
    file, names = tmp_path / "users.py", {}
    file.write_text(USERS)
    exec(compile(USERS, file, "exec"), names)
    return file, names


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("fails", 6, "KeyError: 'no index'"),
        ("leaves", 7, "SystemExit: 3"),
        ("fails_as_pytest_fails", 10, "BaseException: assert 1 == 2"),
        (
            "misuses_a_library",
            8,
            "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
    ],
)
def test_what_the_users_code_raises_is_one_line_that_says_where(users, name, line, said):
    file, functions = users
    with pytest.raises(ConfigError) as caught, users_errors():
        functions[name]()
    assert str(caught.value) == f"your own code raised {said} ({file}, line {line}, in {name}); fix it"


@pytest.mark.parametrize(("name", "error"), [("is_refused", ConfigError), ("meets_a_fault_of_the_package", TypeError)])
def test_what_the_package_raises_passes_on_unchanged(users, name, error):
    with pytest.raises(error), users_errors():
        users[1][name]()


@pytest.mark.parametrize("installed", [True, False])
def test_what_is_installed_anywhere_on_the_path_is_a_library(users, tmp_path, monkeypatch, installed):
    """As by pip's --user and --target, and Debian's dist-packages; then the code that called it is to be fixed."""
    monkeypatch.syspath_prepend(tmp_path)
    if installed:
        (tmp_path / "users-1.0.dist-info").mkdir()
    with pytest.raises(ConfigError) as caught, users_errors():
        users[1]["leaves"]()
    assert (str(users[0]) in str(caught.value)) is not installed


class Shell:
    """Stands in for IPython, with a compiler that numbers its cells."""

    def __init__(self, *cells):
        self.compile = self if cells else None
        self._cells = cells

    def format_code_name(self, name):
        return ("Cell", f"In[{self._cells.index(name) + 1}]") if name in self._cells else None


@pytest.mark.parametrize(
    ("name", "shell", "place"),
    [
        ("/no/ipykernel_12/345.py", Shell("/no/ipykernel_12/1.py", "/no/ipykernel_12/345.py"), "Cell In[2], line 2"),
        ("/no/ipykernel_12/345.py", None, "345.py, line 2"),
        ("<ipython-input-7-a1b2>", Shell(), "<ipython-input-7-a1b2>, line 2"),  # as the old IPython of Colab says
        ("<python-input-3>", None, "<python-input-3>, line 2"),
        ("<attrs generated init>", Shell("/no/ipykernel_12/345.py"), "test_errors.py, line"),  # a library's own
    ],
)
def test_what_a_cell_raises_names_the_cell_and_its_line(monkeypatch, name, shell, place):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    names = {}
    exec(compile("def divides(text):\n    return 7 / len(text)\n", name, "exec"), names)
    with pytest.raises(ConfigError) as caught, users_errors():
        names["divides"]("")
    assert raised_line(caught.value.__cause__).startswith(f"ZeroDivisionError: division by zero ({place}")
    assert place in str(caught.value)


def test_a_notebook_shows_of_an_error_the_users_lines_and_the_message(tmp_path):
    file, names = tmp_path / "mine.py", {"Problem": Problem}
    file.write_text("def asks():\n    return Problem(31, '?')\n")
    exec(compile(file.read_text(), file, "exec"), names)
    with pytest.raises(ConfigError) as caught:
        names["asks"]()
    *lines, message = caught.value._render_traceback_()
    assert message == f"ConfigError: {caught.value}" and "31" in message
    assert lines[-1] == "mine.py, line 2\n    return Problem(31, '?')\n"
    assert not any("arguments.py" in line for line in lines)
