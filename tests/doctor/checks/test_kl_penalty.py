import numpy as np
import pytest

from steadyrl.doctor.checks.kl_penalty import (
    kl_penalty_holds,
    kl_penalty_off,
    kl_penalty_outweighs,
    penalty_balance,
    penalty_gradient,
)
from steadyrl.doctor.checks.learning_rate import learning_rate_too_low


def grouped(made, measured, **settings):
    """Give a run a penalty in its loss: the policy's part plus ``measured`` times the KL."""
    made.algorithm = "grpo"
    made.drop("kl_coef")
    made.settings |= {"kl_place": "loss", "kl_coef": 0.05, **settings}
    kl = made.curves[("kl_ref", "nats/token", "k3")]
    made.put("loss", made.curves[("loss_policy", "", "")] + measured * kl)


def test_a_coefficient_that_falls_to_nothing_at_once_was_switched_off(make, finding):
    made = make(0)
    made.put("kl_coef", np.where(made.t < 0.4, 0.05, 0.0))
    found = finding(kl_penalty_off, made)
    assert (found.cause, found.severity, found.since_step) == ("penalty_switched_off", "warning", 80)
    assert found.overrides == ("algorithm.args.kl_coef=0.05",)


def test_a_coefficient_that_is_lowered_step_by_step_is_a_schedule(make, silent):
    made = make(0)
    made.put("kl_coef", 0.05 * np.maximum(1.0 - made.t, 0.0))
    silent(kl_penalty_off, made)
    made.put("kl_coef", 0.05 * 0.9 ** np.arange(made.n))
    silent(kl_penalty_off, made)


def test_a_coefficient_of_0_from_the_start_was_chosen(make, silent):
    made = make(0)
    made.put("kl_coef", 0.0)
    made.settings["kl_coef"] = 0.0
    silent(kl_penalty_off, made)


def test_a_loss_that_loses_its_penalty_shows_it(make, finding):
    made = make(1)
    grouped(made, np.where(made.t < 0.4, 0.05, 0.0))
    found = finding(kl_penalty_off, made)
    assert (found.cause, found.since_step) == ("penalty_switched_off", 80)


def test_a_loss_that_never_held_a_penalty_does_not_apply_it(make, finding):
    made = make(2)
    grouped(made, 0.0)
    assert finding(kl_penalty_off, made).cause == "not_applied"


def test_a_penalty_that_is_there_is_healthy(make, silent):
    for seed in range(5):
        made = make(seed)
        grouped(made, 0.05 * np.exp(0.3 * made.noise()))
        silent(kl_penalty_off, made)
    silent(kl_penalty_off, make(0))


def test_a_value_loss_hides_what_the_loss_holds_of_the_penalty(make, unclear):
    made = make(3)
    grouped(made, 0.0)
    made.put("loss_value", 0.1)
    assert unclear(kl_penalty_off, made).would_tell == ("kl_coef", "loss", "loss_policy")


def flat(made, coefficient, spread, share):
    """Let a run earn the same all along, at so many times the KL of the balance of penalty and reward."""
    made.put("reward", 0.3 + 0.02 * made.noise())
    made.put("reward_std", spread * np.exp(0.05 * made.noise()))
    made.put("kl_coef", coefficient)
    kl = share * spread**2 / (2.0 * made.curves[("kl_coef", "", "")] ** 2)
    kl[0] = 0.0
    made.kl(kl * np.exp(0.1 * made.noise()))
    return made


def test_the_best_policy_under_a_penalty_has_the_kl_and_the_gain_of_the_balance():
    """Of two answers, exactly: p = softmax(log p_ref + reward / coefficient), the coefficient far above the spread."""
    rewards, reference = np.array([0.0, 0.4]), np.array([0.7, 0.3])
    variance = float(reference @ rewards**2 - (reference @ rewards) ** 2)
    for coefficient in (4.0, 8.0):
        weights = reference * np.exp(rewards / coefficient)
        best = weights / weights.sum()
        kl = float(best @ np.log(best / reference))
        assert np.isclose(kl, variance / (2.0 * coefficient**2), rtol=0.1)
        assert np.isclose((best - reference) @ rewards, variance / coefficient, rtol=0.1)


