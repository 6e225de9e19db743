"""Comparing two subjects: same problems, same draws, one model at a time, and answers that outlive a kill."""

import importlib
import json
import re
import sys
from itertools import combinations

import numpy as np
import pytest

from steadyrl.core.counting.count import heard_by
from steadyrl.core.errors import DataError, RunError
from steadyrl.lab.compare import answers
from steadyrl.lab.compare.compare import Options, compare


def strip(record):
    return {key: value for key, value in record.items() if key not in ("a", "b", "sentences")}


def test_the_record_is_what_the_answers_say(settings, trained, tmp_path):
    run = trained()
    found = compare(("base", str(run.path)), settings(), Options(samples=3, metric="first_letter"), tmp_path / "out")
    kept = {}
    for side in "ab":
        lines = [json.loads(line) for line in (tmp_path / "out" / f"answers-{side}.jsonl").read_text().splitlines()]
        kept[side] = {line["problem"]: line["answers"] for line in lines[1:]}
        assert [len(answers) for answers in kept[side].values()] == [3] * 26
    for one in found["problems"]:
        for side in "ab":
            hits = [answer["text"][:1] == one["problem"][0] for answer in kept[side][one["problem"]]]
            assert one[side] == pytest.approx(np.mean(hits))
    change = found["verdict"]["change"]
    means = [np.mean([one[side] for one in found["problems"]]) for side in "ab"]
    assert [change["mean_before"], change["mean_after"]] == pytest.approx(means)
    assert change["difference"] == pytest.approx(means[1] - means[0])
    assert (found["verdict"]["pass_fail"], found["samples"], found["metric"]) == (True, 3, "first_letter")
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == json.loads(json.dumps(found))


def test_a_subject_compared_with_itself_gives_the_same_answers(settings, trained):
    run = trained()
    found = compare((str(run.path), f"{run.path}@4"), settings(), Options(samples=2))
    assert found["same_answers"] == 26
    assert (found["verdict"]["word"], found["verdict"]["ties"]) == ("undecided", 26)
    assert found["verdict"]["change"]["difference"] == 0


def test_the_second_is_judged_against_the_first_and_swapping_flips_all_signs(settings, trained):
    run = str(trained("run.steps=8").path)
    there = compare(("base", run), settings(), Options(metric="letters"))
    back = compare((run, "base"), settings(), Options(metric="letters"))
    first, second = there["verdict"]["change"], back["verdict"]["change"]
    assert first["difference"] == -second["difference"] != 0
    assert (first["low"], first["high"]) == (-second["high"], -second["low"])
    for row, other in zip(there["parts"], back["parts"], strict=True):
        assert row["difference"] == -other["difference"]


def test_draws_do_not_depend_on_how_many_samples_or_problems_are_asked_for(settings, tmp_path):
    for name, options in (("few", Options(samples=1, problems=0)), ("many", Options(samples=3, problems=0))):
        compare(("base", "base"), settings(), options, tmp_path / name)
    few, many = (list(answers.read_lines(tmp_path / name / "answers-a.jsonl"))[1:] for name in ("few", "many"))
    assert [line["answers"][0] for line in few] == [line["answers"][0] for line in many]


def test_greedy_answers_are_drawn_once_and_repeat(settings):
    found = compare(("base", "base"), settings("run.seed=1"), Options(decoding="greedy"))
    again = compare(("base", "base"), settings("run.seed=1"), Options(decoding="greedy"))
    assert found["samples"] == 1
    assert found == again


def test_another_seed_draws_other_answers(settings, trained):
    run = str(trained().path)
    first = compare((run, run), settings(), Options(metric="letters"))
    second = compare((run, run), settings("run.seed=5"), Options(metric="letters"))
    assert [one["a"] for one in first["problems"]] != [one["a"] for one in second["problems"]]


def test_only_one_model_is_in_memory_at_a_time(settings):
    compare(("base", "base"), settings("backend.name=worlds:Alone"), Options(samples=1))


