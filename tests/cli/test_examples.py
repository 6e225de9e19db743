import tomllib
from pathlib import Path

import pytest

from steadyrl.cli.examples import all_examples, copy_example, describe_example, examples_command, examples_folder
from steadyrl.core import config
from steadyrl.core.errors import ConfigError

EXAMPLES = dict(all_examples(examples_folder()))


def test_every_config_and_notebook_is_an_example_with_a_description():
    files = [path for path in examples_folder().rglob("*") if path.suffix in (".toml", ".ipynb")]
    files = [path for path in files if path.name != "pyproject.toml"]
    assert sorted(EXAMPLES.values()) == sorted(files)
    assert EXAMPLES["own_reward"].name == "config.toml"
    for path in EXAMPLES.values():
        description = describe_example(path)
        assert description.endswith(".") and description[0].isupper() and len(description) > 10


def test_an_example_is_copied_with_the_model_and_the_files_that_it_names(tmp_path):
    written = copy_example(EXAMPLES["search-grpo"], tmp_path)
    assert written[0] == Path("examples/search-grpo.toml")
    assert Path("examples/search-start/model.safetensors") in written
    assert (tmp_path / config.load(tmp_path / written[0]).model.path / "tokenizer.json").is_file()
    for path in written:
        assert (tmp_path / path).read_bytes() == (examples_folder().parent / path).read_bytes()


def test_a_folder_of_its_own_is_copied_whole(tmp_path):
    written = copy_example(EXAMPLES["own_reward"], tmp_path)
    assert [path.name for path in written] == ["config.toml", "prompts.jsonl", "rewards.py"]


def test_no_changed_file_is_overwritten_and_nothing_is_half_copied(tmp_path):
    (tmp_path / "examples" / "vllm").mkdir(parents=True)
    (tmp_path / "examples" / "vllm" / "prompts.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=r"'examples/vllm/prompts\.jsonl' is there and differs"):
        copy_example(EXAMPLES["vllm/grpo"], tmp_path)
    assert not (tmp_path / "examples" / "vllm" / "grpo.toml").exists()


@pytest.mark.parametrize("name", ["search", "examples/search.toml"])
def test_the_command_says_what_it_wrote_and_how_to_train(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    examples_command(name)
    expected = "written: examples/search.toml\ntrain with: steadyrl train examples/search.toml\n"
    assert capsys.readouterr().out == expected


def test_the_wheel_holds_the_examples():
    settings = tomllib.loads((examples_folder().parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = settings["targets"]["wheel"]
    assert "examples" in wheel["only-include"] and wheel["sources"] == {"examples": "steadyrl/examples"}
