import sys
from pathlib import Path

import pytest

from steadyrl.cli.main import main
from steadyrl.core import plugins
from steadyrl.core.config import load, resolve
from steadyrl.core.errors import ConfigError

DEEP = "[" * 5000
BASE = {"task": {"args": {"corpus": "generated"}}, "rewards": {"retrieval": 1.0}}


def refusal(call, *arguments):
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    said = str(caught.value)
    assert len(said) < 1000
    return said


@pytest.mark.parametrize("name", ["os:getcwd", "math:pi", "json:JSONDecoder"])
def test_what_is_no_backend_is_refused_by_name(name):
    assert f"'{name}' is no backend: it has no 'create'" in refusal(plugins.load, "backend", name)


@pytest.mark.parametrize("override", [f"run.steps={DEEP}", "run.x=" + "{a=" * 2000, "a." * 3000 + "b=1"])
def test_values_nested_without_end_are_refused_in_one_line(override):
    assert "more than 64 deep" in refusal(resolve, BASE, [override])


def test_a_file_nested_without_end_is_refused_in_one_line(tmp_path):
    for text in (f"x = {DEEP}", "[" + "a." * 3000 + "b]\n"):
        (tmp_path / "config.toml").write_text(text)
        assert "more than 64 deep" in refusal(load, tmp_path / "config.toml")


@pytest.mark.parametrize(
    "override", ["x" * 5000, f"curriculum.name={'x' * 5000}", f"run.{'x' * 5000}", "run.steps.a=" * 900]
)
def test_a_long_mistake_is_not_repeated_whole(override):
    refusal(resolve, BASE, [override])


def test_the_home_folder_is_meant_by_a_tilde_in_every_path(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    judge = {"model": "~/m", "base_url": "http://localhost:1/v1", "cache": "~/c", "baseline": "~/b"}
    found = resolve({**BASE, "rewards": {"judge": judge}, "run": {"folder": "~/runs"}, "model": {"path": "~/model"}})
    reward = found.rewards["judge"]
    paths = [found.run.folder, found.model.path, reward.model, reward.cache, reward.baseline]
    assert paths == [str(tmp_path / name) for name in ("runs", "model", "m", "c", "b")]
    for task, name in (("search", "corpus"), ("code", "problems"), ("code", "heldout"), ("prompts", "path")):
        settings = resolve({"task": {"name": task, "args": {name: "~/x"}}, "rewards": {"length": 1.0}})
        if task != "prompts":
            assert getattr(settings.task.args, name) == str(tmp_path / "x")
    folder = resolve({**BASE, "sampler": {"engine": "vllm", "args": {"folder": "~/w"}}}).sampler.args.folder
    assert Path(folder) == tmp_path / "w"


@pytest.mark.parametrize("path", ["a\0b", f"runs/{'x' * 256}", f"{'ü' * 200}/x"])
def test_a_path_that_no_file_system_has_is_refused(path):
    assert "run.folder: got " in refusal(resolve, {**BASE, "run": {"folder": path}})


def test_an_error_that_repeats_a_long_text_is_cut_in_its_middle(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["steadyrl", "train", str(tmp_path / f"{'x/' * 3000}none.toml")])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.startswith("error: cannot read the config file")
    assert said.endswith("x/none.toml'; expected a TOML file\n")
    assert len(said) < 2100
