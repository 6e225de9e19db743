import numpy as np
import pytest

from steadyrl.doctor.checks.learning_rate import learning_rate_too_high, learning_rate_too_low
from steadyrl.doctor.statistics.readings import entropy_lost_since
from tests.doctor.checks.conftest import TOKENS
from tests.doctor.checks.series_for_values import said


def overshoot(made, kl_old=0.5, since=80):
    t = np.arange(made.n)
    made.put("kl_old", np.where(t < since, 0.01, kl_old) * np.exp(0.2 * made.noise()))
    made.put("clip_fraction", np.where(t < since, 0.08, 0.5) * np.exp(0.05 * made.noise()))


@pytest.mark.parametrize("seed", range(5))
def test_a_large_step_and_much_clipping_agree(seed, make, finding):
    made = make(seed)
    overshoot(made)
    found = finding(learning_rate_too_high, made)
    assert (found.cause, found.severity, found.since_step) == ("learning_rate", "warning", 80)
    # 0.5 is 100 times 0.005; the KL grows with the square, so a tenth of two passes at 1e-4: one at 2e-5.
    assert found.overrides == ("update.learning_rate=2e-05", "update.epochs=1")


@pytest.mark.parametrize(
    ("kl_old", "passes", "advised"),
    [
        (0.5, 8, ("update.learning_rate=8e-05", "update.epochs=1")),  # a tenth: an eighth of the passes, and 1 / 1.25
        (0.18, 12, ("update.epochs=2",)),  # a sixth of the passes is all of it
        (0.3, 12, ("update.learning_rate=8e-05", "update.epochs=2")),  # 7.7 times: a sixth of the passes, and 1 / 1.29
    ],
)
def test_of_many_passes_fewer_are_part_of_the_cut(kl_old, passes, advised, make, finding):
    made = make(0)
    overshoot(made, kl_old)
    made.settings["epochs"] = passes
    found = finding(learning_rate_too_high, made)
    assert (found.cause, found.overrides) == ("epochs", advised)


def test_one_sign_alone_is_not_enough(make):
    made = make(1)
    overshoot(made)
    made.put("clip_fraction", 0.1)
    assert said(learning_rate_too_high(made.run())) == []


@pytest.mark.parametrize(
    ("quantity", "unit", "estimator", "later"),
    [("entropy", "nats/token", "exact", 0.2), ("entropy", "nats/token", "exact", 9.0)],
)
def test_a_jump_is_a_second_sign(quantity, unit, estimator, later, make, finding):
    made = make(2)
    overshoot(made)
    made.drop("clip_fraction")
    made.curves[(quantity, unit, estimator)][82:] = later
    assert len(finding(learning_rate_too_high, made).evidence) == 3  # the step, the jump, the rate itself


@pytest.mark.parametrize(("cosine", "agrees"), [(-0.35, True), (-0.03, False)])
def test_gradients_that_point_back_against_the_ones_before_are_a_second_sign(cosine, agrees, make):
    made = make(4)
    overshoot(made)
    made.put("clip_fraction", 0.1)
    made.put("grad_cosine", np.where(np.arange(made.n) < 80, 0.05, cosine))
    found = said(learning_rate_too_high(made.run()))
    assert bool(found) == agrees == ("(cosine -0.35)" in str(found))


def test_a_kl_to_the_reference_that_leaps_is_a_second_sign(make, finding):
    made = make(3)
    overshoot(made)
    made.drop("clip_fraction")
    kl = np.where(np.arange(made.n) < 82, 2.0, 60.0)
    made.kl(kl)
    assert "KL to the reference went from 0.1 to 3" in " ".join(finding(learning_rate_too_high, made).evidence)


def test_a_reward_lost_to_steps_of_more_than_a_nat_is_beyond_doubt(make, finding):
    made = make(4)
    overshoot(made, kl_old=3.0)
    made.put("reward", np.where(np.arange(made.n) < 85, 0.5, 0.1) + 0.02 * made.noise())
    assert finding(learning_rate_too_high, made).severity == "critical"


