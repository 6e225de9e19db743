from dataclasses import replace

import numpy as np
import pytest

from steadyrl.doctor.checks.gradient import grad_norm
from tests.doctor.checks.series_for_values import finding, healthy, make_run, nearest, noise, said, series, unclear

N = 200


def quiet(seed=0):
    return np.exp(np.log(0.4) + noise(np.random.default_rng(seed), N, 0.3))


def spiked(base, size, where=slice(120, 124)):
    values = np.array(base, float)
    values[where] = size
    return values


def test_spikes_with_jumps_of_the_update_size_are_large_updates():
    small = np.exp(np.log(0.004) + noise(np.random.default_rng(1), N, 0.3))
    run = healthy(n=N, grad_norm=spiked(quiet(), 40.0), kl_old=spiked(small, 2.0))
    found = finding(grad_norm(run))
    assert (found.cause, found.since_step, found.severity) == ("large_updates", 120, "warning")
    assert "kl_old" in found.message


def test_spikes_with_a_reward_outlier_are_put_down_to_it():
    run = healthy(n=N, grad_norm=spiked(quiet(), 40.0), reward_max=spiked(np.ones(N), 90.0))
    assert finding(grad_norm(run)).cause == "reward_outlier"


def test_spikes_with_the_value_loss_follow_it():
    losses = np.exp(noise(np.random.default_rng(1), N, 0.3))
    found = finding(grad_norm(healthy(n=N, grad_norm=spiked(quiet(), 40.0), loss_value=spiked(losses, 900.0))))
    assert (found.cause, nearest(found)) == ("value_loss", "value_loss_spikes")


def test_spikes_alone_are_unknown():
    assert finding(grad_norm(healthy(n=N, grad_norm=spiked(quiet(), 40.0)))).cause == "unknown"


@pytest.mark.parametrize(("gain", "harmful"), [(0.5, False), (0.0, True)])
def test_the_gradient_of_a_summed_loss_is_large_throughout_and_no_harm_while_the_reward_rises(gain, harmful):
    reward = 0.2 + gain * np.linspace(0.0, 1.0, N) + noise(np.random.default_rng(2), N, 0.02)
    run = healthy(n=N, grad_norm=4000.0 * quiet(), reward=reward, settings={"max_grad_norm": None})
    assert [found.severity for found in said(grad_norm(run))] == (["warning"] if harmful else [])


def test_a_norm_that_grows_a_hundredfold_explodes():
    norm = quiet() * np.exp(np.linspace(0, np.log(100), N))
    found = finding(grad_norm(healthy(n=N, grad_norm=norm, settings={"max_grad_norm": None})))
    assert found.cause == "exploding"


@pytest.mark.parametrize(
    ("share", "used", "cause"), [(1.0, 0.0, "no_signal"), (0.2, 0.4, "detached"), (0.2, 0.0, "nothing_kept")]
)
def test_a_gradient_of_0_is_told_by_the_groups_and_by_what_is_kept(share, used, cause):
    run = healthy(n=N, grad_norm=np.zeros(N), no_signal=np.full(N, share), advantage_used=np.full(N, used))
    found = finding(grad_norm(run))
    assert (found.cause, found.severity) == (cause, "critical")


@pytest.mark.parametrize(
    ("share", "rows", "cause"), [(0.7, 2, "no_signal"), (0.3, 2, "detached"), (0.7, 20, "detached")]
)
def test_in_few_rows_most_groups_without_a_signal_explain_a_gradient_of_0(share, rows, cause):
    columns = {"grad_norm": np.zeros(rows), "no_signal": np.full(rows, share)}
    found = finding(grad_norm(make_run({name: series(name, values) for name, values in columns.items()})))
    assert found.cause == cause
    assert ("the rewards of 70% of the prompts do not differ" in found.message) == (cause == "no_signal")


def test_a_gradient_of_0_in_most_steps_is_a_warning():
    norm = np.where(np.arange(N) < 60, quiet(), 0.0)
    found = finding(grad_norm(healthy(n=N, grad_norm=norm)))
    assert (found.severity, found.since_step) == ("warning", 60)


def clipped(times, **settings):
    """Return what is said of a run whose gradients are so many times the limit and all clipped."""
    run = healthy(n=N, grad_norm=times * quiet() / 0.4, grad_clipped=np.ones(N), settings=settings)
    return said(grad_norm(run))


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adamw_torch"}, {"optimizer": "AdamW8bit"}])
def test_clipping_every_gradient_is_in_order_where_adam_takes_out_the_scale(settings):
    assert clipped(3, **settings) == clipped(30, **settings) == []


@pytest.mark.parametrize("name", ["sgd", "torch.optim.SGD"])
def test_with_plain_sgd_the_limit_sets_the_step_and_far_above_it_is_a_warning(name):
    assert clipped(3, optimizer=name) == []
    (hard,) = clipped(30, optimizer=name)
    assert (hard.cause, hard.severity, len(hard.overrides)) == ("always_clipped", "warning", 1)
    assert "lower the learning rate" in hard.remedy


def test_the_founding_trainer_is_told_how_to_log_it():
    run = make_run({"reward": np.arange(50.0)}, trainer="trl-ppo-old")
    answer = unclear(grad_norm(run))
    assert "clip_grad_norm_" in answer.message
    assert answer.would_tell == ("grad_norm",)


def test_a_trainer_of_ones_own_is_told_too():
    assert "clip_grad_norm_" in unclear(grad_norm(make_run({"reward": np.arange(50.0)}, trainer="unknown"))).message


def test_a_setting_whose_value_the_log_lacks_is_named_as_the_trainer_calls_it():
    grown = make_run({"grad_norm": quiet() * np.exp(np.linspace(0.0, np.log(100.0), N))})
    of_tinker = replace(grown, keys={"learning_rate": "actor.lr"}, settings={})
    one = next(found for found in grad_norm(of_tinker) if found.cause == "exploding")
    assert one.remedy.endswith("Set actor.lr to 0.33 times what it is; the log does not hold its value.")
    assert one.overrides == ()
    known = next(f for f in grad_norm(replace(of_tinker, settings={"learning_rate": 3e-4})) if f.cause == "exploding")
    assert known.overrides == ("actor.lr=0.0001",)
    assert "does not hold" not in known.remedy


@pytest.mark.parametrize(("reward", "overrides"), [("rises", ()), ("rests", ("update.learning_rate=3e-05",))])
def test_a_growing_gradient_calls_for_smaller_steps_where_nothing_is_learned(reward, overrides, make, finding):
    made = make(0)
    made.put("grad_norm", np.exp(4.0 * made.t + 0.1 * made.noise()))
    if reward == "rests":
        made.put("reward", 0.3 + 0.02 * made.noise())
    found = [one for one in grad_norm(made.run()) if one.cause == "exploding"]
    assert [one.overrides for one in found] == [overrides]