def test_a_flat_run_at_the_balance_is_held_by_its_penalty_and_not_by_its_rate(make, finding, silent):
    made = flat(make(0), 0.8, 0.16, 2.0)
    held = finding(kl_penalty_holds, made)
    assert (held.cause, held.severity) == ("penalty_too_strong", "warning")
    assert held.overrides == ("algorithm.args.kl_coef=0.03",)  # 0.16^2 / (2 x 0.025^2) is 20 nats
    silent(learning_rate_too_low, made)


def test_the_share_of_the_advantage_that_the_penalty_takes_is_told_from_the_error_of_the_kl(make, finding):
    """An error of 0.05 over 16 completions is a standard deviation of 0.2 nats; times 0.8, beside rewards of 0.16."""
    made = flat(make(0), 0.8, 0.16, 2.0)
    made.settings["batch_size"] = 16
    made.put("kl_ref_se", 0.05, "nats/sequence", "k1")
    shown, _, share = finding(kl_penalty_holds, made).evidence[-1].partition(": ")
    assert shown == "the penalties of completions differ by 0.16"
    assert share.endswith("% of the spread of advantages") and abs(int(share[:2]) - 50) <= 2


def test_a_controller_that_lowers_its_coefficient_is_followed_by_the_balance(make, finding):
    made = make(1)
    assert finding(kl_penalty_holds, flat(made, 0.9 * 0.5**made.t, 0.2, 1.5)).cause == "penalty_too_strong"


def test_a_flat_run_far_below_the_balance_is_not_held(make, silent):
    for share in (0.02, 0.15):
        silent(kl_penalty_holds, flat(make(2), 0.8, 0.16, share))


def test_a_penalty_that_takes_more_than_half_of_the_pull_holds_before_the_balance(make, finding):
    held = finding(kl_penalty_holds, flat(make(2), 0.12, 0.16, 0.4))  # the balance is at 0.9 nats
    assert held.overrides == ("algorithm.args.kl_coef=0.02",)


def test_a_weak_penalty_a_rising_reward_and_a_lost_policy_are_not_held(make, silent):
    silent(kl_penalty_holds, flat(make(3), 0.05, 0.16, 2.0))  # the balance is at 5 nats
    silent(kl_penalty_holds, flat(make(3), 0.8, 0.16, 100.0))  # no penalty takes a policy there
    rising = flat(make(3), 0.8, 0.16, 2.0)
    rising.put("reward", 0.3 + 0.4 * rising.t)
    silent(kl_penalty_holds, rising)


def test_rewards_that_the_loss_divides_by_their_spread_have_a_spread_of_1(make):
    made = flat(make(4), 0.5, 0.16, 2.0)
    made.algorithm = "grpo"
    made.settings["kl_place"] = "loss"
    assert penalty_balance(made.run()).spread == 1.0


def test_a_negative_kl_takes_nothing_from_the_reward(make, silent):
    made = make(5)
    made.put("kl_coef", 1.0)
    made.kl(np.full(made.n, -9.0))
    silent(kl_penalty_outweighs, made)


def pulled(made, penalty):
    """Let a run log the gradients of reward and penalty, of noisy lengths, the reward's of length 2 on average."""
    made.put("gradient_reward", 2.0 * np.exp(0.1 * made.noise()))
    made.put("gradient_penalty", 2.0 * penalty * np.exp(0.1 * made.noise()))


def test_a_penalty_that_pulls_half_as_hard_as_the_reward_is_worth_knowing_while_the_reward_rises(make, finding, silent):
    made = make(0)
    pulled(made, 0.8)
    found = finding(kl_penalty_holds, made)
    assert (found.cause, found.severity) == ("penalty_too_strong", "info")
    assert any("times as long as the reward's" in line for line in found.evidence)
    assert found.overrides == ()  # the reward has risen by more than the completions differ by
    made.put("reward", 0.2 + 0.1 * made.t + 0.01 * made.noise())
    # To a fifth, the least that is advised; a tenth of the pull would be an eighth.
    assert finding(kl_penalty_holds, made).overrides == ("algorithm.args.kl_coef=0.01",)
    pulled(made, 0.3)
    silent(kl_penalty_holds, made)