def test_a_killed_comparison_goes_on_where_it_was(settings, tmp_path, monkeypatch):
    import worlds

    monkeypatch.setattr(answers, "PART", 10)
    monkeypatch.setattr(worlds.Killed, "batches", 0)
    whole = compare(("base", "base"), settings(), Options(samples=2), tmp_path / "whole")
    config = settings("backend.name=worlds:Killed")
    with pytest.raises(KeyboardInterrupt):
        compare(("base", "base"), config, Options(samples=2), tmp_path / "killed")
    file = tmp_path / "killed" / "answers-a.jsonl"
    assert len(file.read_text().splitlines()) == 1 + 10
    file.write_bytes(file.read_bytes()[:-20])  # the last line torn, as a kill may leave it
    resumed = compare(("base", "base"), config, Options(samples=2), tmp_path / "killed")
    assert strip(resumed) == strip(whole)
    # The first part again, for its torn line, and each subject's greedy answers.
    assert worlds.Killed.batches == 2 + 3 + 3 + 2 * 3
    again = compare(("base", "base"), config, Options(samples=2), tmp_path / "killed")
    assert strip(again) == strip(whole)
    assert worlds.Killed.batches == 14


def test_kept_answers_of_other_questions_are_not_used(settings, tmp_path):
    compare(("base", "base"), settings(), Options(samples=1), tmp_path)
    before = (tmp_path / "answers-a.jsonl").read_text()
    compare(("base", "base"), settings("sampling.temperature=0.5"), Options(samples=1), tmp_path)
    after = (tmp_path / "answers-a.jsonl").read_text()
    assert before != after
    assert len(after.splitlines()) == 27


@pytest.mark.parametrize(("key", "value"), [("prompt", "zz"), ("difficulty", 7)])
def test_kept_answers_are_not_used_after_a_prompt_or_a_column_of_the_same_problems_changed(
    settings, tmp_path, key, value
):
    config, file = settings("rewards={'worlds:difficulty' = 1.0}"), tmp_path / "heldout.jsonl"
    compare(("base", "base"), config, Options(samples=1), tmp_path / "kept")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**row, key: value}) + "\n" for row in rows))
    compare(("base", "base"), config, Options(samples=1), tmp_path / "kept")
    compare(("base", "base"), config, Options(samples=1), tmp_path / "fresh")
    kept, fresh = ((tmp_path / name / "answers-a.jsonl").read_text() for name in ("kept", "fresh"))
    assert kept == fresh


