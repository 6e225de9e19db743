"""A target for the reward: when it counts as reached, that it ends a run, and who says how far the run is from it."""

import re

import numpy as np
import pytest
from rich.console import Console

from steadyrl.cli.progress import Progress
from steadyrl.core import config
from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.rundir import RunDir
from steadyrl.core.stats import holds_target
from steadyrl.loop import launch
from steadyrl.loop.train import Watch, train
from steadyrl.show.page import markdown
from steadyrl.show.report.figures import target_figures
from steadyrl.show.report.write import read_report, report_view


def test_a_target_holds_where_the_smoothed_reward_stays_above_it_for_a_tenth_of_the_run():
    rising = np.linspace(0.0, 1.0, 60)
    assert not holds_target(rising[:33], 0.5, 60)  # the smoothed reward passed it three steps ago
    assert holds_target(rising[:38], 0.5, 60)
    assert not holds_target([0.2] * 30 + [0.9] * 2 + [0.2] * 2, 0.5, 60)  # two lucky steps
    assert not holds_target([0.9] * 3, 0.5, 60)  # nothing is known to last yet
    assert not holds_target([], 0.5, 60)
    assert holds_target([-0.4] * 8, -0.5, 30)


def test_a_run_ends_as_finished_once_it_holds_its_target(toy, tmp_path):
    run, noted = RunDir(tmp_path / "run"), []
    status = train(toy("run.steps=40", "run.target=0.1"), run, watch=Watch(note=noted.append))
    steps = len(run.metrics())
    assert status == "finished"
    assert 4 <= steps < 40
    assert re.search(rf"stopping early after {steps} steps: .* run.target = 0.1 for 4 steps", " ".join(noted))
    assert run.checkpoints()[-1] == steps


def test_a_target_that_is_not_reached_changes_nothing(toy, tmp_path):
    plain, aimed = RunDir(tmp_path / "plain"), RunDir(tmp_path / "aimed")
    train(toy(), plain)
    train(toy("run.target=7.5"), aimed)
    assert [line["reward/mean"] for line in aimed.metrics()] == [line["reward/mean"] for line in plain.metrics()]


@pytest.fixture
def settings(toy):
    """Return the settings of a toy run as a mapping, so that the front door can start it."""
    return lambda *overrides: config.dump(toy("run.preflight=off", *overrides).config)


def test_run_json_and_the_report_say_that_the_target_ended_the_run_and_a_resume_needs_a_higher_one(settings):
    run = launch.run(settings("run.steps=40", "run.target=0.1"))
    steps = len(run.metrics())
    assert run.info()["stopped_early"] == {"step": steps, "target": 0.1}
    shown = markdown.page(report_view(read_report(run.path)))
    assert re.search(rf"stopped early, after {steps} steps: .*run.target", shown)
    assert re.search(r"The reward's target \(run.target\) is 0\.1.*reached it at step \d+", shown)
    with pytest.raises(RunError, match=rf"reached run.target = 0.1 after {steps} of 40 steps; add a higher"):
        launch.run(resume=run)
    longer = launch.run(overrides=["run.target=9.0"], resume=run)
    assert (longer.info()["stopped_early"], len(longer.metrics())) == (None, 40)


def test_a_stopped_and_resumed_run_ends_at_the_same_step(toy, tmp_path):
    whole, halves = RunDir(tmp_path / "whole"), RunDir(tmp_path / "halves")
    overrides = ("run.steps=40", "run.target=0.1")
    train(toy(*overrides), whole)
    done = []
    assert train(toy(*overrides), halves, watch=Watch(step=done.append, stop=lambda: len(done) == 3)) == "interrupted"
    train(toy(*overrides), halves, attempt=1)
    assert len(halves.metrics()) == len(whole.metrics())


def test_the_report_says_how_near_a_run_came():
    rewards = [0.1, 0.2, 0.3, 0.4, 0.3, 0.2, 0.1]
    figures = target_figures([{"step": i, "reward/mean": r} for i, r in enumerate(rewards)], 0.8)
    assert figures == {"target": 0.8, "step": None, "best": 0.4, "best_step": 3}
    assert target_figures([{"step": 0, "reward/mean": None}], 0.8)["best"] is None
    assert target_figures([], None) is None


def test_the_live_display_shows_the_target_and_the_share_of_it():
    progress = Progress()
    progress.target = 0.8
    progress.step({"step": 4, "reward/mean": 0.28})
    console = Console(width=100, record=True)
    console.print(progress.view())
    assert re.search(r"target, 35% reached\s+0\.80", console.export_text())


def test_lines_of_a_log_show_the_target_beside_the_reward(capsys):
    progress = Progress()
    progress.target = 0.8
    progress.step({"step": 4, "reward/mean": 0.28, "entropy": 1.5})
    assert "reward 0.28 (target 0.80)" in capsys.readouterr().out


def test_a_target_that_is_no_number_is_refused():
    with pytest.raises(ConfigError, match=r"run.target: got 'high'"):
        config.resolve({"rewards": {"length": 1.0}}, ["run.target=high"])