def test_a_policy_that_hardly_moves_under_a_penalty_that_pulls_is_not_held_by_its_rate(make, finding, silent):
    made = make(1)
    made.put("reward", 0.3 + 0.02 * made.noise())
    made.put("kl_old", 1e-8 * np.exp(made.noise()))
    made.put("clip_fraction", 0.0)
    made.put("entropy", 2.0 + 0.02 * made.noise(), "nats/token", "exact")
    made.kl(1e-5 * np.exp(0.1 * made.noise()))
    pulled(made, 0.05)
    assert finding(learning_rate_too_low, made).cause == "learning_rate"
    pulled(made, 0.8)
    silent(learning_rate_too_low, made)


def test_the_pull_is_that_of_the_later_half(make):
    """Lengths of 1 and 3 are, as a root mean square, the root of 5."""
    made = make(2, n=8)
    made.put("gradient_reward", 1.0)
    made.put("gradient_penalty", np.array([9.0, 9.0, 9.0, 9.0, 1.0, 3.0, 1.0, 3.0]))
    assert np.isclose(penalty_gradient(made.run()), 5**0.5)
    made.drop("gradient_reward")
    assert penalty_gradient(made.run()) is None


def test_a_penalty_that_ends_a_rise_is_named_and_one_of_a_solved_task_is_not(make, finding, silent):
    made = flat(make(3), 0.8, 0.18, 2.0)
    made.put("reward", 0.2 + 0.2 * np.minimum(np.arange(made.n) / 30.0, 1.0) + 0.01 * made.noise())
    found = finding(kl_penalty_holds, made)
    assert (found.severity, found.overrides) == ("warning", ("algorithm.args.kl_coef=0.03",))
    made.put("reward_max", 0.4, "reward")  # the best completions earn no more
    assert [result.state for result in kl_penalty_holds(made.run())] == ["ok"]


def test_a_long_gradient_of_the_penalty_holds_nothing_back_where_all_completions_earn_the_same(make):
    made = flat(make(2), 0.05, 0.16, 0.1)
    made.put("reward", np.minimum(0.1 + 0.02 * np.arange(made.n), 1.0))
    made.put("gradient_reward", 0.01)
    made.put("gradient_penalty", 0.01)
    assert [result.state for result in kl_penalty_holds(made.run())] == ["found"]
    made.put("reward_std", np.where(np.arange(made.n) < 50, 0.16, 0.0))
    assert [result.state for result in kl_penalty_holds(made.run())] == ["ok"]


@pytest.mark.parametrize(("target", "advised"), [(0.05, 10), (15.0, 15)])
def test_a_controller_is_given_a_target_and_not_a_coefficient(target, advised, make, finding):
    """It would raise a lower coefficient until the KL is at its target again."""
    made = flat(make(1), 0.8, 0.16, 2.0)
    made.settings |= {"kl_adaptive": True, "kl_target": target, "kl_target_unit": "nats/sequence"}
    overrides = finding(kl_penalty_holds, made).overrides
    assert overrides == ((f"algorithm.args.kl_target={advised}",) if advised != target else ())


def test_a_penalty_above_all_that_rewards_differ_by_is_named_in_the_later_half_of_a_run_that_does_not_rise(make):
    """A controller of 0.03 times 3 nats is 0.09; rewards lie within 0.02."""
    made = make(0)
    made.put("reward", 0.01 - 0.004 * made.t + 0.0005 * made.noise())
    made.put("reward_std", 0.005)
    made.put("kl_coef", 0.03)
    made.kl(np.minimum(0.1 * np.arange(made.n), 3.0))
    (found,) = kl_penalty_outweighs(made.run())
    assert (found.state, found.severity) == ("found", "warning")
    assert float(found.overrides[0].split("=")[1]) < 0.003
    made.put("reward", 0.01 + 0.004 * made.t + 0.0005 * made.noise())
    assert [result.state for result in kl_penalty_outweighs(made.run())] == ["ok"]


