"""The search for a rate: the range test by hand, the order of trials, and a search that is cut and goes on."""

import json
import math
import os
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from steadyrl.cli.tune import tune_command
from steadyrl.core import config
from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.rundir import read_lines
from steadyrl.lab.jobs import Follow, find_run
from steadyrl.lab.launchers.command import Ended, choose
from steadyrl.lab.tune import tune as tuning
from steadyrl.lab.tune.rate_range import RATE, Point, centre_of, range_test
from steadyrl.lab.tune.trial import Candidate, Search, Trial, best_first, make_trial, score_of
from steadyrl.lab.tune.tune import (
    Options,
    _finals,
    _range,
    _rounds,
    rates_around,
    rungs,
    steps_of,
    successive_halving,
    suggested,
    tune,
    tune_in_processes,
)
from tests import needs

FILE = """
run = {{steps = 8, doctor_every = 0, preflight = "off"}}
backend = {{name = "toy"}}
task = {{name = "prompts", args = {{path = "{prompts}"}}}}
rewards = {{"toy_rewards:share_of_a" = 1.0}}
sampling = {{max_new_tokens = 4}}
rollout = {{prompts_per_step = 4, samples_per_prompt = 4}}
update = {{warmup_steps = 0, kl_old_limit = 10.0}}
"""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": letter * 3}) + "\n" for letter in "abcdefghijklmnopqrst"))

    def resolve(*overrides):
        data = {
            "run": {"steps": 8, "doctor_every": 0, "preflight": "off", "folder": str(tmp_path / "runs")},
            "backend": {"name": "toy"},
            "task": {"name": "prompts", "args": {"path": str(prompts)}},
            "rewards": {"toy_rewards:share_of_a": 1.0},
            "sampling": {"max_new_tokens": 4},
            "rollout": {"prompts_per_step": 4, "samples_per_prompt": 4},
            "update": {"learning_rate": 1e-5, "warmup_steps": 0, "kl_old_limit": 10.0},
        }
        return config.resolve(data, overrides)

    return resolve


def point(rate, kl, broken=False):
    return Point(rate, kl, 1.0, 0.0, broken)


def test_the_centre_is_where_the_kl_of_a_step_is_in_the_middle_of_its_band(settings):
    # the band 0.01 to 1 has its middle at 0.1; KL grows with the square of the rate
    band = settings("autopilot.kl_band=[0.01, 1.0]")
    points = [point(rate, rate**2) for rate in (0.01, 0.1, 1.0)]
    assert centre_of(points, band) == pytest.approx(0.1**0.5)
    assert centre_of([point(0.5, 0.3), point(1.0, 0.9)], band) == pytest.approx(0.5)
    assert centre_of([point(0.001, 1e-6), point(0.01, 1e-4), point(0.1, None, True)], band) == pytest.approx(0.01)
    assert centre_of([point(0.001, None, True)], band) == pytest.approx(0.001)


def test_the_kl_of_a_step_grows_with_the_square_of_the_rate_and_the_rate_of_the_config_does_not_matter(settings):
    found, other = range_test(settings()), range_test(settings("update.learning_rate=0.01"))
    assert found.points == other.points
    small = [p for p in found.points if 1e-4 < p.rate < 1e-2]
    assert all(after.kl / before.kl == pytest.approx(10.0, rel=0.1) for before, after in pairwise(small))
    answered = [p for p in found.points if p.reward is not None]
    assert answered and all(p.kl >= 6e-4 for p in answered)  # a hundredth of the lower end of the band
    assert all(p.kl < 6e-4 for p in found.points if p.reward is None and not p.broken)
    assert found.samples == 16 * (len(answered) + 1)


def trial(score, *critical, state="finished"):
    return Trial({}, 0, score, critical, 8, state, 0.03)


def paused(score, *critical):
    return trial(score, *critical, state="paused")


def scores(*trials):
    return [one.score for one in best_first(trials)]


def test_trials_without_a_critical_finding_come_first():
    assert scores(trial(0.9, "kl_runaway"), trial(0.5), trial(None), trial(0.7)) == [0.7, 0.5, 0.9]


