"""A relative path that is missing here: where it is there is said, and nothing where nobody can tell."""

from pathlib import Path

import pytest

from steadyrl.core import config, plugins
from steadyrl.core.errors import ConfigError, DataError
from steadyrl.core.places import from_here, path_hint
from steadyrl.core.rundir import RunDir
from steadyrl.loop.tasks.jsonl import read_objects


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a folder of a project with a config, data and a module; the current folder is beside it."""
    folder, other = tmp_path / "project", tmp_path / "other"
    for path in (folder / "runs" / "r1", folder / "parts", other):
        path.mkdir(parents=True)
    (folder / "c.toml").write_text("[rewards]\nlength = 1.0\n")
    (folder / "runs" / "r1" / "resolved.json").write_text('{"run": {"steps": 2}}')
    (folder / "asked.jsonl").write_text('{"prompt": "a"}\n')
    (folder / "parts" / "mine_there.py").write_text("")
    monkeypatch.chdir(other)
    return folder


def of_config(project):
    config.load(project / "c.toml")


def of_run(project):
    RunDir(project / "runs" / "r1").resolved()


@pytest.mark.parametrize("settings", [of_config, of_run])
def test_what_is_there_from_a_folder_around_the_settings_is_said_to_be(project, settings):
    settings(project)
    where = r" \(it is there from \.\./project: start in that folder\)"
    with pytest.raises(DataError, match=f"there is no file asked.jsonl, seen from .*other{where}; check the path"):
        list(read_objects(Path("asked.jsonl")))
    with pytest.raises(ConfigError, match=f"no module 'parts' in the current folder{where} or in what is installed"):
        plugins.load("reward", "parts.mine_there:brevity")


def test_nothing_is_said_of_what_is_nowhere_or_has_a_whole_path(project):
    of_config(project)
    assert path_hint(Path("nowhere.jsonl")) == ""
    assert from_here(Path("/nowhere.jsonl")) == ""
    assert from_here(Path("nowhere.jsonl")) == f", seen from {Path.cwd()}"
