import json
import os
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from steadyrl.cli.new import Data, choose_settings, find_columns, find_files, kind_of_answers, new_command
from steadyrl.core.config import resolve
from steadyrl.core.counting.count import heard_by
from steadyrl.core.errors import ConfigError, DataError
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Problem
from steadyrl.loop.rewards.combine import text_rollout
from steadyrl.loop.tasks.check import check_task
from steadyrl.loop.train import open_session, train
from tests import needs

SUMS = [{"question": f"What is {i} plus {2 * i}?", "answer": 3 * i, "level": 1} for i in range(1, 21)]
ANIMALS = [{"prompt": f"Name beast {i}", "gold": ("red cat", "old dog")[i % 2]} for i in range(20)]
OPEN = [{"text": f"Write about the queue module, part {i}"} for i in range(20)]


def write_rows(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command_line(folder, *arguments):
    """Run steadyrl in a folder, as a user would; return what it printed."""
    code = "from steadyrl.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("rows", "columns", "rewards"),
    [
        (SUMS, ("question", "answer"), {"rewards:correct": 1.0, "rewards:number": 0.1}),
        (ANIMALS, (None, None), {"rewards:correct": 1.0, "rewards:near": 0.1}),
        pytest.param(OPEN, ("text", None), {"rewards:on_topic": 1.0}, marks=pytest.mark.weekly),
    ],
    ids=["numbers", "texts", "open"],
)
def test_what_it_writes_is_sound_and_trains(tmp_path, monkeypatch, capsys, rows, columns, rewards):
    needs.package("torch")
    write_rows(tmp_path / "mine.jsonl", rows)
    monkeypatch.chdir(tmp_path)
    new_command(Path())
    printed = capsys.readouterr().out
    assert "written: config.toml, rewards.py" in printed
    assert "name a pretrained model: --model" in printed, "the small model from the package knows little"
    config = tomllib.loads((tmp_path / "config.toml").read_text())
    args = config["task"]["args"]
    assert (args["path"], args.get("prompt_column"), args.get("gold_column")) == ("mine.jsonl", *columns)
    assert config["rewards"] == rewards
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "rewards", None)  # put back what it is, or is not, for others
    del sys.modules["rewards"]
    if rows is ANIMALS:
        assert {verdict.state for verdict in check_task(resolve(config))} <= {"ok", "unknown"}
        return  # it trains as the numbers do
    checked = command_line(tmp_path, "task", "check", "config.toml")
    assert {line.split()[0] for line in checked.splitlines()} <= {"ok", "?"}
    short = (
        "run.steps=2", "sampling.max_new_tokens=16", "evaluate.problems=2", "rollout.prompts_per_step=4",
        "rollout.samples_per_prompt=4",
    )  # fmt: skip
    run = RunDir(tmp_path / "run")
    assert train(open_session(resolve(config, short)), run) == "finished"
    assert len(list(run.metrics())) == 2


def test_long_right_answers_are_compared_by_words_and_short_ones_by_letters(tmp_path, monkeypatch):
    """By letters, 200 pairs of answers of 300 words take ten seconds, and most of them are as near as any other."""
    needs.package("torch")
    answer = " ".join(f"word{i % 97}" for i in range(300))
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"tell {i}", "gold": answer} for i in range(9)]
    new_command(Path(), data=write_rows(tmp_path / "d.jsonl", rows))
    functions = runpy.run_path("rewards.py")

    def nearness(text, right):
        return functions["near"](Problem("p", "tell", {"gold": right}), text_rollout(Problem("p", "tell"), text))

    assert nearness(answer.upper(), answer) == 1.0
    assert nearness(answer.replace("word", "drow"), answer) == 0.0
    assert nearness("rad cet", "red cat") == pytest.approx(5 / 7)


def test_settings_are_those_that_train_from_python_takes(tmp_path, tiny_models):
    path = write_rows(tmp_path / "animals.jsonl", [{**row, "gold": "red " * 30} for row in ANIMALS])
    settings = choose_settings(Data({"path": str(path)}, "prompt", "gold", "text"), str(tiny_models["llama"]))
    # 16 of 20 problems train: one step holds all of them, and three passes are fewer than 30 steps
    assert (settings["rollout"]["prompts_per_step"], settings["run"]["steps"]) == (16, 30)
    assert (settings["model"], settings["update"]["learning_rate"]) == ({}, 4e-4)
    assert (
        settings["sampling"]["max_new_tokens"] == 32
    )  # half of the model's 64 positions, for twice the answer is more


def test_paths_in_the_config_are_those_seen_from_its_folder(tmp_path, monkeypatch, tiny_models):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(tiny_models["llama"])
    data = write_rows(tmp_path / "sums.jsonl", SUMS)
    new_command(Path("work/first"), data=Path("sums.jsonl"), model="model")
    config = tomllib.loads((tmp_path / "work" / "first" / "config.toml").read_text())
    folder = tmp_path / "work" / "first"
    assert (folder / config["task"]["args"]["path"]).resolve() == data
    assert (folder / config["model"]["path"]).resolve() == Path(tiny_models["llama"]).resolve()