def test_a_paused_trial_comes_first_only_where_the_whole_one_collapsed():
    assert scores(trial(0.5), paused(0.9), paused(0.8)) == [0.9, 0.8, 0.5]
    assert scores(trial(0.5), paused(0.56), paused(0.4)) == [0.5]  # 0.06 are less than two errors of the difference
    assert scores(trial(0.5), paused(0.9, "entropy_collapse")) == [0.5]
    assert scores(trial(0.5, "kl_runaway"), paused(0.4)) == [0.5]
    assert scores(trial(0.9, state="failed"), paused(0.4)) == [0.4]


def test_the_page_says_that_the_run_of_the_chosen_rate_was_paused():
    from steadyrl.show.page.records import Code, Note
    from steadyrl.show.report.tune import tune_view

    def page(result):
        return " ".join(record.text for record in tune_view(result) if isinstance(record, Note))

    result = {"settings": {"update.learning_rate": 1e-3}, "score": 0.9, "scores": [0.9], "samples": 64, "lead": None}
    result |= {"critical": ["kl_runaway"], "words": ["own dir/sums.toml", "run.steps=9"]}
    assert "Critical findings remain: kl_runaway." in page({**result, "trials": [], "paused": None})
    told = "was paused after 6 steps, in favour of a rate that ended lower"
    assert told in page({**result, "trials": [], "paused": 6})
    assert told not in page({**result, "trials": [], "paused": None})
    (command,) = (r.text for r in tune_view({**result, "trials": [], "paused": None}) if isinstance(r, Code))
    assert command == "steadyrl train 'own dir/sums.toml' run.steps=9 update.learning_rate=0.001"


def test_a_round_halves_at_a_quarter_and_at_a_half():
    assert rungs(80) == [20, 40, 80] and rungs(8) == [2, 4, 8] and rungs(2) == [1, 2] and rungs(1) == [1]
    assert steps_of(4, 80) == 4 * 20 + 2 * 20 + 40
    assert steps_of(3, 80) == 3 * 20 + 20 + 40
    assert steps_of(2, 80) == 2 * 20 + 20 + 40
    assert steps_of(1, 80) == 80


def test_the_first_round_begins_half_a_decade_below_the_centre():
    wide = (1e-4, 10.0)
    assert rates_around(0.1, wide) == pytest.approx([0.1, 0.316, 1.0, 0.0316], rel=1e-2)
    for centre in (0.22, 9.1e-5, 0.3):  # the highest is the bound of the search
        assert rates_around(centre, (centre / 30, centre * 10))[2] == centre * 10
    assert rates_around(2.0, wide) == pytest.approx([2.0, 6.32, 0.632], rel=1e-2)  # none above the bounds


@pytest.mark.parametrize(
    ("most", "widths"),
    # of 8 steps a round of 4 takes 16, of 3 or 2 it takes 12 or 10, and a single candidate 8
    [(8, [1]), (9, [1]), (15, [3]), (16, [4]), (25, [4, 1]), (26, [4, 2]), (28, [4, 3])],
)
def test_a_round_has_as_many_candidates_as_the_remaining_budget_holds(settings, tmp_path, monkeypatch, most, widths):
    steps, rounds = {1: (8,), 2: (8, 2), 3: (8, 2, 2), 4: (8, 4, 2, 2)}, []

    def made(search, name, candidates):
        rounds.append((name, len(candidates)))
        return [Trial(dict(c), 0, 1.0, (), n, "") for c, n in zip(candidates, steps[len(candidates)], strict=True)]

    monkeypatch.setattr(tuning, "successive_halving", made)
    monkeypatch.setattr(tuning, "suggested", lambda trials, space, seed: [{RATE: 0.5}] * 4)
    _rounds(Search(settings(), tmp_path), 0.1, {}, most)
    assert rounds == [(f"round {number}", width) for number, width in enumerate(widths, 1)]


def test_a_search_ends_where_every_run_fails_at_its_first_step(settings, tmp_path, monkeypatch):
    def failed(search, name, candidates):
        return [Trial(dict(c), 0, None, (), 0, "failed") for c in candidates]

    monkeypatch.setattr(tuning, "successive_halving", failed)
    monkeypatch.setattr(tuning, "suggested", lambda trials, space, seed: [{RATE: 0.5}] * 4)
    # 40 steps hold five runs of 8, and each failed one counts as a whole run.
    assert len(_rounds(Search(settings(), tmp_path), 0.1, {}, 40)) == 5