def test_an_entropy_lost_to_such_steps_is_beyond_doubt_though_they_end(make, finding):
    made = make(4)
    overshoot(made, kl_old=5.0)
    made.curves[("kl_old", "nats/token", "k3")][100:] = 1e-8  # a policy without entropy does not move
    made.curves[("entropy", "nats/token", "exact")][90:] = 1e-6
    found = finding(learning_rate_too_high, made)
    assert found.severity == "critical"
    # The root of 5 / 0.005 is 32, and 1e-4 / 16 is 6e-6 for one of two passes; the noise of these steps is in it.
    assert found.overrides[0] in ("update.learning_rate=6e-06", "update.learning_rate=7e-06")


def test_single_large_steps_are_healthy(make):
    made = make(5)
    for key in (("kl_old", "nats/token", "k3"), ("clip_fraction", "share", "")):
        made.curves[key][[30, 90, 91, 150]] = 0.6
    assert said(learning_rate_too_high(made.run())) == []


def test_a_single_step_of_more_than_a_nat_is_enough(make, finding):
    made = make(5)
    made.curves[("kl_old", "nats/token", "k3")][120] = 2.0
    made.curves[("entropy", "nats/token", "exact")][121:] *= 0.01
    found = finding(learning_rate_too_high, made)
    assert (found.cause, found.since_step) == ("learning_rate", 120)


def test_a_leap_away_from_the_reference_tells_the_step_that_is_not_logged(make, finding, silent):
    made = make(6)
    made.drop("kl_old", "clip_fraction", "ratio_mean")
    made.kl(np.where(made.t < 0.01, 0.0, 80.0))  # 4 nats per token from step 2 on
    made.curves[("entropy", "nats/token", "exact")][2:] *= 0.1
    found = finding(learning_rate_too_high, made)
    assert (found.cause, found.since_step) == ("learning_rate", 1)
    assert "went from 0 to 4 nats/token in the one step 1" in found.evidence[0]
    made.kl(np.where(np.arange(made.n) == 50, 80.0, 0.0))  # one estimate, and back
    silent(learning_rate_too_high, made)


def test_a_leap_of_the_reference_kl_counts_for_nothing_where_the_step_itself_is_measured_as_small(make, silent):
    made = make(6)
    made.put("kl_old", 1e-5)
    made.kl(np.where(made.t < 0.01, 0.0, 80.0))
    made.curves[("entropy", "nats/token", "exact")][2:] *= 0.1
    silent(learning_rate_too_high, made)


def crawl(made):
    made.put("reward", 0.3 + 0.02 * made.noise())
    made.put("kl_old", 1e-8 * np.exp(made.noise()))
    made.put("clip_fraction", 0.0)
    made.put("entropy", 2.0 + 0.02 * made.noise(), "nats/token", "exact")
    made.kl(1e-5 * np.exp(0.1 * made.noise()))


@pytest.mark.parametrize("seed", range(5))
def test_nothing_moves_at_a_low_rate(seed, make, finding):
    made = make(seed)
    crawl(made)
    found = finding(learning_rate_too_low, made)
    assert (found.cause, found.severity) == ("learning_rate", "warning")
    # A hundred times is the most that is advised at once; the trainer then searches on.
    assert found.overrides == ("update.learning_rate=0.01", "autopilot.mode=act")


@pytest.mark.parametrize(
    ("kl_old", "updates", "advised"),
    [(5e-5, 4, "0.001"), (5e-6, 4, "0.003"), (0.0, 4, "0.001"), (5e-6, 1, "0.001")],
)
def test_the_advised_rate_brings_the_kl_of_a_step_to_what_is_usual(kl_old, updates, advised, make, finding):
    """From 1e-4 by the root of 0.005 / KL; tenfold where that KL is 0, or measured before the only update."""
    made = make(1)
    crawl(made)
    made.put("kl_old", kl_old)
    made.put("updates", updates)
    assert finding(learning_rate_too_low, made).overrides == (f"update.learning_rate={advised}",)


