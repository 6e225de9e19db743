"""A forecast follows a saturating curve, is widened by other runs, and is silent where it has no right to speak."""

import math

import numpy as np
import pytest
from typer.testing import CliRunner

from steadyrl.cli.forecast import Outlook
from steadyrl.cli.main import app
from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.rundir import RunDir, append_line, write_json
from steadyrl.lab.forecast import (
    Forecast,
    coverage,
    finished_beside,
    fit_saturating,
    forecast_run,
    needed_width,
    reachable,
    require_values,
    widened,
    widths_on,
)


def test_a_curve_without_noise_is_carried_on_exactly():
    steps = np.arange(0.0, 50.0, 5.0)
    values = 1.0 + 2.0 * (1 - np.exp(-steps / 45.0))
    found = fit_saturating(steps, values, 200.0)
    assert found.end == pytest.approx(1.0 + 2.0 * (1 - math.exp(-200 / 45)), abs=0.1)  # between two times of the grid
    assert found.now == pytest.approx(values[-1], abs=0.05)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.6, 0.9, "going on is worth it"), (0.1, 0.4, "going on will not help"), (0.4, 0.7, "cannot be told")],
)
def test_going_on_is_worth_it_where_the_whole_interval_is_above_the_present(low, high, word):
    assert word in Forecast(end=(low + high) / 2, low=low, high=high, now=0.5).worth


def test_the_interval_is_widened_to_the_share_of_other_runs_that_it_has_to_hold():
    # of n = 9 runs the ceil(10 * 0.8) = 8th smallest
    assert widened([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 5.0, 9.0]) == 5.0
    assert widened([1.0, 1.0]) == math.inf
    # each run against the other eight, of which the 8th smallest is their largest: only the largest is not held
    assert coverage([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 5.0, 9.0]) == 8


@pytest.mark.weekly
def test_intervals_hold_their_nominal_share_of_simulated_ends():
    generator, steps, widths = np.random.default_rng(0), np.arange(1.0, 21.0), []
    for _ in range(100):
        time = generator.uniform(2, 30)
        values = generator.normal() + generator.normal(1, 0.3) * (1 - np.exp(-steps / time))
        widths.append(needed_width(steps, values + generator.normal(0, 0.05, 20)))
    assert 70 <= coverage(widths) <= 90
    assert 0.7 <= np.mean([width <= 1 for width in widths]) <= 0.9  # the bootstrap alone, where the form is right


def made(folder, name, values, steps=40, status="finished"):
    run = RunDir(folder / name)
    info = {"status": status, "task": "t", "algorithm": "ppo", "metric": "m"}
    write_json(run.info_file, info)
    write_json(run.resolved_file, {"run": {"steps": steps}})
    for i, value in enumerate(values):
        append_line(run.metrics_file, {"step": 2 * i + 1, "attempt": 0, "heldout/m": value})
    return run


def told_of(run, others):
    return forecast_run(run, widths_on(others, run, "heldout/m"), "heldout/m")


def rising(seed, count):
    generator = np.random.default_rng(seed)
    return list(1 - np.exp(-np.arange(count) / 6.0) + generator.normal(0, 0.02, count))


def test_it_speaks_where_its_intervals_have_held_and_is_silent_elsewhere(tmp_path):
    run = made(tmp_path, "now", rising(99, 10), status="running")
    why = told_of(run, []).reason
    assert "on 8 finished runs of this task and algorithm, each with at least 10 values of heldout/m. Of 0 such" in why
    for seed in range(12):
        made(tmp_path, f"old-{seed}", rising(seed, 20))
    made(tmp_path, "unfinished", rising(50, 20), status="interrupted")
    others = finished_beside(run, pytest.fail)
    assert len(others) == 12
    told = told_of(run, others)
    assert told.tried == 12 and told.covered >= 9
    assert told.forecast.low < 0.96 < told.forecast.high
    short = told_of(made(tmp_path / "b", "short", [0.1, 0.2]), others)
    assert short.forecast is None and "heldout/m has 2 of the 5 values that a forecast needs" in short.reason


def test_the_runs_of_a_study_are_beside_each_other(tmp_path):
    """Each has a folder of its own; so it is in a search."""
    runs = tmp_path / "study" / "runs"
    for seed in range(3):
        made(runs / f"low-s{seed}", "20261128-x", rising(seed, 20))
    made(tmp_path / "study" / "elsewhere" / "high", "20261128-x", rising(5, 20))
    names = [run.path.parent.name for run in finished_beside(RunDir(runs / "low-s1" / "20261128-x"), pytest.fail)]
    assert names == ["low-s0", "low-s2"]


def test_finished_runs_that_are_too_short_are_counted(tmp_path):
    run = made(tmp_path, "now", rising(99, 10), status="running")
    others = [made(tmp_path, f"short-{seed}", rising(seed, 9)) for seed in range(8)]
    others.append(made(tmp_path, "long", rising(8, 10)))
    assert "values of heldout/m. Of 9 such runs 1 have so many (--history names more)" in told_of(run, others).reason


def test_a_forecast_stays_within_what_a_single_answer_has_reached(tmp_path):
    run = made(tmp_path, "now", [], steps=400, status="running")
    for step in range(30):  # a mean that rises by a tenth a step, of answers that never had more than 3.25
        rewards = {"reward/mean": 0.1 * step, "reward/min": -0.5, "reward/max": min(3.25, 0.1 * step + 2.0)}
        append_line(run.metrics_file, {"step": step, "attempt": 0, **rewards})
    forecast = forecast_run(run, [1.0] * 9, "reward/mean").forecast
    assert forecast.end == 3.25 and forecast.high == 3.25 and forecast.low <= 3.25
    assert reachable(run.metrics(), "reward/mean") == (-0.5, 3.25)
    assert reachable(run.metrics(), "reward/unscored") == (0.0, 1.0)
    assert reachable(run.metrics(), "kl_ref_k1") == (-math.inf, math.inf)


