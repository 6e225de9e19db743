"""Tests ask for what they need of the machine, and are skipped with what to install where it is missing."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.outcomes import Skipped

from steadyrl.core.errors import ConfigError
from steadyrl.environments.browse.browser.find import PROGRAMS, find_chromium
from steadyrl.environments.browse.browser.settings import BrowserSettings
from tests import needs
from tests.processes.sitecustomize import VARIABLE

TESTS = Path(__file__).parent
ROOT = TESTS.parent
LOOKS = (
    "from steadyrl.environments.browse.browser import find, settings; find.find_chromium(settings.BrowserSettings())"
)


def test_what_does_not_ask_for_chromium_finds_none_whatever_is_installed():
    with pytest.raises(ConfigError, match="Chromium is not installed"):
        find_chromium(BrowserSettings())
    done = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, check=False)
    assert "Chromium is not installed" in done.stderr


def test_a_skip_names_a_command_that_a_shell_understands():
    with pytest.raises(Skipped, match="needs no_such_module: ") as skipped:
        needs.skip_without_packages("sys", "no_such_module", extra="torch,data", beside="pandas trl")
    command = shlex.split(str(skipped.value).partition(": ")[2])
    assert command == ["pip", "install", "steadyrl[torch,data]", "pandas", "trl"]


@pytest.mark.browser
def test_what_asks_for_chromium_finds_it():
    assert os.access(find_chromium(BrowserSettings()), os.X_OK)


def test_a_path_without_a_program_has_everything_else(tmp_path):
    for folder, names in {"one": ("chromium", "sh"), "two": ("git",)}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
        links, untouched = needs.path_without(["chromium"], tmp_path).split(":")
    assert [path.name for path in Path(links).iterdir()] == ["sh"]
    assert untouched == str(tmp_path / "two")


@pytest.mark.weekly
def test_on_a_machine_without_chromium_and_bubblewrap_their_tests_skip_and_say_what_to_install(tmp_path):
    chosen = [
        "tests/environments/browse/browser",
        "tests/environments/browse/test_miniwob.py",
        "tests/environments/browse/test_engines.py",
    ]
    chosen += [
        "tests/environments/code/sandbox/test_pool.py",
        "-k",
        "browser or bubblewrap",
        "-rsf",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *chosen],
        cwd=ROOT,
        env={**os.environ, VARIABLE: "", "PATH": needs.path_without([*PROGRAMS, "bwrap"], tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    skipped = re.findall(r"^SKIPPED \[(\d+)\] .*?: (.*)$", done.stdout, re.MULTILINE)
    assert sum(int(count) for count, reason in skipped if "Debian: apt-get install chromium" in reason) >= 20
    assert sum(int(count) for count, reason in skipped if "Debian: apt-get install bubblewrap" in reason) >= 10


def test_tests_skip_by_this_mechanism_only():
    texts = {path: path.read_text() for path in TESTS.rglob("*.py") if path != TESTS / "needs.py"}
    skips = re.compile(r"pytest\.(?:mark\.)?(?:skip|skipif|importorskip)\b")
    assert [path for path, text in texts.items() if skips.search(text)] == [], "use tests/needs.py"