@pytest.mark.parametrize("path", ["own_reward:score", "own_reward_elsewhere:score"])
def test_kept_answers_are_not_used_after_the_file_of_an_own_reward_changed(settings, tmp_path, monkeypatch, path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_reward_elsewhere.py").write_text("from own_reward import score\n")
    config = settings("rewards={" + f"'{path}' = 1.0" + "}")

    def mean(value):
        (tmp_path / "own_reward.py").write_text(f"def score(problem, rollout):\n    return {value}\n")
        for name in ("own_reward", "own_reward_elsewhere"):
            sys.modules.pop(name, None)  # as in a new process
        importlib.invalidate_caches()
        found = compare(("base", "base"), config, Options(samples=1), tmp_path / "kept")
        return found["verdict"]["change"]["mean_before"]

    assert [mean("1.0"), mean("100.0")] == [1.0, 100.0]
    monkeypatch.setattr(answers, "collect", None)  # nothing is drawn again where nothing changed
    assert mean("100.0") == 100.0


def test_a_task_of_several_turns_is_compared_in_the_same_worlds(settings):
    import worlds

    worlds.SEEDS.clear()
    config = settings("task.name=worlds:EchoTask", "task.args={}", "rewards={share_of_e = 1.0}")
    found = compare(("base", "base"), config, Options(samples=2))
    assert (found["same_answers"], found["left_out"]) == (5, 1)
    assert found["a"] == {**found["a"], "answers": 12, "unscored": 2}
    assert len(worlds.SEEDS) == 24 + 12  # sampled twice, and greedy once beside
    assert len(set(worlds.SEEDS)) == 6  # an environment per problem, whoever tries it


@pytest.mark.parametrize("name", ["first_letter", "reward/first_letter"])  # as rewards are called, or metrics.jsonl
def test_the_breakdown_by_difficulty_adds_up(settings, trained, name):
    found = compare(("base", str(trained().path)), settings(), Options(metric=name))
    assert [row["level"] for row in found["difficulty"]] == ["0", "1", "2"]
    assert [row["n"] for row in found["difficulty"]] == [9, 9, 8]
    total = sum(row["n"] * row["difference"] for row in found["difficulty"]) / 26
    assert total == pytest.approx(found["verdict"]["change"]["difference"])
    assert sum(row["wins"] for row in found["difficulty"]) == found["verdict"]["wins"]


def test_an_unknown_metric_is_named_with_the_known_ones_after_the_first_answers(settings, monkeypatch):
    monkeypatch.setattr(answers, "PART", 10)
    counts = []
    message = "no reward part is called 'f1'; there are: first_letter, letters, reward, tokens, trunc"
    with heard_by(lambda *count: counts.append(count)), pytest.raises(DataError, match=message):
        compare(("base", "base"), settings(), Options(metric="f1"), None)
    assert [count for count in counts if count[0] == "problems answered"] == [("problems answered", 10, 26)]


@pytest.mark.parametrize(("metric", "hint"), [("first_leter", "did you mean 'first_letter'?"), ("xyz", "there are: ")])
def test_a_metric_that_a_subjects_run_does_not_have_is_refused_before_any_answer(settings, trained, metric, hint):
    counts = []
    message = re.escape(f"no reward part is called '{metric}'; {hint}")
    with heard_by(lambda *count: counts.append(count)), pytest.raises(DataError, match=message):
        compare(("base", str(trained().path)), settings(), Options(metric=metric))
    assert [count for count in counts if count[0] == "problems answered"] == []


def test_answers_that_nobody_can_score_are_refused_with_the_reason(settings):
    config = settings("rewards={'toy_rewards:always_fails' = 1.0}")
    with pytest.raises(DataError, match=r"none of 104 answers .* always_fails raised RuntimeError: broken"):
        compare(("base", "base"), config, Options())


@pytest.mark.parametrize("side", [0, 1])
def test_a_run_without_a_step_in_its_log_is_refused_before_any_answer(settings, trained, side):
    run, counts = trained(), []
    run.metrics_file.write_text("")
    names = ["base", "base"]
    names[side] = str(run.path)
    with heard_by(lambda *count: counts.append(count)), pytest.raises(RunError, match="has no metrics yet"):
        compare(tuple(names), settings(), Options())
    assert [count for count in counts if count[0] == "problems answered"] == []


def test_a_task_without_heldout_problems_is_refused(settings, tmp_path):
    (tmp_path / "one.jsonl").write_text('{"prompt": "x"}\n')
    config = settings(f"task.args.heldout={tmp_path / 'one.jsonl'}")
    with pytest.raises(DataError, match="has 1 held-out problem, expected at least 2"):
        compare(("base", "base"), config, Options())


def test_every_further_set_has_a_sentence_rows_and_pass_at_k_of_its_own(settings, trained, tmp_path):
    hard = tmp_path / "hard.jsonl"
    hard.write_text("".join(json.dumps({"prompt": letter * 5}) + "\n" for letter in "abcdefgh"))
    config = settings(f"evaluate.sets.hard={hard}", "evaluate.samples=6", "evaluate.temperature=0.5")
    found = compare(("base", str(trained().path)), config, Options(metric="first_letter"), tmp_path / "out")
    assert found["samples"] == 6
    assert found["sentences"][-1].startswith("on hard: ")
    rows = {row["name"]: row for row in found["parts"]}
    for side in "ab":
        asked, *lines = answers.read_lines(tmp_path / "out" / f"answers-{side}-hard.jsonl")
        assert asked["asked"]["sampling"]["temperature"] == 0.5
        hits = [[answer["parts"]["first_letter"] for answer in line["answers"]] for line in lines]
        assert [len(of_problem) for of_problem in hits] == [6] * 8
        assert rows["hard: first_letter"][side] == pytest.approx(np.mean(hits))
        for k in (1, 2, 4, 6):
            choices = [max(chosen) for of_problem in hits for chosen in combinations(of_problem, k)]
            assert rows[f"hard: pass@{k}"][side] == pytest.approx(np.mean(choices))
    assert rows["pass@6"]["n"] == 26
    assert found["sets"]["hard"]["verdict"]["change"]["n"] == 8