def test_runs_that_never_followed_such_a_curve_make_it_silent(tmp_path):
    for seed in range(10):  # each jumps after its middle, by another amount
        made(tmp_path, f"old-{seed}", [*rising(seed, 10), *(3.0**seed + x for x in rising(seed, 10))])
    told = told_of(made(tmp_path / "b", "now", rising(1, 10)), finished_beside(RunDir(tmp_path / "none"), pytest.fail))
    assert told.forecast is not None or "only" in told.reason
    assert told.forecast is None or told.forecast.high - told.forecast.low > 100


def test_the_command_says_what_it_was_tried_on(tmp_path):
    for seed in range(9):
        made(tmp_path, f"old-{seed}", rising(seed, 20))
    made(tmp_path, "now", rising(99, 10), status="running")
    result = CliRunner().invoke(app, ["forecast", str(tmp_path / "now")])
    assert result.exit_code == 0
    assert "of 9 finished runs" in result.output
    assert "going on is worth it" in result.output
    other = CliRunner().invoke(app, ["forecast", str(tmp_path / "now"), "--metric", "reward/mean"])
    assert "no forecast of reward/mean: reward/mean has 0 of the 5 values" in other.output


@pytest.mark.parametrize("status", ["running", "finished"])
@pytest.mark.parametrize("metric", ["nope", "reward", "heldout", "nope/x"])
def test_a_metric_that_the_run_does_not_have_is_refused_with_the_names_like_it(tmp_path, status, metric):
    run = made(tmp_path, "now", rising(1, 10), status=status)
    append_line(run.metrics_file, {"step": 20, "attempt": 0, "heldout/m": 1.0, "reward/mean": 0.5})
    result = CliRunner().invoke(app, ["forecast", str(run.path), "--metric", metric])
    assert isinstance(result.exception, ConfigError) and not result.stdout
    assert str(result.exception).startswith(f"'{run.path}' has no value of a metric '{metric}'; expected one of its ")
    assert "reward/mean" in str(result.exception) and "\n" not in str(result.exception)


def test_a_metric_whose_values_may_still_come_is_waited_for(tmp_path):
    began = made(tmp_path, "began", [], status="running")
    running = made(tmp_path, "running", rising(1, 3), status="running")
    ended = made(tmp_path, "ended", rising(1, 10))
    for run, metric in ((began, "reward"), (running, "entropy"), (running, "heldout/other"), (running, "reward/mean")):
        require_values(run, metric)
    require_values(ended, "heldout/m")
    with pytest.raises(ConfigError, match="no value of a metric 'entropy'"):
        require_values(ended, "entropy")  # none will come


def test_a_run_shows_its_forecast_after_each_evaluation(tmp_path):
    for seed in range(9):
        made(tmp_path, f"old-{seed}", rising(seed, 20))
    scores, said, noted = rising(99, 10), [], []
    outlook = Outlook(said.append, noted.append)
    outlook.look({"step": 0, "heldout/m": 0.1})  # no run yet
    run = made(tmp_path, "now", scores[:1], status="running")
    outlook.opened(run)
    for i, score in enumerate(scores[1:], start=1):
        append_line(run.metrics_file, {"step": 2 * i + 1, "attempt": 0, "heldout/m": score})
        outlook.look({"step": 2 * i + 1, "heldout/m": score})
        outlook.look({"step": 2 * i + 2})  # a step without an evaluation
    assert len(said) == 6 and not noted  # five scores are needed
    assert all(line.startswith("heldout/m: ") and "at the last step" in line for line in said)


def test_a_damaged_run_beside_it_is_left_out_with_a_note_unless_it_is_named(tmp_path):
    for seed in range(9):
        made(tmp_path, f"old-{seed}", rising(seed, 20))
    made(tmp_path, "now", rising(99, 10), status="running")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text('{"status": "fin')
    result = CliRunner().invoke(app, ["forecast", str(tmp_path / "now")])
    assert result.exit_code == 0 and "of 9 finished runs" in result.stdout and "at the last step" in result.stdout
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"left out of the forecast: cannot read '{tmp_path / 'torn' / 'run.json'}'")
    named = CliRunner().invoke(app, ["forecast", str(tmp_path / "now"), "--history", str(tmp_path / "torn")])
    assert isinstance(named.exception, RunError) and "torn" in str(named.exception)


def test_a_damaged_run_beside_it_costs_the_display_a_note_and_its_own_damage_the_forecast(tmp_path):
    for seed in range(9):
        made(tmp_path, f"old-{seed}", rising(seed, 20))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    said, noted = [], []
    outlook = Outlook(said.append, noted.append)
    outlook.opened(made(tmp_path, "now", rising(99, 10), status="running"))
    outlook.look({"step": 19, "heldout/m": 0.9})
    outlook.look({"step": 21, "heldout/m": 0.9})
    assert len(said) == 2 and len(noted) == 1 and noted[0].startswith("left out of the forecast: ")
    run = made(tmp_path / "own", "now", [0.1], status="running")
    outlook.opened(run)
    run.info_file.write_text("{")  # its own is damaged
    outlook.look({"step": 1, "heldout/m": 0.9})
    assert len(noted) == 2 and noted[1].startswith("no forecast: ")
