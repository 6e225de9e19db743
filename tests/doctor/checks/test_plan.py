"""What a run's own plan keeps it from: a warm-up longer than the run, rates and targets that are never reached."""

import numpy as np
import pytest

from steadyrl.doctor.checks.plan import batch_small, rate_not_reached, target_out_of_reach
from steadyrl.doctor.examine import examine
from tests.doctor.checks.series_for_values import said


def test_a_warm_up_longer_than_the_run_is_named_with_its_numbers(make, finding):
    made = make(0, n=60)
    made.settings |= {"steps": 60, "warmup_steps": 300, "learning_rate": 5e-6}
    found = finding(rate_not_reached, made)
    assert (found.cause, found.severity) == ("warm_up", "warning")
    assert "300 steps takes all 60 steps" in found.message
    assert "rises until its end, to 1e-06 of the 5e-06 that is set" in found.message
    assert found.overrides == ("update.warmup_steps=6",)


@pytest.mark.parametrize(("steps", "warm_up", "severity"), [(60, 60, "warning"), (60, 90, "warning"), (8, 80, "info")])
def test_a_warm_up_as_long_as_the_run_halves_the_rate_and_a_trial_of_a_few_steps_may_have_it(
    steps, warm_up, severity, make, finding
):
    made = make(0, n=steps)
    made.settings |= {"steps": steps, "warmup_steps": warm_up}
    assert finding(rate_not_reached, made).severity == severity


def test_a_warm_up_in_which_the_reward_falls_already_is_no_reason_for_a_shorter_one(make, finding, silent):
    made = make(3, n=80)
    made.settings |= {"steps": 80, "warmup_steps": 90}
    made.put("reward", np.concatenate([np.linspace(0.2, 0.7, 40), np.linspace(0.7, 0.3, 40)]) + 0.01 * made.noise())
    silent(rate_not_reached, made)
    made.put("reward", np.linspace(0.2, 0.7, 80) + 0.01 * made.noise())
    assert finding(rate_not_reached, made).cause == "warm_up"
    made.put("entropy", np.geomspace(2.0, 0.05, 80))
    silent(rate_not_reached, made)


def test_a_flat_reward_follows_the_warm_up_and_not_the_rate(make):
    made = make(1, n=150)
    made.settings |= {"steps": 150, "warmup_steps": 6000}
    made.put("learning_rate", 1e-4 * (np.arange(150) + 1) / 6000)
    made.put("reward", 0.2 + 0.002 * made.noise())
    findings = examine(made.run()).findings
    assert findings[0].check == "rate_not_reached"
    assert {f.follows for f in findings if f.check in ("reward_flat", "learning_rate_too_low")} == {"rate_not_reached"}


def test_a_schedule_that_never_comes_near_its_rate_is_named_once_the_run_is_over(make, finding, silent):
    made = make(2)
    made.settings |= {"warmup_steps": 20}
    made.put("learning_rate", 2.5e-5)
    assert "2.5e-05 at most, 25% of the 0.0001" in finding(rate_not_reached, made).message
    made.settings["steps"] = 400
    silent(rate_not_reached, made)
    made.settings["steps"] = 200
    made.put("autopilot/scale", 0.25)
    silent(rate_not_reached, made)


def test_a_least_rate_above_the_rate_is_worth_knowing(make, finding, silent):
    made = make(2)
    made.settings |= {"warmup_steps": 20}
    made.put("learning_rate", 5e-4)
    found = finding(rate_not_reached, made)
    assert (found.cause, found.severity) == ("above", "info")
    assert "0.0005 in the median of the steps, 5 times the 0.0001" in found.message
    made.put("learning_rate", 1.9e-4)
    silent(rate_not_reached, made)


def test_a_usual_warm_up_is_fine(make, silent):
    made = make(0)
    made.settings |= {"warmup_steps": 20}
    silent(rate_not_reached, made)
    made.settings.pop("steps")
    assert said(rate_not_reached(made.run())) == []


def flat(made, level=0.3, best=0.55):
    made.put("reward", level + 0.01 * made.noise())
    made.put("reward_best", best + 0.01 * made.noise())


def test_a_reward_target_above_the_best_completions_of_a_flat_run_cannot_be_met(make, finding):
    made = make(3)
    flat(made)
    made.settings["reward_target"] = 0.9
    found = finding(target_out_of_reach, made)
    assert (found.cause, found.severity) == ("nothing_earns_it", "warning")
    assert "its target is 0.9" in found.message
    assert found.overrides[0].startswith("run.target=0.5")


def test_a_target_that_some_completions_earn_was_not_reached_at_the_end(make, finding, silent):
    made = make(3)
    flat(made)
    made.settings["reward_target"] = 0.5
    assert (finding(target_out_of_reach, made).cause, finding(target_out_of_reach, made).severity) == (
        "not_reached",
        "info",
    )
    made.settings["steps"] = 900
    silent(target_out_of_reach, made)
    made.settings["reward_target"] = 0.29
    silent(target_out_of_reach, made)


def test_a_kl_target_below_what_one_step_moves_cannot_be_met(make, finding):
    made = make(4)
    made.settings["kl_ref_target"] = 0.4
    made.put("kl_step", 0.05)
    made.put("length", 30.0)
    found = finding(target_out_of_reach, made)
    assert (found.cause, found.severity) == ("below_a_step", "warning")
    assert "a single step moves the policy by 1.5 nats/sequence" in found.evidence[0]
    assert found.overrides[0].startswith("autopilot.kl_ref_target=")