def test_suggestions_follow_from_the_trials_alone_and_are_nearer_the_best_than_chance():
    needs.package("optuna", extra="tune")
    space = {RATE: (1e-5, 1.0, False), "update.epochs": (1, 4, True)}

    def distances(best):
        """Return how many decades from a peak ten rounds of suggestions are, after nine trials over five decades."""
        places = np.linspace(0, 5, 9)
        trials = [Trial({RATE: 10.0**-at}, 0, -abs(at - best), (), 8, "finished") for at in places]
        several = [one for seed in range(10) for one in suggested(trials, space, seed)]
        assert several[:4] == suggested(trials, space, 0)
        assert all(one["update.epochs"] in (1, 2, 3, 4) for one in several)
        assert len({one[RATE] for one in several}) == 40
        return np.array([abs(math.log10(one[RATE]) + best) for one in several])

    # By chance they would be 1.25 decades away from a peak in the middle, and 1.7 from one a decade below the top.
    assert distances(2.5).mean() < 0.9 and distances(1.0).mean() < 1.2


def test_a_round_goes_on_with_the_better_candidates_and_after_a_cut(settings, tmp_path):
    asked, said = [], []
    rates = [{RATE: rate} for rate in (0.3, 1.0, 1e-3)]

    def cut():
        asked.append(1)
        return len(asked) > 12

    def made(stop):
        search = Search(settings(), tmp_path / "tune", Follow(note=said.append, stop=stop))
        return successive_halving(search, "round 1", rates)

    assert made(cut) is None
    first = len(said)
    assert 1 <= first < 6
    trials = made(lambda: False)
    assert len(said) == 5  # three rates, then one of them twice
    assert said[0].startswith("round 1, learning_rate 0.3: score ")
    assert sorted(trial.steps for trial in trials) == [2, 2, 8]
    best = max(trials, key=lambda trial: trial.steps)
    assert best.state == "finished" and best.settings[RATE] in (0.3, 1.0)
    whole = make_trial(Search(settings(), tmp_path / "whole"), Candidate("whole", best.settings, 0, 8))
    assert whole.score == best.score  # pausing changes nothing


def test_a_config_whose_runs_end_without_patience_can_be_searched(settings, tmp_path):
    search = Search(settings("evaluate.every=2", "evaluate.patience=3"), tmp_path)
    assert search.job(Candidate("", {RATE: 1.0}, 0, 8)).config.evaluate.patience == 0


def test_a_paused_trial_is_scored_by_as_many_answers_as_a_whole_one(settings, tmp_path):
    for until, state in ((2, "paused"), (8, "finished")):
        search, candidate = Search(settings(), tmp_path), Candidate("", {RATE: 1.0}, 0, until)
        trial, run = make_trial(search, candidate), find_run(tmp_path, search.job(candidate))
        assert (trial.score, trial.error) == score_of(settings(), run) and trial.error > 0
        assert (trial.state, trial.steps) == (state, until)


@pytest.mark.pictures
def test_a_search_that_is_cut_goes_on_and_ends_within_its_budget(settings, tmp_path):
    needs.package("optuna", extra="tune")
    from steadyrl.show.report.tune import write_tune

    said, asked = [], []
    space = {"update.epochs": (1, 2, True)}
    options = Options(samples=1300, seeds=2, space=space)

    def cut():
        asked.extend(said[-1:] if said and said[-1].startswith("round 2") else ())
        return len(asked) > 4  # in the second round

    assert tune(settings(), tmp_path / "tune", options, Follow(note=said.append, stop=cut)) is None
    assert 1 <= sum(line.startswith("round 2") for line in said) < 7
    result = tune(settings(), tmp_path / "tune", options, Follow(note=said.append))
    assert sum(line.startswith("range test") for line in said) == 1
    rounds = [line for line in said if line.startswith("round")]
    assert len(set(rounds)) == len(rounds)  # what was made before the cut is not made again
    assert len({line.partition(":")[0] for line in rounds}) == len(result["trials"])
    assert result["samples"] <= 1300
    searched = [trial["settings"] for trial in result["trials"] if len(trial["settings"]) == 2]
    assert len(searched) == len(result["trials"]) - 4  # the first round leaves the other settings as they are
    finals = [run["settings"] for runs in result["finals"] for run in runs]
    assert result["settings"] in finals
    assert len(result["scores"]) == 2
    attempts = [{line["attempt"] for line in read_lines(f)} for f in (tmp_path / "tune").glob("runs/*/*/metrics.jsonl")]
    assert attempts.count({0, 1}) >= 1  # the trial that was cut went on from its checkpoint
    page = write_tune(tmp_path / "tune").read_text()
    assert f"update.learning_rate={result['settings']['update.learning_rate']:.3g}" in page
    assert page.count("\n| ") == len(result["trials"]) + 1