def test_steps_in_which_only_the_value_head_learns_tell_nothing_of_the_rate(make, finding):
    """After them 5e-6, a thousandth of 0.005: 1e-4 times the root, 32."""
    made = make(1)
    crawl(made)
    made.put("kl_old", np.where(np.arange(made.n) < 150, 0.0, 5e-6))
    assert finding(learning_rate_too_low, made).overrides == ("update.learning_rate=0.001",)
    made.settings["value_warmup_steps"] = 150
    assert finding(learning_rate_too_low, made).overrides == ("update.learning_rate=0.003",)


def test_no_rate_is_advised_where_gradients_are_clipped_to_nothing(make, finding):
    made = make(1)
    crawl(made)
    made.settings["max_grad_norm"] = 1e-9
    assert finding(learning_rate_too_low, made).overrides == ()


@pytest.mark.parametrize(("measured", "severity"), [(True, "warning"), (False, "info")])
def test_a_reward_that_crawls_up_is_a_fault_where_the_steps_are_measured_as_small(measured, severity, make, finding):
    made = make(3)
    crawl(made)
    made.put("reward", 0.3 + 0.1 * made.t + 0.004 * made.noise())  # by half a spread of the completions
    if not measured:
        made.drop("kl_old", "clip_fraction")
    found = finding(learning_rate_too_low, made)
    assert (found.cause, found.severity) == ("learning_rate", severity)
    assert "rises slowly" in found.message and found.overrides[0].startswith("update.learning_rate=")


@pytest.mark.parametrize(("kl_old", "named"), [(3e-6, True), (0.0, False)])
def test_a_kl_of_a_step_that_is_not_0_shows_several_updates_of_one_batch(kl_old, named, make):
    """Their number is not logged; a KL of exactly 0 may be that before the only update, and clips nothing by itself."""
    made = make(4)
    crawl(made)
    made.put("kl_old", kl_old)
    made.kl(0.4 * made.t)  # up to 0.02 nats per token
    made.drop("updates", "entropy")
    for name in ("epochs", "minibatches"):
        del made.settings[name]
    found = said(learning_rate_too_low(made.run()))
    assert [one.severity for one in found] == (["warning"] if named else [])


def test_a_kl_per_sequence_shows_that_the_policy_stands_where_no_length_is_logged(make, finding):
    made = make(3)
    crawl(made)
    # Without lengths; the median of the last tenth of the steps is 0.06 * 189.5 / 200.
    made.curves = {key: values for key, values in made.curves.items() if key[0] in ("reward", "reward_std", "kl_old")}
    made.put("kl_ref", 0.06 * made.t, "nats/sequence", "k1")
    assert "0.0568 nats/sequence" in " ".join(finding(learning_rate_too_low, made).evidence)
    made.put("kl_ref", 3.0 * made.t, "nats/sequence", "k1")
    assert said(learning_rate_too_low(made.run())) == []


def test_small_steps_that_clip_nothing_are_too_small_though_they_add_up(make, finding):
    made = make(4)
    crawl(made)
    made.put("kl_old", 3e-6)
    made.kl(0.4 * made.t)  # up to 0.02 nats per token
    assert finding(learning_rate_too_low, made).cause == "learning_rate"


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"lora": True, "learning_rate": 1e-6}, "learning_rate"),
        ({"dtype": "bfloat16", "learning_rate": 1e-6}, "learning_rate"),
        ({"warmup_steps": 1000}, "warm_up"),
    ],
)
def test_the_settings_name_why_it_is_too_low(settings, cause, make, finding):
    made = make(1)
    crawl(made)
    made.settings |= settings
    assert finding(learning_rate_too_low, made).cause == cause


def test_one_update_per_batch_measures_no_step(make, finding):
    made = make(2)
    crawl(made)
    made.put("updates", 1.0)
    made.put("kl_old", 0.0)
    said = " ".join(finding(learning_rate_too_low, made).evidence)
    assert "clipped" not in said
    assert "one step's updates" not in said