def test_data_may_be_a_data_set_of_the_hub(tmp_path, monkeypatch, capsys, hub_snapshot, tiny_models):
    monkeypatch.chdir(tmp_path)
    snapshot = hub_snapshot("own", "sums")
    for configuration in ("main", "socratic"):
        for split, rows in {"train": SUMS[:16], "test": SUMS[16:]}.items():
            (snapshot / configuration).mkdir(exist_ok=True)
            write_rows(snapshot / configuration / f"{split}.jsonl", rows)
    hub_name, model = Path("own/sums"), str(tiny_models["llama"])
    with pytest.raises(DataError, match=r"holds the configurations main, socratic, .* choose one: --config 'main'"):
        new_command(Path("work"), data=hub_name, model=model)
    with pytest.raises(DataError, match="has the splits train, test, not --split 'dev'; name one of them"):
        new_command(Path("work"), data=hub_name, model=model, config="main", split="dev")
    assert not Path("work").exists()
    unseen = []  # phases that the command does not show
    with heard_by(lambda *count: None, unseen.append):
        new_command(Path("work"), data=hub_name, model=model, config="main")
    assert unseen == []
    printed = capsys.readouterr().out
    assert "data: own/sums, prompts in 'question', right answers in 'answer' (numbers)" in printed
    assert "--model" not in printed
    config = tomllib.loads(Path("work/config.toml").read_text())
    args = {"path": "own/sums", "config": "main", "prompt_column": "question", "gold_column": "answer"}
    assert config["task"] == {"name": "prompts", "args": {**args, "metric": "correct"}}
    # all 16 problems of "train" are one step, for the split "test" judges
    assert config["rollout"]["prompts_per_step"] == 16


def test_a_folder_of_data_may_hold_shards_below_it(tmp_path, monkeypatch, tiny_models):
    monkeypatch.chdir(tmp_path)
    Path("sums/data").mkdir(parents=True)
    for shard in range(2):
        write_rows(Path(f"sums/data/train-0000{shard}-of-00002.jsonl"), SUMS[shard::2])
    new_command(Path("work"), data=Path("sums"), model=str(tiny_models["llama"]))
    assert tomllib.loads(Path("work/config.toml").read_text())["task"]["args"]["path"] == "../sums"


def test_files_are_told_apart_by_their_names(tmp_path):
    for name in ("a-train.jsonl", "a-test.jsonl", "config.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    train, test = (tmp_path / name for name in ("a-train.jsonl", "a-test.jsonl"))
    assert find_files(tmp_path) == ({"path": str(train), "heldout": str(test)}, [train])
    (tmp_path / "b-train.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"a-test.jsonl, a-train.jsonl, b-train.jsonl; name the one to train on"):
        find_files(tmp_path)


def test_a_file_has_no_configurations(tmp_path):
    with pytest.raises(DataError, match=r"sums\.jsonl' has no configurations; leave --config main away"):
        new_command(tmp_path / "work", data=write_rows(tmp_path / "sums.jsonl", SUMS), config="main")


def test_columns_are_found_by_name_or_by_being_the_only_text():
    path = "x.jsonl"
    assert find_columns(path, [{"label": "b", "sentence": "a"}], "", "") == ("sentence", "label")
    assert find_columns(path, [{"prompt": "a", "solution": 3, "n": 1}], "", "") == ("prompt", "solution")
    assert find_columns(path, [{"prompt": "a", "other": "b"}], "other", "prompt") == ("other", "prompt")
    with pytest.raises(DataError, match="columns one, two, and nothing tells which is the prompt; add --prompt"):
        find_columns(path, [{"one": "a", "two": "b"}], "", "")
    with pytest.raises(DataError, match="has no column 'three'; its columns are one"):
        find_columns(path, [{"one": "a"}], "three", "")
    with pytest.raises(DataError, match=r"no column with a text or messages in every row.*columns are title, body"):
        find_columns("blank.csv", [{"title": "", "body": " "}, {"title": "", "body": "\t"}], "", "")
    assert find_columns("mine.csv", [{"title": "", "body": "x"}, {"title": "", "body": "y"}], "", "") == ("body", "")
    with pytest.raises(DataError, match=r"no column with a text or messages in every row.*columns are question, n"):
        find_columns(path, [{"question": 5, "n": 1}, {"question": "a", "n": 2}], "", "")


@pytest.mark.parametrize(
    ("answers", "kind"),
    [([3, "4.5", "1,000"], "number"), (["two and two\n#### 4"], "number"), (["4", "four"], "text"), (["is 4"], "text")],
)
def test_the_kind_of_the_right_answers_is_seen(answers, kind):
    assert kind_of_answers(answers) == kind


def test_what_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "rewards.py").write_text("mine")
    write_rows(tmp_path / "mine.jsonl", SUMS)
    with pytest.raises(ConfigError, match=r"rewards.py' is there already; move it, or name another folder"):
        new_command(tmp_path)
    assert not (tmp_path / "config.toml").exists()


@pytest.mark.parametrize(
    ("line", "noted"),
    [
        ("Tell a joke,17", True),
        ("Which town lies on the Spree?,Berlin", True),
        ("request,answer", False),
        ("the request,gold answer", False),
    ],
)
def test_a_first_line_that_is_no_line_of_names_is_noted(tmp_path, capsys, line, noted):
    needs.package("torch")
    (tmp_path / "mine.csv").write_text(f"{line}\n" + "".join(f"Tell joke {n},{n}\n" for n in range(6)))
    new_command(tmp_path / "out", tmp_path / "mine.csv", prompt=line.split(",")[0])
    assert ("put a line of names above it" in capsys.readouterr().err) is noted
