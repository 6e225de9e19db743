"""Which files of a folder are which split. The expected splits are those that datasets 5.2's load_dataset gives."""

import json
import re
import sys
from pathlib import Path

import pytest

from steadyrl.core.counting.count import heard_by
from steadyrl.core.errors import DataError, MissingExtraError
from steadyrl.loop.tasks.data_files import find_data

LAYOUTS = {
    "no word of a split": ("a.jsonl b.jsonl", {"train": "a.jsonl b.jsonl"}),
    "names of files": ("train.jsonl test.jsonl", {"train": "train.jsonl", "test": "test.jsonl"}),
    "shards": (
        "train-00000-of-00002.parquet train-00001-of-00002.parquet test-00000-of-00001.parquet",
        {
            "train": "train-00000-of-00002.parquet train-00001-of-00002.parquet",
            "test": "test-00000-of-00001.parquet",
        },
    ),
    "shards in data/ have names of their own": (
        "data/train_sft-00000-of-00001.parquet data/test_sft-00000-of-00001.parquet",
        {"test_sft": "data/test_sft-00000-of-00001.parquet", "train_sft": "data/train_sft-00000-of-00001.parquet"},
    ),
    "other words": (
        "data/training.csv data/valid.csv data/eval.csv",
        {"train": "data/training.csv", "validation": "data/valid.csv", "test": "data/eval.csv"},
    ),
    "folders": (
        "train/0.jsonl train/1.jsonl dev/0.jsonl evaluation/x.jsonl",
        {"train": "train/0.jsonl train/1.jsonl", "validation": "dev/0.jsonl", "test": "evaluation/x.jsonl"},
    ),
    "folders go before files": ("train/0.jsonl test.jsonl", {"train": "train/0.jsonl"}),
    "a word ends at a sign or a digit": (
        "my_train1.jsonl my-test.file.jsonl trainset.jsonl",
        {"train": "my_train1.jsonl", "test": "my-test.file.jsonl"},
    ),
    "hidden files": (".cache/train.jsonl train.jsonl __x/test.jsonl test.jsonl",
                     {"train": "train.jsonl", "test": "test.jsonl"}),
    "the kind that most are of": ("train.jsonl test.jsonl test-stats.csv",
                                  {"train": "train.jsonl", "test": "test.jsonl"}),
    "parquet of as many": ("train.csv train.parquet", {"train": "train.parquet"}),
    "kinds are counted among files of a split": ("a.csv b.csv train.jsonl", {"train": "train.jsonl"}),
    "packed": ("train.jsonl.gz test.ndjson", {"train": "train.jsonl.gz", "test": "test.ndjson"}),
    "what describes the data": ("train.json dataset_infos.json config.json state.json", {"train": "train.json"}),
    "a folder of another word": ("pretest/a.jsonl train/a.jsonl", {"train": "train/a.jsonl"}),
    "folders in data/": ("data/train/a.jsonl data/test/a.jsonl",
                         {"train": "data/train/a.jsonl", "test": "data/test/a.jsonl"}),
}  # fmt: skip
READMES = {
    "splits": ("- config_name: default\n  data_files:\n  - split: train\n    path: x/*\n  - split: test\n    path:\n"
               "    - y/c.jsonl\n", {"train": "x/a.jsonl x/b.jsonl", "test": "y/c.jsonl"}),
    "a list": ("- config_name: only\n  data_files:\n  - x/*.jsonl\n  - y/*\n",
               {"train": "x/a.jsonl x/b.jsonl y/c.jsonl"}),
    "a text": ('- config_name: only\n  data_files: "**/a.jsonl"\n', {"train": "x/a.jsonl"}),
    "a folder": ("- config_name: only\n  data_dir: z\n", {"train": "z/train.jsonl", "test": "z/test.jsonl"}),
    "all in a folder": ("- config_name: only\n  data_files:\n  - split: dpo\n    path: x/**\n",
                        {"dpo": "x/a.jsonl x/b.jsonl"}),
    "a default": ("- config_name: one\n  data_files: x/*\n- config_name: two\n  default: true\n  data_files: y/*\n",
                  {"train": "y/c.jsonl"}),
}  # fmt: skip


def lay_out(root, names):
    for name in names.split():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    return root


def splits(root, configuration=""):
    found = find_data(root, configuration).splits
    return {split: " ".join(str(file.relative_to(root)) for file in files) for split, files in found.items()}


@pytest.mark.parametrize("names", LAYOUTS)
def test_splits_are_found_by_the_names_of_folders_and_files(tmp_path, names):
    files, expected = LAYOUTS[names]
    assert splits(lay_out(tmp_path / "test", files)) == expected  # what stands above the folder says nothing


@pytest.mark.parametrize("kind", READMES)
def test_splits_are_found_in_the_front_matter_of_the_readme(tmp_path, kind):
    yaml, expected = READMES[kind]
    root = lay_out(tmp_path, "x/a.jsonl x/b.jsonl y/c.jsonl z/train.jsonl z/test.jsonl train.jsonl")
    (root / "README.md").write_text(f"---\nlicense: mit\nconfigs:\n{yaml}---\n# Data\n")
    assert splits(root) == expected


def test_a_readme_without_configurations_says_nothing(tmp_path):
    root = lay_out(tmp_path, "train.jsonl test.jsonl")
    (root / "README.md").write_text("---\nlicense: mit\n---\nconfigs: none\n")
    assert splits(root) == {"train": "train.jsonl", "test": "test.jsonl"}


