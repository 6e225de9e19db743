"""Before anything is trained: warm-ups longer than the run and targets beyond reach are said, and stop nothing."""

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.loop import launch
from steadyrl.loop.preflight.run import finding_lines, preflight, schedule, summary_line, targets
from steadyrl.loop.preflight.trial import begin_trial
from steadyrl.loop.train import Watch


def judged(check, session):
    (finding,) = check(begin_trial(session))
    return finding


def verdict(toy, *overrides):
    return judged(targets, toy(*overrides))


def test_a_warm_up_longer_than_the_run_is_said_with_its_numbers(toy):
    found = judged(schedule, toy("run.steps=30", "update.warmup_steps=120", "update.learning_rate=0.02"))
    assert (found.check, found.state, found.severity, found.cause) == ("schedule", "found", "warning", "warm_up")
    assert "until its end, to 0.005 of the 0.02 that" in found.message
    assert found.overrides == ("update.warmup_steps=3",)


def test_a_usual_warm_up_passes_and_says_where_the_rate_ends(toy):
    found = judged(schedule, toy("run.steps=30", "update.warmup_steps=5", "update.schedule=linear"))
    assert found.state == "ok"
    assert "from 0.02 at the first step to 0.1" in found.message


def test_a_trial_of_a_few_steps_may_end_within_its_warm_up(toy):
    found = judged(schedule, toy("run.steps=4", "update.warmup_steps=10", "update.learning_rate=0.02"))
    assert found.state == "ok"
    assert "until its end, to 0.008 of the 0.02 that" in found.message


def test_a_fall_that_would_end_within_the_warm_up_is_said(toy):
    falls = ("update.schedule=cosine", "update.schedule_steps=15")
    found = judged(schedule, toy("run.steps=90", "update.warmup_steps=20", *falls))
    assert (found.state, found.cause, found.overrides) == ("found", "never_falls", ("update.schedule_steps=90",))


def test_a_schedule_that_is_over_long_before_the_run_is_said(toy):
    """A linear schedule from 5 to 20 ends at 1 / 15 of the rate, and one over 75 of 90 steps at 1 / 70."""
    falls = ("run.steps=90", "update.warmup_steps=5", "update.schedule=linear", "update.learning_rate=0.3")
    found = judged(schedule, toy(*falls, "update.schedule_steps=20"))
    assert (found.state, found.cause, found.overrides) == ("found", "falls_early", ("update.schedule_steps=90",))
    assert "is 0.02 at the last of 90" in found.message
    assert judged(schedule, toy(*falls, "update.schedule_steps=75")).state == "ok"


def test_a_run_in_which_only_the_value_head_would_learn_is_said(toy):
    found = judged(schedule, toy("run.steps=30", "algorithm.args.value_warmup_steps=40"))
    assert (found.cause, found.overrides) == ("value_warm_up", ("algorithm.args.value_warmup_steps=3",))


def test_a_reward_target_that_the_untrained_policy_meets_is_said(toy):
    found = verdict(toy, "run.target=-0.5")
    assert (found.state, found.severity, found.cause) == ("found", "warning", "reward_met")


def test_a_kl_target_that_no_policy_with_such_answers_comes_to_is_said(toy):
    """The untrained toy policy is uniform over V tokens, so one of its answers of L tokens is L log V nats away."""
    trial = begin_trial(toy())
    tokens = trial.batch.completion_mask.sum() / len(trial.batch.lengths)
    bound = tokens * np.log(trial.session.backend.parameters["logits"].shape[-1])
    controlled = "algorithm.args.kl_control=adaptive"
    assert verdict(toy, controlled, f"algorithm.args.kl_target={0.99 * bound}").state == "ok"
    found = verdict(toy, controlled, f"algorithm.args.kl_target={1.01 * bound}")
    assert (found.state, found.severity, found.cause) == ("found", "warning", "kl_beyond")


@pytest.mark.parametrize(("patience", "state"), [(2, "ok"), (3, "found")])
def test_a_patience_that_outlasts_the_run_is_said(patience, state, toy):
    """After a first evaluation at step 10, three without a better one end at step 40, which is the last."""
    assert verdict(toy, "run.steps=40", "evaluate.every=10", f"evaluate.patience={patience}").state == state


def test_a_reward_target_above_what_good_answers_earn_is_said(toy):
    session = toy("run.target=1.7")
    session.task.gold = lambda problem: "aaab"
    found = judged(targets, session)
    assert (found.state, found.severity, found.cause) == ("found", "warning", "reward")
    assert "run.target is 1.7" in found.message
    key, _, value = found.overrides[0].partition("=")
    assert (key, float(value)) == ("run.target", 0.75)
    assert verdict(toy, "run.target=0.05").state == "ok"
    assert (verdict(toy, "run.target=1.7").state, verdict(toy, "run.target=1.7").cause) == ("unknown", "")


def test_a_value_for_solved_that_no_good_answer_earns_is_said(toy):
    session = toy("evaluate.solved=50.0")
    session.task.gold = lambda problem: "aaab"
    found = judged(targets, session)
    assert (found.state, found.severity, found.cause) == ("found", "warning", "solved")
    assert found.overrides == ("evaluate.solved=0.75",)  # three of four letters
    session = toy("evaluate.solved=0.75")
    session.task.gold = lambda problem: "aaab"
    assert judged(targets, session).state == "ok"


def test_a_kl_target_that_one_step_passes_is_said(toy):
    pilot = ("autopilot.mode=act", "algorithm.args.kl_coef=0.1")
    found = verdict(toy, *pilot, "autopilot.kl_ref_target=0.01")
    assert (found.state, found.cause) == ("found", "kl_ref")
    assert found.overrides[0].startswith("autopilot.kl_ref_target=")
    assert verdict(toy, *pilot, "autopilot.kl_ref_target=15.0").state == "ok"


@pytest.mark.parametrize(("target", "state"), [(0.2, "found"), (5.0, "ok")])
def test_the_target_of_a_controller_that_leaves_no_room_to_learn_is_said(target, state, toy):
    found = verdict(toy, "algorithm.args.kl_control=adaptive", f"algorithm.args.kl_target={target}")
    assert found.state == state
    assert (found.overrides == ("algorithm.args.kl_target=6",)) == (state == "found")


def test_without_a_target_nothing_is_judged(toy):
    assert verdict(toy).message == "none is set"


def test_warnings_are_shown_and_stop_no_run(toy):
    controlled = ("algorithm.args.kl_control=adaptive", "algorithm.args.kl_target=0.1")
    overrides = ("run.steps=20", "update.warmup_steps=50", *controlled)
    findings, noted = preflight(toy(*overrides)), []
    lines = "\n".join(finding_lines(findings))
    assert "warn  schedule: the warm-up of 50 steps" in lines
    assert "warnings: schedule (warm_up), targets (kl)" in summary_line(findings)
    assert "FAILED" not in summary_line(findings)
    run = launch.run(config.dump(toy(*overrides).config), watch=Watch(note=noted.append))
    assert run.status == "finished"
    assert any("warn  targets: " in line for line in noted)
