import json

import pytest

from steadyrl import config, plugins
from steadyrl.errors import ConfigError, DataError
from steadyrl.tasks.prompts import PromptsTask


def written(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def made(path, **settings):
    return PromptsTask(PromptsTask.Settings(path=str(path), **settings))


def refusal(path, **settings):
    with pytest.raises(DataError) as caught:
        made(path, **settings)
    return str(caught.value).replace(f"{path.parent}/", "")


@pytest.fixture
def hundred(tmp_path):
    return written(tmp_path / "hundred.jsonl", *({"prompt": f"count to {number}"} for number in range(100)))


def ids(problems):
    return [problem.id for problem in problems]


def test_every_column_but_prompt_and_id_reaches_the_rewards(tmp_path):
    train = written(tmp_path / "train.jsonl", {"id": "a", "prompt": "17 + 25?", "answer": 42, "tags": ["sum"]})
    heldout = written(tmp_path / "heldout.jsonl", {"id": "b", "prompt": "1 + 1?"})
    task = made(train, heldout=heldout)
    (problem,) = task.problems("train")
    assert (problem.id, problem.prompt, problem.columns) == ("a", "17 + 25?", {"answer": 42, "tags": ["sum"]})
    assert ids(task.problems("heldout")) == ["b"]


def test_gold_is_the_column_of_that_name_or_unknown(tmp_path):
    rows = [{"prompt": "a", "gold": "A"}, {"prompt": "b", "gold": None}, {"prompt": "c"}]
    task = made(written(tmp_path / "p.jsonl", *rows))
    gold = {p.prompt: task.gold(p) for split in ("train", "heldout") for p in task.problems(split)}
    assert gold == {"a": "A", "b": None, "c": None}


def test_the_task_brings_no_rewards_and_no_baselines(hundred):
    task = made(hundred)
    assert (task.rewards(), task.baselines()) == ({}, {})


def test_the_metric_is_the_setting_and_empty_by_default(hundred):
    assert made(hundred).metric == ""
    assert made(hundred, metric="my_rewards:exact").metric == "my_rewards:exact"


def test_the_share_is_held_out_and_the_rest_trained_in_the_order_of_the_file(hundred):
    task = made(hundred, heldout_share=0.3)
    train, heldout = task.problems("train"), task.problems("heldout")
    assert len(heldout) == 30
    for split in (train, heldout):
        numbers = [int(problem.prompt.split()[-1]) for problem in split]
        assert numbers == sorted(numbers)
    assert {problem.prompt for problem in (*train, *heldout)} == {f"count to {number}" for number in range(100)}
    assert not set(ids(train)) & set(ids(heldout))


def test_the_split_is_the_same_for_every_seed_of_the_run(hundred):
    settings = PromptsTask.Settings(path=hundred)
    first, second = (ids(PromptsTask(settings, seed).problems("heldout")) for seed in (0, 1))
    assert first == second


def test_a_prompt_without_an_id_is_named_by_its_own_text(tmp_path):
    task = made(written(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": "b"}))
    # The first 16 digits of `printf a | sha256sum` and `printf b | sha256sum`.
    expected = {"ca978112ca1bbdca", "3e23e8160039594a"}
    assert {*ids(task.problems("train")), *ids(task.problems("heldout"))} == expected


def test_the_task_is_found_by_its_short_name_with_its_settings(hundred):
    task = plugins.load("task", "prompts")
    assert task is PromptsTask
    settings = config.validate(task.Settings, {"path": hundred}, "task.args")
    assert task(settings, 3).name == "prompts"


def test_settings_without_a_path_or_with_an_impossible_share_are_refused():
    with pytest.raises(ConfigError, match=r"^task\.args\.path: is missing"):
        config.validate(PromptsTask.Settings, {}, "task.args")
    for share in (0, 1):
        with pytest.raises(ConfigError, match=r"^task\.args\.heldout_share: got"):
            config.validate(PromptsTask.Settings, {"path": "p", "heldout_share": share}, "task.args")


def test_a_missing_file_is_named(tmp_path, hundred):
    assert refusal(tmp_path / "no.jsonl") == "there is no file no.jsonl; check the path"
    with pytest.raises(DataError, match=r"there is no file .*no\.jsonl; check the path"):
        made(hundred, heldout=str(tmp_path / "no.jsonl"))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ('{"prompt": "b', "not valid JSON"),
        ('"b"\n', "got text; expected a JSON object"),
        ('{"text": "b"}\n', "'prompt' is missing; the line has text"),
        ('{"prompt": ""}\n', "'prompt' is empty"),
        ('{"prompt": ["b"]}\n', "'prompt' is a list; expected text in quotes"),
        ('{"prompt": "b", "id": 2}\n', "'id' is a number; expected text in quotes"),
        ('{"prompt": "b", "id": " "}\n', "'id' is empty"),
        ('{"prompt": "b", "gold": 42}\n', "'gold' is a number; expected text in quotes"),
        ('{"prompt": "a"}\n', "the same prompt is on line 1 of p.jsonl too; remove one"),
    ],
)
def test_a_defect_is_named_by_file_and_line(tmp_path, second, message):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n' + second, encoding="utf-8")
    assert refusal(path).startswith(f"p.jsonl, line 2: {message}")


def test_an_id_may_occur_once_in_both_files_together(tmp_path):
    train = tmp_path / "train.jsonl"
    written(train, {"prompt": "a", "id": "x"})
    heldout = written(tmp_path / "heldout.jsonl", {"prompt": "b", "id": "y"}, {"prompt": "c", "id": "x"})
    message = refusal(train, heldout=heldout)
    assert message.startswith("heldout.jsonl, line 2: the id 'x' is on line 1 of train.jsonl too")


def test_a_file_with_no_prompt_or_too_few_to_split_is_refused(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n", encoding="utf-8")
    assert refusal(path).startswith("p.jsonl has no prompt; expected one JSON object with a 'prompt' per line")
    path.write_text('{"prompt": "a"}\n', encoding="utf-8")
    assert refusal(path).startswith("p.jsonl has one prompt; expected two or more, or task.args.heldout")
