"""Evaluation as people report it: avg@k, pass@k, own sampling, and several held-out sets."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from steadyrl.backends.toy import ToyBackend
from steadyrl.core import config as configs
from steadyrl.core.config import ConfigError, resolve
from steadyrl.core.errors import DataError
from steadyrl.core.rundir import read_lines
from steadyrl.core.stats import pass_at_k, pass_rates
from steadyrl.core.types import Problem, Score
from steadyrl.lab.measure import heldout_mean
from steadyrl.loop.evaluate import evaluate, evaluation_sampling, heldout_metrics, open_sets, solved_from
from steadyrl.loop.launch import run as train
from steadyrl.loop.rewards.combine import Term
from steadyrl.show.report.evidence import read_evidence
from steadyrl.show.report.figures import summarise
from steadyrl.show.report.write import changes


@pytest.mark.parametrize("samples", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_hold_a_solved_answer(samples):
    """Every choice of k of the n answers is tried."""
    for solved in range(samples + 1):
        answers = [i < solved for i in range(samples)]
        for k in range(1, samples + 1):
            choices = [any(chosen) for chosen in combinations(answers, k)]
            assert pass_at_k(samples, solved, k) == pytest.approx(sum(choices) / len(choices), abs=1e-15)


def test_pass_rates_are_of_powers_of_two_and_of_all_samples():
    """Of 5 scored answers 2 reach 0.5: 2/5, 1 - 3/10, 1 - 0; with 6 drawn and one unscored pass@6 is not known."""
    rates = pass_rates([0.5, 0.0, 0.4, 1.0, 0.49], 0.5, 6)
    assert rates == {"pass@1": 0.4, "pass@2": 0.7, "pass@4": 1.0}
    assert pass_rates([1.0], 1.0, 1) == {"pass@1": 1.0}
    assert pass_rates([], 1.0, 4) == {}
    assert pass_rates([0.7 + 0.2 + 0.1, 0.0], 1.0, 2) == {"pass@1": 0.5, "pass@2": 1.0}  # the sum is below 1


@pytest.fixture(autouse=True)
def rewards_of_tests(monkeypatch):
    """Let runs name the rewards of the tests by import path."""
    monkeypatch.syspath_prepend(Path(__file__).parent)


def config(tmp_path, **evaluate):
    files = {"train": range(12), "hard": range(100, 105), "easy": range(200, 203)}
    for name, numbers in files.items():
        rows = [json.dumps({"prompt": f"say {i}", "answer": i}) for i in numbers]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    return resolve(
        {
            "run": {"steps": 2, "folder": str(tmp_path / "runs"), "preflight": "off", "checkpoint_every": 2},
            "backend": {"name": "toy"},
            "task": {"name": "prompts", "args": {"path": str(tmp_path / "train.jsonl")}},
            "rewards": {"toy_rewards:share_of_a": 1.0},
            "sampling": {"max_new_tokens": 4},
            "rollout": {"prompts_per_step": 4, "samples_per_prompt": 2},
            "algorithm": {"name": "grpo"},
            "evaluate": evaluate,
        }
    )


def scored(by_text):
    """A reward that knows the text of an answer; None for what it does not know."""
    return Term("known", 1.0, lambda pairs: [Score(by_text(rollout.text), unscored="odd") for _, rollout in pairs])


def test_numbers_of_several_answers_are_means_over_those_that_were_scored(tmp_path):
    """What evaluate returns is computed again from its own samples."""
    settings = config(tmp_path, samples=6, solved=0.5)
    problems = [Problem(f"p{i}", f"go {i}") for i in range(8)]

    def value(text):
        return None if len(text) % 4 == 3 else (sum(map(ord, text)) % 3) / 2

    records = evaluate(ToyBackend(), problems, [scored(value)], settings, "")
    assert [record["problem"] for record in records] == [p.id for p in problems]
    for record in records:
        samples, sampled = record["answers"]["sampled"]["samples"], record["answers"]["sampled"]
        values = [value(sample["text"]) for sample in samples]
        known = [v for v in values if v is not None]
        assert [sample["reward"] for sample in samples] == values and len(values) == 6
        assert sampled["text"] == samples[0]["text"]
        assert sampled["reward"] == sampled["metric"] == (pytest.approx(np.mean(known)) if known else None)
        for k in (1, 2, 4, 6):
            choices = [max(chosen) >= 0.5 for chosen in combinations(known, k)]
            assert sampled["parts"].get(f"pass@{k}") == (pytest.approx(np.mean(choices)) if choices else None)
        assert "samples" not in record["answers"]["greedy"]
    assert len({record["answers"]["sampled"]["text"] for record in records}) > 1


def test_the_first_of_several_answers_is_the_one_of_a_single_answer(tmp_path):
    problems, term = [Problem(f"p{i}", "go") for i in range(3)], scored(lambda text: 1.0)
    single, several = (evaluate(ToyBackend(), problems, [term], config(tmp_path, samples=n), "") for n in (1, 3))
    for one, other in zip(single, several, strict=True):
        assert one["answers"]["sampled"] == other["answers"]["sampled"]["samples"][0]
        assert one["answers"]["greedy"] == other["answers"]["greedy"]


def test_evaluations_sample_as_training_but_for_their_own_temperature_and_top_p(tmp_path):
    plain = evaluation_sampling(config(tmp_path))
    own = evaluation_sampling(config(tmp_path, temperature=0.6, top_p=0.95))
    assert (plain.temperature, plain.top_p, plain.max_new_tokens) == (1.0, 1.0, 4)
    assert (own.temperature, own.top_p, own.max_new_tokens) == (0.6, 0.95, 4)


def test_solved_is_the_maximum_unless_a_value_is_set(tmp_path):
    settings = config(tmp_path)
    weights = {"length": 0.5, "boolean_format": 1.0, "toy_rewards:share_of_a": -2.0}
    weighted = resolve({**configs.dump(settings), "rewards": weights})
    assert solved_from(settings, "correct") == 1.0
    assert solved_from(weighted, "") == 1.5
    assert solved_from(config(tmp_path, solved=0.8), "correct") == 0.8


def test_every_set_is_in_files_metrics_report_and_measures(tmp_path):
    settings = config(
        tmp_path, samples=3, every=1, sets={name: str(tmp_path / f"{name}.jsonl") for name in ("hard", "easy")}
    )
    run = train(settings)
    assert run.heldout_sets() == ["easy", "hard"]
    for name, size in (("hard", 5), ("easy", 3)):
        for when in ("before", "000001", "000002", "after"):
            lines = list(read_lines(run.evaluation_file(when, name)))
            assert len(lines) == size and len(lines[0]["answers"]["sampled"]["samples"]) == 3
        after = list(read_lines(run.evaluation_file("after", name)))
        mean = np.mean([line["answers"]["sampled"]["reward"] for line in after])
        assert run.metrics()[-1][f"heldout/{name}/reward"] == pytest.approx(mean)
        assert heldout_mean(run, "after", f"{name}/reward") == pytest.approx(mean)
        assert heldout_mean(run, "after", f"{name}/pass@2") == run.metrics()[-1][f"heldout/{name}/pass@2"]
    summary = summarise(read_evidence(run.path))
    assert {name: figures["n"] for name, figures in summary["sets"].items()} == {"easy": 3, "hard": 5}
    assert summary["sets"]["hard"]["after"] == pytest.approx(run.metrics()[-1]["heldout/hard/reward"])
    assert summary["after"] == pytest.approx(run.metrics()[-1]["heldout/reward"])
    rows = {(row["name"], row["decoding"]) for row in changes(summary, {})["main"]}
    assert {("reward", "sampled, avg@3"), ("hard: reward", "greedy"), ("easy: pass@3", "sampled")} <= rows
    assert set(run.info()["data"]) == {"train", "heldout", "heldout/hard", "heldout/easy"}


def test_a_run_that_goes_on_keeps_the_evaluations_of_every_set(tmp_path):
    run = train(config(tmp_path, sets={"hard": str(tmp_path / "hard.jsonl")}))
    before = run.evaluation_file("before", "hard").read_text()
    after = run.evaluation_file("after", "hard").read_text()
    again = train(overrides=["run.steps=4"], resume=run)
    assert again.evaluation_file("before", "hard").read_text() == before
    assert again.evaluation_file("000002", "hard").read_text() == after
    (tmp_path / "hard.jsonl").write_text('{"prompt": "another"}\n')
    with pytest.raises(
        Exception, match=r"the data of .* changed since it began .*heldout/hard: 5 problems then, 1 now"
    ):
        train(overrides=["run.steps=6"], resume=run)


def test_pass_at_k_is_of_sampled_answers_whatever_is_deployed(tmp_path):
    settings = config(tmp_path, samples=2)
    records = evaluate(ToyBackend(), [Problem("p", "go")], [scored(lambda text: 1.0)], settings, "")
    numbers = heldout_metrics(records, "greedy", "hard")
    assert numbers == {f"heldout/hard/{name}": 1.0 for name in ("pass@1", "pass@2", "known", "reward")}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"hard": "no.jsonl"}, r"evaluate.sets.hard = 'no.jsonl': .*no.jsonl"),
        ({"hard": "test"}, r"evaluate.sets.hard = 'test': there is no file or folder 'test'"),
    ],
)
def test_a_set_that_cannot_be_read_is_named(tmp_path, sets, message):
    with pytest.raises(DataError, match=message):
        open_sets(config(tmp_path, sets=sets))


@pytest.mark.parametrize("sets", [{"a/b": "x"}, {"sampled": "x"}, {"": "x"}, {"hard": ""}])
def test_names_of_sets_are_names_of_folders(tmp_path, sets):
    with pytest.raises(ConfigError, match=r"evaluate\.sets"):
        config(tmp_path, sets=sets)


def test_a_task_that_reads_no_other_file_has_no_further_sets(tmp_path):
    data = {**configs.dump(config(tmp_path, sets={"hard": "x"})), "task": {"name": "browse"}}
    with pytest.raises(
        ConfigError, match=r"evaluate\.sets\.hard = 'x': the task 'browse' has no setting task\.args\.heldout"
    ):
        open_sets(resolve(data))


def test_a_set_may_be_a_split_of_the_folder_that_trains(tmp_path):
    settings = config(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    for split, count in (("train", 4), ("validation", 2), ("test", 3)):
        rows = [json.dumps({"prompt": f"{split} {i}"}) for i in range(count)]
        (folder / f"{split}.jsonl").write_text("\n".join(rows))
    data = {**configs.dump(settings), "task": {"name": "prompts", "args": {"path": str(folder)}}}
    (own,) = open_sets(resolve({**data, "evaluate": {"sets": {"final": "test"}}}))
    assert [problem.prompt for problem in own.problems] == ["test 0", "test 1", "test 2"]
