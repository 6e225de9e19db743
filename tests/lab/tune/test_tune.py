"""The search for a rate: the range test by hand, the order of trials, and a search that is cut and goes on."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from steadyrl.core import config
from steadyrl.core.errors import ConfigError
from steadyrl.lab.launchers.command import choose
from steadyrl.lab.tune.halving import halve, rates_around, rungs, steps_of
from steadyrl.lab.tune.rate_range import Point, Range, centre_of, range_test
from steadyrl.lab.tune.trial import Trial, best_first, make_trial
from steadyrl.lab.tune.tune import Follow, Options, Space, _bounds, _finals, _range, tune
from steadyrl.lab.tune.tune_together import tune_together
from steadyrl.loop.train import Watch
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
    assert [p.record() for p in found.points] == [p.record() for p in other.points]
    small = [p for p in found.points if 1e-4 < p.rate < 1e-2]
    assert all(after.kl / before.kl == pytest.approx(10.0, rel=0.1) for before, after in pairwise(small))
    answered = [p for p in found.points if p.reward is not None]
    assert answered and all(p.kl >= 6e-4 for p in answered)  # a hundredth of the lower end of the band
    assert all(p.kl < 6e-4 for p in found.points if p.reward is None and not p.broken)
    assert found.samples == 16 * (len(answered) + 1)


def trial(score, *critical, state="finished"):
    return Trial({}, 0, score, critical, 8, state, 0.03)


def paused(score, *critical):
    return trial(score, *critical, state="pruned")


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
    from steadyrl.show.page.records import Note
    from steadyrl.show.report.tune import tune_view

    def page(result):
        return " ".join(record.text for record in tune_view(result) if isinstance(record, Note))

    result = {"settings": {"update.learning_rate": 1e-3}, "score": 0.9, "scores": [0.9], "samples": 64, "lead": None}
    told = "was paused after 6 steps, in favour of a rate that ended lower"
    assert told in page({**result, "trials": [], "paused": 6})
    assert told not in page({**result, "trials": [], "paused": None})


def test_the_opening_halves_at_a_quarter_and_at_a_half():
    assert rungs(80) == [20, 40, 80] and rungs(8) == [2, 4, 8] and rungs(2) == [1, 2] and rungs(1) == [1]
    assert steps_of(4, 80) == 4 * 20 + 2 * 20 + 40
    assert steps_of(3, 80) == 3 * 20 + 20 + 40
    assert steps_of(1, 80) == 80


def test_the_opening_begins_half_a_decade_below_the_centre_with_as_many_rates_as_its_steps_hold():
    wide = (1e-4, 10.0)
    assert rates_around(0.1, wide, 80, 160) == pytest.approx([0.1, 0.316, 1.0, 0.0316], rel=1e-2)
    assert rates_around(0.1, wide, 80, 159) == pytest.approx([0.1, 0.316, 1.0], rel=1e-2)
    assert rates_around(0.1, wide, 80, 10) == [0.1]
    for centre in (0.22, 9.1e-5, 0.3):  # the highest is the bound of the search
        assert rates_around(centre, _bounds(Range((), centre, 0, 0.0)), 80, 160)[2] == centre * 10
    assert rates_around(2.0, wide, 80, 1000) == pytest.approx([2.0, 6.32, 0.632], rel=1e-2)  # none above the bounds


def test_the_opening_goes_on_with_the_better_rates_and_after_a_cut(settings, tmp_path):
    asked, said = [], []

    def cut():
        asked.append(1)
        return len(asked) > 12

    def opened(stop):
        where = tmp_path / "halving", tmp_path / "claims"
        return halve(settings(), "update.learning_rate", [0.3, 1.0, 1e-3], *where, said.append, stop)

    assert opened(cut) is None
    first = len(said)
    assert 1 <= first < 6
    found = opened(lambda: False)
    assert len(said) == 5  # three rates, then one of them twice
    assert sorted(trial.steps for trial in found) == [2, 2, 8]
    best = max(found, key=lambda trial: trial.steps)
    assert best.state == "finished" and best.settings["update.learning_rate"] in (0.3, 1.0)
    whole = make_trial(settings(), best.settings, 0, tmp_path / "whole", Watch())
    assert whole.score == best.score  # pausing changes nothing


def test_a_search_that_is_cut_goes_on_and_ends_within_its_budget(settings, tmp_path):
    needs.package("optuna", extra="tune")
    from steadyrl.show.report.tune import write_tune

    said, asked = [], []
    space = Space({"update.epochs": (1, 2, True)})
    options = Options(samples=2000, seeds=2, space=space)

    def cut():
        asked.append(1)
        return len(asked) >= 60

    assert tune(settings(), tmp_path / "tune", options, Follow(said.append, cut)) is None
    trials = sum(line.startswith("trial") for line in said)
    assert trials >= 1
    result = tune(settings(), tmp_path / "tune", options, Follow(said.append))
    assert sum(line.startswith("range test") for line in said) == 1
    numbers = [line.partition(":")[0] for line in said if line.startswith("trial")]
    rates = {line.partition(":")[0] for line in said if line.startswith("rate ")}
    assert len(rates) == 4
    assert len(set(numbers)) == len(numbers) == len(result["trials"]) - len(rates) > trials
    assert result["samples"] <= 2000
    searched = [trial["settings"] for trial in result["trials"] if len(trial["settings"]) == 2]
    assert len(searched) == len(numbers)  # the opening leaves the other settings as they are
    finals = [run["settings"] for runs in result["finals"] for run in runs]
    assert result["settings"] in finals
    assert len(result["scores"]) == 2
    page = write_tune(tmp_path / "tune").read_text()
    assert f"update.learning_rate={result['settings']['update.learning_rate']:.3g}" in page
    assert page.count("\n| ") == len(result["trials"]) + 1


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
        tune(settings(), tmp_path, Options(samples=2000, space=Space({name: bounds})))
    assert list(tmp_path.glob("**/range.json")) == []


def test_a_search_goes_on_with_the_settings_that_it_began_with(settings, tmp_path):
    found = _range(settings(), tmp_path, Space(), Follow())
    assert _range(settings("update.learning_rate=0.5"), tmp_path, Space(), Follow()) == found
    with pytest.raises(ConfigError, match=r"other settings \(run.steps, sampling.temperature\).*another --folder"):
        _range(settings("run.steps=9", "sampling.temperature=0.5"), tmp_path, Space(), Follow())
    with pytest.raises(ConfigError, match=r"other settings \(--also update.epochs\)"):
        _range(settings(), tmp_path, Space({"update.epochs": (1, 4, True)}), Follow())


def test_repeats_with_other_seeds_are_of_the_trials_that_are_the_best_now(settings, tmp_path):
    def repeated(*rates):
        trials = [Trial({"update.learning_rate": rate}, 0, 1.0 - rate, (), 8, "finished") for rate in rates]
        return _finals(settings(), tmp_path, trials, Options(samples=0, seeds=2), Follow())

    repeated(0.3)
    for one, runs in repeated(0.3, 0.1):
        assert [run.settings for run in runs] == [one.settings] * 2


def test_a_budget_of_less_than_one_run_is_refused(settings, tmp_path):
    needs.package("optuna", extra="tune")
    with pytest.raises(ConfigError, match=r"the budget is 50 samples.*Give at least"):
        tune(settings(), tmp_path, Options(samples=50))


def test_two_processes_share_one_search(settings, tmp_path, monkeypatch):
    needs.package("optuna", extra="tune")
    tests = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])]))
    file, folder = tmp_path / "config.toml", tmp_path / "tune"
    file.write_text(FILE.format(prompts=settings().task.args.path))
    words = ["tune", str(file), "--folder", str(folder), "--samples", "2400", "--seeds", "2"]
    said = []
    result = tune_together(choose("processes", {}, (), 2), 2, words, folder, Follow(said.append))
    logs = [log.read_text() for log in sorted((folder / "logs").iterdir())]
    assert sum(log.count("range test") for log in logs) == 1
    numbers = [line.partition(":")[0] for log in logs for line in log.split("\n") if line.startswith("trial ")]
    opening = {line.partition(":")[0] for log in logs for line in log.split("\n") if line.startswith("rate ")}
    assert len({*numbers}) == len(numbers) == len(result["trials"]) - len(opening)
    assert all("trial " in log for log in logs)
    rates = [trial["settings"]["update.learning_rate"] for trial in result["trials"]]
    assert len({*rates}) == len(rates)  # two processes with equal seeds would try each rate twice
    finals = [line for log in logs for line in log.split("\n") if line.startswith("finalist")]
    assert len({line.partition(":")[0] for line in finals}) == len(finals) == len(result["finals"])
    assert result["samples"] <= 2400
    assert all(f"report: {folder / 'tune.md'}" in log for log in logs)


def test_a_trial_whose_process_was_lost_is_given_up_and_its_budget_is_free(settings, tmp_path):
    optuna = needs.package("optuna", extra="tune")
    log = optuna.storages.journal.JournalFileBackend(str(tmp_path / "search.log"))
    storage = optuna.storages.JournalStorage(log)
    study = optuna.create_study(storage=storage, study_name="tune", direction="maximize")
    study.ask()  # a process that is no more had begun it
    result = tune(settings(), tmp_path, Options(samples=700, seeds=1))
    assert study.trials[0].state.name == "FAIL"
    assert len(result["trials"]) == sum(trial.state.name == "COMPLETE" for trial in study.trials) >= 1