@pytest.mark.parametrize(("per_token", "named"), [(0.008, True), (0.2, False)])
def test_one_update_per_batch_moves_as_far_as_the_kl_to_the_reference_says(per_token, named, make):
    """Of 200 steps, so that 0.008 nats are 4e-5 a step, and 0.2 nats a thousandth."""
    made = make(2)
    crawl(made)
    made.put("updates", 1.0)
    made.put("kl_old", 0.0)
    made.drop("entropy")
    made.kl(per_token * 20 * made.t)
    found = said(learning_rate_too_low(made.run()))
    assert [one.cause for one in found] == (["learning_rate"] if named else [])
    assert not named or "nats/token a step" in " ".join(found[0].evidence)


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.put("reward", np.linspace(0.2, 0.6, made.n)),
        lambda made: made.put("kl_old", 1e-3),
        lambda made: made.put("clip_fraction", 0.05),
        lambda made: made.kl(np.linspace(0.0, 10.0, made.n)),
        lambda made: made.kl(np.zeros(made.n)),
        lambda made: made.put("no_signal", 1.0),
    ],
    ids=["reward rises", "steps", "clips", "kl grows", "kl is zero", "no signal"],
)
def test_whatever_moves_or_has_another_reason_clears_it(change, make):
    made = make(3)
    crawl(made)
    change(made)
    assert said(learning_rate_too_low(made.run())) == []


def test_an_entropy_that_starts_at_0_is_no_sign_of_stillness(make):
    made = make(3)
    crawl(made)
    made.put("entropy", 0.0, "nats/token", "exact")
    (found,) = learning_rate_too_low(made.run())
    assert "entropy" not in " ".join(found.evidence)


@pytest.mark.parametrize(("sizes", "named"), [((0.4, 0.5, 0.3), True), ((0.2, 0.2, 0.2), False), ((0.6, 0.6), False)])
def test_few_large_steps_that_leave_nothing_of_the_policy_are_enough(sizes, named, make):
    """A policy without entropy cannot move on: three large steps in a row, of a nat together."""
    made = make(5)
    kl_old = made.curves[("kl_old", "nats/token", "k3")]
    kl_old[20 : 20 + len(sizes)], kl_old[20 + len(sizes) :] = sizes, 1e-9
    made.curves[("entropy", "nats/token", "exact")][23:] *= 0.01
    found = said(learning_rate_too_high(made.run()))
    assert [one.since_step for one in found] == ([20] if named else [])


def plunged(made, best, until=40, within=10):
    """Let a policy lose its entropy within so many steps, at 0.3 of a reward of which single completions earn more."""
    t = np.arange(made.n)
    made.put("entropy", 2.0 * np.exp(-6.0 * np.clip((t - until) / within, 0.0, 1.0)), "nats/token", "exact")
    made.drop("clip_fraction")
    made.curves.pop(("entropy", "nats/token", "sampled"), None)
    made.put("reward", np.where(t < until + within, 0.1, 0.3) + 0.005 * made.noise())
    made.put("reward_max", best, "reward")
    made.put("kl_old", np.where(t < until + within, 0.04, 1e-7))


def test_a_policy_that_is_soon_sure_of_less_than_it_had_drawn_was_moved_too_far(make, finding):
    made = make(0)
    plunged(made, best=0.8)
    found = finding(learning_rate_too_high, made)
    assert found.since_step is not None and 28 <= found.since_step <= 40
    # 0.04 is 8 times 0.005: one of two passes, and a rate of 1 / 1.4; the end without steps is left out.
    assert found.overrides == ("update.learning_rate=7e-05", "update.epochs=1")


@pytest.mark.parametrize(("best", "within"), [(0.32, 10), (0.8, 120)])
def test_sure_of_the_best_that_it_drew_or_slowly_sure_is_not_too_fast(best, within, make):
    made = make(1)
    plunged(made, best, within=within)
    assert said(learning_rate_too_high(made.run())) == []