@pytest.mark.parametrize("by", ["folder", "readme"])
def test_of_several_configurations_one_is_chosen_by_name(tmp_path, by):
    root = lay_out(tmp_path, "main/train.jsonl main/test.jsonl socratic/train.jsonl socratic/test.jsonl")
    if by == "readme":
        entries = (f"- config_name: {name}\n  data_files: {name}/train.jsonl\n" for name in ("main", "socratic"))
        (root / "README.md").write_text(f"---\nconfigs:\n{''.join(entries)}---\n")
    with pytest.raises(DataError, match=r"holds the configurations main, socratic, .*task\.args\.config = 'main'"):
        find_data(root)
    with pytest.raises(DataError, match=r"has no configuration 'other'; task\.args\.config may be main, socratic"):
        find_data(root, "other")
    assert splits(root, "socratic")["train"] == "socratic/train.jsonl"
    assert find_data(root, "socratic").named("test") == f"{root}: socratic, test"


def test_a_file_whose_name_says_two_splits_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"the name of '.*train_eval\.jsonl' says both train and test"):
        find_data(lay_out(tmp_path, "train_eval.jsonl"))


@pytest.mark.parametrize("folder", ["data/", "", "en/train/"])
def test_a_split_with_missing_files_is_refused_unless_a_pattern_names_those_to_read(tmp_path, folder):
    names = [f"{folder}train-0000{number}-of-00003.jsonl" for number in (0, 2)]
    lay_out(tmp_path, " ".join(names))
    with pytest.raises(DataError, match=r"holds 2 of 3 files train-\*-of-00003; download the others") as refused:
        find_data(tmp_path)
    pattern = str(refused.value).partition("task.args.path = ")[2].strip("'")
    assert find_data(Path(pattern)).splits == {"train": [tmp_path / name for name in names]}
    lay_out(tmp_path, f"{folder}train-00001-of-00003.jsonl")
    assert len(find_data(tmp_path).splits["train"]) == 3


def test_files_may_be_named_by_a_pattern(tmp_path):
    lay_out(tmp_path, "a/train.jsonl b/train.jsonl b/test.jsonl")
    assert find_data(tmp_path / "*" / "train.jsonl").splits == {
        "train": [tmp_path / "a" / "train.jsonl", tmp_path / "b" / "train.jsonl"]
    }
    with pytest.raises(DataError, match=r"no file is like '.*dev\.jsonl'"):
        find_data(tmp_path / "*" / "dev.jsonl")


def test_a_name_on_the_hub_is_its_downloaded_folder(hub_snapshot):
    snapshot = lay_out(hub_snapshot("own", "sums"), "main/train.jsonl main/test.jsonl")
    begun = []
    with heard_by(lambda *count: None, begun.append):
        data = find_data(Path("own/sums"))
    assert data.splits == {"train": [snapshot / "main/train.jsonl"], "test": [snapshot / "main/test.jsonl"]}
    assert data.named("test") == "own/sums: main, test" and data.to_judge("train") == "test"
    assert begun == ["reading the data set 'own/sums' of the Hugging Face hub"]


def test_a_data_set_that_the_hub_does_not_give_is_refused_with_the_reason(hub_snapshot):
    with pytest.raises(DataError, match=r"'own/sums', and no data set.*hub \(.*disabled.*\); check.*to_parquet"):
        find_data(Path("own/sums"))


@pytest.mark.parametrize("name", ["sums", "a/b/sums", "own/sums.jsonl", "/own/sums", "here/sums"])
def test_the_hub_is_not_asked_for_what_is_no_name_on_it(name, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # asking would end with the name of its extra
    if name.endswith(".jsonl"):
        assert find_data(Path(name)).splits == {"train": [Path(name)]}
    else:
        here = "" if name.startswith("/") else f", seen from {re.escape(str(tmp_path))}"
        with pytest.raises(DataError, match=f"no file or folder '{name}'{here}; check the path, or name a data set"):
            find_data(Path(name))


@pytest.mark.parametrize("path", ["/etc/passwd.json", "../other/a.jsonl", "hf://datasets/a/b.jsonl", 3, None, ["a", 3]])
def test_a_readme_that_names_files_elsewhere_is_refused(tmp_path, path):
    lay_out(tmp_path, "root/a.jsonl other/a.jsonl")
    config = json.dumps([{"config_name": "x", "data_files": [{"split": "train", "path": path}]}])
    (tmp_path / "root" / "README.md").write_text(f"---\nconfigs: {config}\n---\n")
    with pytest.raises(DataError, match=r"expected one inside of the folder|there is no file"):
        find_data(tmp_path / "root")


@pytest.mark.parametrize(
    "yaml",
    ["configs: [", "configs: 3", "configs: [3]", "configs: {a: b}", "configs:\n- data_files: gone/*", "configs: !!x y",
     "configs:\n- data_files: x**y", "configs:\n- data_files: ''", "configs:\n- data_files: [{a: b}]"],
)  # fmt: skip
def test_a_readme_that_cannot_be_read_is_refused_in_one_line(tmp_path, yaml):
    root = lay_out(tmp_path, "a.jsonl")
    (root / "README.md").write_text(f"---\n{yaml}\n---\n")
    with pytest.raises(DataError) as caught:
        find_data(root)
    assert "README.md" in str(caught.value) and "\n" not in str(caught.value)


def test_without_a_reader_of_yaml_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    (lay_out(tmp_path, "a.jsonl") / "README.md").write_text("---\nconfigs: []\n---\n")
    with pytest.raises(MissingExtraError, match=r"'yaml' is not installed.*steadyrl\[data\]"):
        find_data(tmp_path)
