"""ruff's objections to programs, with the real ruff."""

import shutil
import stat
import sys
from pathlib import Path

import pytest

from steadyrl.core.errors import DataError, MissingExtraError
from steadyrl.environments.code.lint import find_ruff, lint
from tests import needs


@pytest.fixture(scope="module")
def ruff():
    needs.skip_without_packages("ruff", extra="code")
    return find_ruff()


def test_each_program_gets_its_own_objections_in_order(ruff):
    clean, clumsy, broken = lint(
        ruff,
        [
            "def double(x):\n    return 2 * x\n",
            "import os\n\n\ndef f(x):\n    if x == None:\n        return False\n    else:\n        return True\n",
            "def f(x:\n    return\n",
        ],
    )
    assert clean == []
    assert [line.split()[2] for line in clumsy] == ["F401", "SIM103", "E711"]
    assert clumsy[0].startswith("line 1: ")
    assert broken
    assert all("syntax" in line for line in broken)


def test_a_program_cannot_silence_its_objections(ruff):
    (found,) = lint(ruff, ["# ruff: noqa\nimport os  # noqa\n"])
    assert [line.split()[2] for line in found] == ["F401"]


def test_settings_around_the_user_play_no_part(ruff, tmp_path, monkeypatch):
    (tmp_path / "ruff.toml").write_text("[lint]\nignore = ['F401']\n")
    monkeypatch.chdir(tmp_path)
    assert lint(ruff, ["import os\n"]) != [[]]


@pytest.mark.parametrize("text", ["", "\x00", "\ud800 = 1", "x = '" + "a" * 300_000 + "'", "(" * 2_000, "é = 1\r\n"])
def test_hostile_text_is_read_or_objected_to(ruff, text):
    (found,) = lint(ruff, [text])
    assert all(isinstance(line, str) and "\n" not in line for line in found)


def test_nothing_is_left_behind(ruff, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lint(ruff, ["x = 1\n"])
    assert list(tmp_path.iterdir()) == []
    assert lint(ruff, []) == []


def test_a_ruff_that_is_not_there_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"steadyrl\[code\]"):
        find_ruff()


def test_a_ruff_that_fails_is_one_clear_error(tmp_path):
    wrong = Path(tmp_path / "ruff")
    wrong.write_text("#!/bin/sh\necho 'no such rule' >&2\nexit 2\n")
    wrong.chmod(wrong.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(DataError, match="no such rule"):
        lint(str(wrong), ["x = 1\n"])