def test_a_rate_is_cut_so_far_that_the_entropy_would_last_100_steps(make, finding):
    made = make(2)
    plunged(made, best=0.8, until=0, within=6)
    # Below a tenth of its start from step 4 on: 100 / 4, half of it by one pass for two; the KL alone asks for 2.8.
    assert finding(learning_rate_too_high, made).overrides == ("update.learning_rate=8e-06", "update.epochs=1")


def test_a_first_gradient_that_is_not_finite_was_made_by_no_step(make):
    made = make(3)
    overshoot(made, since=0)
    assert said(learning_rate_too_high(made.run())) != []
    made.curves[("grad_norm", "", "")][:] = np.nan
    assert said(learning_rate_too_high(made.run())) == []


@pytest.mark.parametrize(("best", "cause"), [(1.0, "learning_rate"), (0.52, None)])
def test_small_steps_are_too_slow_for_a_reward_that_rises_and_falls_short(best, cause, make):
    made = make(4)
    made.put("reward", 0.2 + 0.3 * made.t + 0.002 * made.noise())
    made.put("reward_std", 0.1)
    made.put("reward_max", best, "reward")
    made.put("kl_old", 4e-6 * np.exp(0.1 * made.noise()))
    made.put("clip_fraction", 0.0)
    made.kl(TOKENS * 0.01 * made.t)
    found = [result for result in learning_rate_too_low(made.run()) if result.state == "found"]
    assert [(f.cause, f.severity) for f in found] == ([(cause, "warning")] if cause else [])


@pytest.mark.parametrize(("steps", "level", "found"), [(400, 0.35, True), (25, 0.35, False), (400, 0.97, False)])
def test_hundreds_of_steps_beside_the_reference_are_a_sign(steps, level, found, make):
    made = make(5, steps)
    made.put("reward", level + 0.01 * np.clip(made.rng.normal(size=made.n), -2, 2))
    made.put("updates", 1.0)
    made.drop("entropy", "kl_old", "clip_fraction")
    made.kl(TOKENS * 0.0007 * np.minimum(1.0, (np.arange(made.n) + 1) / 50))
    assert bool(said(learning_rate_too_low(made.run()))) == found


@pytest.mark.parametrize(
    ("far", "entropy", "kl_old", "coefficient", "slow"),
    [
        (1.0, 1.9, 2e-4, 0.01, True),
        (1.0, 1.9, 0.003, 0.01, False),  # the steps are of the usual size
        (1.0, 1.0, 2e-4, 0.01, False),  # the policy has moved far
        (0.45, 1.9, 2e-4, 0.01, False),  # the best is near
        (1.0, 1.9, 2e-4, 2.0, False),  # the penalty holds it
    ],
)
def test_a_reward_that_still_rises_near_where_the_policy_began_is_slow(far, entropy, kl_old, coefficient, slow, make):
    made = make(6)
    made.put("reward", 0.2 + 0.25 * made.t + 0.004 * made.noise())
    made.put("reward_std", 0.2)
    made.put("reward_max", far, "reward")
    made.put("kl_old", kl_old)
    made.put("kl_coef", coefficient)
    made.kl(0.02 * made.t)
    made.curves.pop(("entropy", "nats/token", "sampled"))
    made.put("entropy", np.linspace(2.0, entropy, made.n), "nats/token", "exact")
    found = [result for result in learning_rate_too_low(made.run()) if result.state == "found"]
    advised = ("slow", "info", ("update.learning_rate=0.0003",))
    assert [(f.cause, f.severity, f.overrides) for f in found] == ([advised] if slow else [])


def test_an_entropy_that_is_0_or_below_at_the_start_is_not_lost(make):
    made = make(7)
    for start in (0.0, -1.0):
        made.put("entropy", np.linspace(start, -3.0, made.n), "nats/token", "exact")
        assert entropy_lost_since(made.run()) is None