def test_a_test_in_which_no_step_moves_the_policy_ends_the_search(settings):
    alike = settings("algorithm.name=grpo", 'rewards={"toy_rewards:nothing"=1.0}')
    with pytest.raises(
        ConfigError, match=r"no rate up to 1 moved the policy.* the 16 answers of the test have nothing"
    ):
        range_test(alike)


@pytest.mark.pictures
def test_a_picture_is_drawn_where_the_first_step_broke_the_policy():
    from steadyrl.show.report.tune import draw

    point = {"rate": 1e-7, "kl": None, "entropy": None}
    svg = draw({"trials": [], "settings": {RATE: 1e-6}, "range": {"points": [point], "centre": 1e-7}})
    assert "Range test" in svg


@pytest.mark.pictures
def test_the_picture_of_a_search_has_its_scores_and_its_range_test():
    from steadyrl.show.report.tune import draw

    trials = [
        {"settings": {RATE: rate}, "state": state, "score": score, "critical": critical}
        for rate, state, score, critical in (
            (1e-4, "finished", 0.5, []), (1e-3, "paused", 0.2, []), (1e-2, "finished", 0.1, ["kl_runaway"]),
            (1e-1, "failed", None, ["non_finite"]),
        )
    ]  # fmt: skip
    points = [{"rate": rate, "kl": rate**2, "entropy": 1.0 - rate} for rate in (1e-4, 1e-3, 1e-2)]
    svg = draw({"trials": trials, "settings": {RATE: 1e-4}, "range": {"points": points, "centre": 1e-3}})
    words = re.findall(r">([^<>\n]+)</text>", svg)
    assert {"Held-out score of the trials", "finished", "paused", "critical finding", "chosen"} <= set(words)
    assert {"Range test", "KL of a step", "centre", "entropy, share of that before"} <= set(words)


@pytest.mark.parametrize(
    ("name", "bounds", "message"),
    [
        ("update.epohcs", (1, 4, True), "did you mean 'epochs'"),
        ("sampling.temperature", (0.1, 100.0, False), "sampling.temperature: got 100.0"),
        ("update.learning_rate", (1e-5, 1e-2, False), "the search itself sets it"),
        ("run.seed", (1, 4, True), "the search itself sets it"),
    ],
)
def test_a_setting_that_cannot_be_searched_is_refused_before_the_range_test(settings, tmp_path, name, bounds, message):
    with pytest.raises(ConfigError, match=message):
        tune(settings(), tmp_path, Options(samples=2000, space={name: bounds}))
    assert list(tmp_path.glob("**/range.json")) == []


def test_no_process_is_started_for_a_setting_that_cannot_be_searched(settings, tmp_path):
    file, folder = tmp_path / "config.toml", tmp_path / "tune"
    file.write_text(FILE.format(prompts=settings().task.args.path))
    with pytest.raises(ConfigError, match="the search itself sets it"):
        tune_command(file, also=["run.seed=1:4"], folder=folder, processes=2)
    assert not folder.exists()


def test_a_search_goes_on_with_the_settings_that_it_began_with(settings, tmp_path):
    found = _range(Search(settings(), tmp_path), {})
    assert _range(Search(settings("update.learning_rate=0.5"), tmp_path), {}) == found
    with pytest.raises(ConfigError, match=r"other settings \(run.steps, sampling.temperature\).*another --folder"):
        _range(Search(settings("run.steps=9", "sampling.temperature=0.5"), tmp_path), {})
    with pytest.raises(ConfigError, match=r"other settings \(--also update.epochs\)"):
        _range(Search(settings(), tmp_path), {"update.epochs": (1, 4, True)})