@pytest.mark.parametrize(
    ("share", "gain", "best", "held"),
    [(0.9, 0.2, 1.0, True), (0.3, 0.2, 1.0, False), (0.9, 0.01, 1.0, False), (0.9, 0.2, 0.5, False)],
)
def test_a_reward_that_came_to_the_balance_and_not_to_the_best_is_held(share, gain, best, held, make):
    """The balance of 0.05 beside a spread of 0.16 is at 5.1 nats and a gain of 0.51; a quarter of that is 0.13."""
    made = flat(make(3), 0.05, 0.16, share)
    made.put("reward", 0.3 + gain * np.minimum(1.0, made.t / 0.3) + 0.002 * made.noise())
    made.put("reward_max", best, "reward")
    loud = [found for found in kl_penalty_holds(made.run()) if found.harms]
    assert [found.overrides for found in loud] == ([("algorithm.args.kl_coef=0.01",)] if held else [])
    made.settings["kl_adaptive"] = True  # the KL is where the target of a controller is
    assert not [found for found in kl_penalty_holds(made.run()) if found.harms]


def shortened(made, last, coefficient=0.02):
    """Let answers shrink from 40 tokens, at 2.5 nats per token, and the reward come to 0.4 of 1."""
    length = np.linspace(40.0, last, made.n)
    made.put("length", length + 0.01 * made.noise())
    made.put("reward", 0.2 + 0.2 * made.t + 0.01 * made.noise())
    made.put("reward_min", 0.0, "reward")
    made.put("reward_max", 0.5, "reward")
    made.put("kl_coef", coefficient)
    per_token = 2.5 * np.minimum(1.0, made.t / 0.2)
    made.kl(per_token * length)
    made.curves |= {key: per_token for key in made.curves if key[:2] == ("kl_ref", "nats/token")}
    return made


def test_a_penalty_of_long_answers_that_short_ones_do_not_pay_outweighs(make, finding, silent):
    """At 3 tokens a completion pays 0.15 of 0.5, one of 40 would pay 2: a tenth of 0.5 is a fortieth of that."""
    found = finding(kl_penalty_outweighs, shortened(make(1), 3.0))
    assert (found.cause, found.severity) == ("ends_early", "warning")
    assert found.overrides == ("algorithm.args.kl_coef=0.0005",)
    silent(kl_penalty_outweighs, shortened(make(1), 30.0, 0.005))  # no shorter
    silent(kl_penalty_outweighs, shortened(make(1), 3.0, 0.002))  # long ones pay 0.2
    best = shortened(make(1), 3.0)
    best.put("reward", 0.2 + 0.29 * np.minimum(1.0, best.t / 0.3) + 0.002 * best.noise())
    silent(kl_penalty_outweighs, best)


def test_a_controller_is_switched_off_where_its_name_is_known(make, finding):
    made = flat(make(2), 0.4, 0.16, 2.0)
    made.settings |= {"kl_adaptive": True, "kl_target": 3.0, "kl_target_unit": "nats/sequence"}
    assert finding(kl_penalty_holds, made).overrides == ("algorithm.args.kl_target=10",)
    made.settings["algorithm.args.kl_control"] = "adaptive"
    assert [o.partition("=")[0] for o in finding(kl_penalty_holds, made).overrides] == ["algorithm.args.kl_target"]


@pytest.mark.parametrize(("best", "severity"), [(1.0, "warning"), (0.31, "info")])
def test_a_penalty_that_takes_back_half_harms_where_the_reward_falls_short(best, severity, make, finding):
    made = make(0)
    pulled(made, 0.7)
    made.put("reward", 0.2 + 0.1 * np.minimum(1.0, made.t / 0.5) + 0.002 * made.noise())
    made.put("reward_max", best, "reward")
    assert finding(kl_penalty_holds, made).severity == severity