def test_a_coefficient_at_the_end_of_its_range_cannot_hold_its_target(make, finding, silent):
    made = make(4)
    made.settings["kl_ref_target"] = 60.0
    made.put("kl_coef", np.maximum(0.05 * 0.8 ** np.arange(made.n), 0.005))
    assert finding(target_out_of_reach, made).cause == "coefficient_at_its_end"
    made.settings["kl_ref_target"] = 6.0
    silent(target_out_of_reach, made)


def test_a_rate_that_falls_to_0_while_the_run_goes_on_is_named_without_any_plan(make, finding, silent):
    made = make(0, n=40)
    made.settings = {}
    made.put("learning_rate", np.where(np.arange(40) < 30, 1e-5, 0.0))
    found = finding(rate_not_reached, made)
    assert (found.cause, found.severity, found.since_step) == ("ended", "warning", 30)
    assert "in the last 10 of 40 rows" in found.message
    made.put("learning_rate", np.where(np.arange(40) < 30, 1e-5, 9e-8))
    assert (
        "9e-08 from step 30 on, in the last 10 of 40 rows: hardly anything" in finding(rate_not_reached, made).message
    )
    made.put("learning_rate", np.where(np.arange(40) < 30, 1e-5, 1e-6))  # a schedule with a least rate
    silent(rate_not_reached, made)
    made.put("learning_rate", 1e-5 * np.linspace(1.0, 0.0, 40))  # as a linear schedule ends
    silent(rate_not_reached, made)


def test_a_run_in_which_only_the_value_head_learns_is_named(make, finding, silent):
    made = make(0, n=60)
    made.settings |= {"steps": 60, "warmup_steps": 5, "value_warmup_steps": 60}
    found = finding(rate_not_reached, made)
    assert (found.cause, found.severity) == ("value_warm_up", "warning")
    assert "first 60 steps, and the run has 60" in found.message
    assert found.overrides == ("algorithm.args.value_warmup_steps=6",)
    made.settings["value_warmup_steps"] = 59
    silent(rate_not_reached, made)


def test_a_limit_to_the_kl_of_a_step_that_the_first_update_passes_is_named(make, finding, silent):
    """The second update measures what the first one did, so two are made."""
    made = make(0, n=40)
    made.settings |= {"kl_old_limit": 1e-9, "epochs": 2, "minibatches": 4}
    made.put("updates", np.where(np.arange(40) % 4 == 0, 8.0, 2.0))
    found = finding(target_out_of_reach, made)
    assert (found.cause, found.severity) == ("below_an_update", "info")
    assert "75% of the steps end after 2 of their 8 updates" in found.message
    made.put("updates", np.where(np.arange(40) % 4 == 0, 2.0, 8.0))
    silent(target_out_of_reach, made)
    made.put("updates", 2.0)
    made.settings |= {"epochs": 1, "minibatches": 2}
    silent(target_out_of_reach, made)


def test_a_value_for_solved_that_no_answer_reaches_is_worth_knowing(make, finding, silent):
    made = make(0, n=40)
    made.settings["solved"] = 50.0
    made.put("heldout/pass@1", 0.0)
    made.put("heldout/pass@4", 0.0)
    found = finding(target_out_of_reach, made)
    assert (found.cause, found.severity) == ("never_solved", "info")
    assert "from 50 on, and none was in 40 evaluations" in found.message
    made.curves[("heldout/pass@4", "", "")][30] = 0.1
    silent(target_out_of_reach, made)


def test_a_schedule_that_is_over_lasts_as_long_as_the_run(make, finding):
    made = make(0, n=40)
    made.settings |= {"steps": 40, "schedule_steps": 12}
    made.put("learning_rate", np.where(np.arange(40) < 12, 1e-4, 0.0))
    found = finding(rate_not_reached, made)
    assert (found.cause, found.overrides) == ("ended", ("update.schedule_steps=0",))


@pytest.mark.parametrize(("prompts", "samples", "advised"), [(2, 1, 64), (1, 3, 64), (2, 2, None), (48, 1, None)])
def test_a_step_of_fewer_than_four_completions_is_named(prompts, samples, advised, make, finding):
    """64 prompts are the default."""
    made = make(0)
    made.settings |= {"prompts_per_step": prompts, "samples_per_prompt": samples, "batch_size": prompts * samples}
    if advised is None:
        assert [result.state for result in batch_small(made.run())] == ["ok"]
        return
    found = finding(batch_small, made)
    assert (found.severity, found.overrides) == ("warning", (f"rollout.prompts_per_step={advised}",))
    made.put("reward", np.minimum(0.1 + 0.02 * np.arange(made.n), 1.0))
    made.put("reward_max", 1.0, "reward")
    assert [result.state for result in batch_small(made.run())] == ["ok"]
    del made.settings["prompts_per_step"]  # other logs say what one device takes
    assert batch_small(made.run()) == []


def test_a_value_warm_up_of_the_whole_run_is_what_leaves_the_policy_where_it_is(make):
    made = make(0, n=60)
    made.settings |= {"steps": 60, "warmup_steps": 5, "value_warmup_steps": 60}
    made.put("learning_rate", 0.0)
    made.kl(np.zeros(60))
    made.put("kl_old", 0.0)
    made.put("reward", 0.2 + 0.002 * made.noise())
    findings = examine(made.run()).findings
    assert (findings[0].check, findings[0].overrides) == ("rate_not_reached", ("algorithm.args.value_warmup_steps=6",))
    assert not any("learning_rate" in text for finding in findings for text in finding.overrides)