def test_a_search_does_not_go_on_with_other_data(settings, tmp_path):
    first = _range(Search(settings(), tmp_path), {})
    kept = (tmp_path / "prompts.jsonl").read_text()
    (tmp_path / "prompts.jsonl").write_text(kept.replace("ccc", "ccd"))
    with pytest.raises(ConfigError, match=r"other settings \(the data\); go on with those that it began with"):
        _range(Search(settings(), tmp_path), {})
    saved = json.loads((tmp_path / "range.json").read_text())
    del saved["settings"]["the data"]  # as an earlier version wrote it
    (tmp_path / "range.json").write_text(json.dumps(saved))
    assert _range(Search(settings(), tmp_path), {}) == first


def test_a_search_in_the_folder_of_a_run_is_refused(settings, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RunError, match="is a run directory; give another --folder"):
        _range(Search(settings(), tmp_path), {})
    assert not (tmp_path / "range.json").exists()


def test_repeats_with_other_seeds_are_of_the_trials_that_are_the_best_now(settings, tmp_path):
    def repeated(*rates):
        trials = [Trial({"update.learning_rate": rate}, 0, 1.0 - rate, (), 8, "finished") for rate in rates]
        return _finals(Search(settings(), tmp_path), trials, 2)

    repeated(0.3)
    for one, runs in repeated(0.3, 0.1):
        assert [run.settings for run in runs] == [one.settings] * 2


def test_a_budget_of_less_than_one_run_is_refused(settings, tmp_path):
    needs.package("optuna", extra="tune")
    with pytest.raises(ConfigError, match=r"the budget is 50 samples.*Give at least"):
        tune(settings(), tmp_path, Options(samples=50))


@pytest.mark.usefixtures("light_server")
def test_two_processes_share_one_search(settings, tmp_path, monkeypatch):
    needs.package("optuna", extra="tune")
    tests = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])]))
    file, folder = tmp_path / "config.toml", tmp_path / "tune"
    file.write_text(FILE.format(prompts=settings().task.args.path))
    words = ["tune", str(file), "--folder", str(folder), "--samples", "1100", "--seeds", "2"]
    said = []
    result = tune_in_processes(choose("processes", {}, (), 2), 2, words, folder, Follow(note=said.append))
    logs = [log.read_text() for log in sorted((folder / "logs").iterdir())]
    assert sum(log.count("range test") for log in logs) == 1
    rounds = [line for log in logs for line in log.split("\n") if line.startswith("round ")]
    assert len({*rounds}) == len(rounds)  # no trial is made by both
    assert len({line.partition(":")[0] for line in rounds}) == len(result["trials"])
    assert all("round " in log for log in logs)
    rates = [trial["settings"]["update.learning_rate"] for trial in result["trials"]]
    assert len({*rates}) == len(rates)
    finals = [line for log in logs for line in log.split("\n") if line.startswith("finalist")]
    assert len({line.partition(":")[0] for line in finals}) == len(finals) == len(result["finals"])
    assert result["samples"] <= 1100
    assert all(f"report: {folder / 'tune.md'}" in log for log in logs)


class TimeLimit:
    """A launcher that ends its command from outside; the last but one time before there is another checkpoint."""

    def __init__(self, folder):
        self.folder, self.starts = folder, 0

    def start(self, commands):
        (self.name,) = (command.name for command in commands)
        self.starts += 1
        if self.starts < 3:
            done = self.folder / "runs" / "rate" / "run" / "checkpoints" / f"{self.starts:06d}" / "DONE"
            done.parent.mkdir(parents=True)
            done.touch()

    def ended(self):
        return [Ended(self.name, 130 if self.starts == 1 else None, "TIMEOUT")]

    def stop(self):
        pass


def test_a_process_that_a_time_limit_ends_is_started_again_if_there_is_a_new_checkpoint(tmp_path):
    said, launcher = [], TimeLimit(tmp_path)
    with pytest.raises(RunError, match="no process came to the end of the search: TIMEOUT"):
        tune_in_processes(launcher, 1, ["tune"], tmp_path, Follow(event=said.append))
    assert launcher.starts == 3
    cut = ("tune-0", "cut", "cut (TIMEOUT); it goes on from its last checkpoint")
    assert said == [cut, cut, ("tune-0", "failed", "TIMEOUT")]
