import numpy as np
import pytest

from steadyrl.doctor.checks.entropy import entropy_collapse, entropy_explosion, entropy_held, entropy_is_a_sum
from tests.doctor.checks.series_for_values import make_run, nearest, said, series


def lose_entropy(made, to=0.05, since=60):
    """Let the entropy fall from 2 nats to ``to`` within 30 steps, and the reward stay where it is."""
    t = np.arange(made.n)
    fallen = np.clip((t - since) / 30.0, 0.0, 1.0)
    made.put("entropy", 2.0 * (to / 2.0) ** fallen * np.exp(0.04 * made.noise()), "nats/token", "exact")
    made.curves.pop(("entropy", "nats/token", "sampled"))
    made.put("reward", 0.3 + 0.02 * made.noise())


@pytest.mark.parametrize("seed", range(5))
def test_large_updates_when_it_falls_are_the_cause(seed, make, finding):
    made = make(seed)
    lose_entropy(made)
    made.put("clip_fraction", np.where(np.arange(made.n) < 58, 0.08, 0.45))
    found = finding(entropy_collapse, made)
    assert (found.cause, found.severity, nearest(found)) == ("learning_rate", "critical", "learning_rate_too_high")
    assert 60 < found.since_step < 75  # half of it is lost after 5.6 of 30 steps
    assert "update.learning_rate=3e-05" in found.overrides


def test_large_updates_long_after_the_fall_are_not_its_cause(make, finding):
    made = make(0)
    lose_entropy(made)
    made.put("clip_fraction", np.where(np.arange(made.n) < 150, 0.08, 0.45))
    assert finding(entropy_collapse, made).cause == "unknown"


def test_rewards_that_never_differ_leave_only_noise(make, finding):
    made = make(1)
    lose_entropy(made)
    made.put("no_signal", 0.97)
    found = finding(entropy_collapse, made)
    assert (found.cause, nearest(found)) == ("constant_reward", "no_signal_groups")


def held_out(made, later):
    made.put("heldout/reward", np.where(np.arange(made.n) == 0, 0.3, later), "reward")


@pytest.mark.parametrize(("later", "cause", "severity"), [(0.3, "exploitation", "warning"), (0.45, "learned", "info")])
def test_held_out_rewards_tell_learning_from_exploitation(later, cause, severity, make, finding):
    made = make(3)
    lose_entropy(made)
    made.put("reward", np.linspace(0.2, 0.8, made.n) + 0.02 * made.noise())
    held_out(made, later)
    found = finding(entropy_collapse, made)
    assert (found.cause, found.severity) == (cause, severity)


def test_a_reward_that_was_lost_again_does_not_excuse_the_collapse(make, finding):
    made = make(4)
    lose_entropy(made)
    t = np.arange(made.n)
    made.put("reward", np.where(t < 70, 0.2 + 0.008 * t, 0.3) + 0.02 * made.noise())
    assert finding(entropy_collapse, made).severity == "critical"


def test_a_reward_that_rose_on_for_long_and_was_lost_later_is_not_lost_by_the_collapse(make, finding):
    made = make(4, 300)
    t = np.arange(made.n)
    made.put("entropy", np.where(t < 60, 0.5 - 0.007 * t, 0.08) * (1.0 + 0.02 * made.noise()))
    made.put("reward", np.where(t < 180, 0.1 + 0.002 * t, -0.4) + 0.02 * made.noise())
    found = finding(entropy_collapse, made)
    assert (found.cause, found.severity) == ("learned", "info")
    assert found.evidence[-1].startswith("the reward rose on to 0.4")


def test_the_bonus_is_named_only_where_it_is_known(make, finding):
    made = make(5)
    lose_entropy(made, to=0.4)
    found = finding(entropy_collapse, made)
    assert (found.cause, found.severity) == ("unknown", "warning")
    assert "the entropy bonus is 0" in found.evidence
    del made.settings["entropy_coef"]
    assert "bonus" not in " ".join(finding(entropy_collapse, made).evidence)


def test_without_a_reward_a_collapse_is_no_more_than_a_warning(make, finding):
    made = make(6)
    lose_entropy(made)
    made.drop("reward")
    assert finding(entropy_collapse, made).severity == "warning"


def test_a_low_entropy_that_does_not_fall_is_healthy(make):
    made = make(7)
    lose_entropy(made, to=0.05, since=-100)
    assert said(entropy_collapse(made.run())) == []


def test_a_fall_to_forty_per_cent_is_healthy_whatever_the_reward_does(make):
    made = make(8)
    lose_entropy(made, to=0.8)
    assert said(entropy_collapse(made.run())) == []


def test_an_entropy_of_unknown_length_does_not_tell(make, unclear):
    made = make(9)
    made.drop("entropy", "length")
    made.put("entropy", 40.0, "nats/sequence", "sampled")
    unclear(entropy_collapse, made)
    unclear(entropy_explosion, made)


def gain_entropy(made, to=10.0, since=60):
    lose_entropy(made, to, since)


def test_large_updates_when_it_rises_are_the_cause(make, finding):
    made = make(0)
    gain_entropy(made)
    made.put("kl_old", np.where(np.arange(made.n) < 58, 0.01, 0.5))
    found = finding(entropy_explosion, made)
    # ln 50000 = 10.8: blind drawing, with a flat reward
    assert (found.cause, found.severity) == ("learning_rate", "critical")


def test_a_bonus_that_outweighs_the_reward_is_named(make, finding):
    made = make(1)
    gain_entropy(made, to=6.0)
    made.settings["entropy_coef"] = 0.02
    found = finding(entropy_explosion, made)
    assert (found.cause, found.overrides) == ("entropy_coef", ("algorithm.args.entropy_coef=0.002",))


def test_updates_that_follow_noise_raise_it(make, finding):
    made = make(2)
    gain_entropy(made, to=6.0)
    found = finding(entropy_explosion, made)
    assert (found.cause, found.severity) == ("unknown", "warning")


def test_warped_sampling_flattens_the_policy(make, finding):
    made = make(3)
    gain_entropy(made, to=6.0)
    exact = made.curves[("entropy", "nats/token", "exact")]
    made.put("entropy", 0.7 * exact, "nats/token", "sampled")
    assert finding(entropy_explosion, made).cause == "warped_sampling"


def test_a_rise_with_the_reward_is_information(make, finding):
    made = make(4)
    gain_entropy(made, to=6.0)
    made.put("reward", np.linspace(0.2, 0.8, made.n) + 0.02 * made.noise())
    found = finding(entropy_explosion, made)
    assert (found.cause, found.severity) == ("unknown", "info")


def test_a_doubled_entropy_is_healthy(make):
    made = make(5)
    gain_entropy(made, to=4.0)
    assert said(entropy_explosion(made.run())) == []


@pytest.mark.parametrize("vocabulary", [50_000, None])
def test_a_sum_over_the_completion_is_read_as_one(vocabulary, make, finding):
    made = make(0)
    made.drop("entropy")
    made.settings["vocabulary"] = vocabulary
    made.put("entropy", 40.0 + made.noise(), "nats/token", "exact")  # 20 tokens of 2 nats
    found = finding(entropy_is_a_sum, made)
    assert (found.cause, found.severity) == ("sequence_sum", "info")


@pytest.mark.parametrize(("unit", "severity"), [("", "info"), ("nats/token", "warning")])
def test_without_a_unit_and_a_length_a_value_above_ln_v_is_a_sum(unit, severity, make, finding):
    made = make(3)
    made.drop("entropy", "length")
    made.put("entropy", 60.0 + made.noise(), unit)
    assert finding(entropy_is_a_sum, made).severity == severity


def test_a_value_above_ln_v_that_no_length_explains_is_unknown(make, finding):
    made = make(1)
    made.drop("entropy")
    made.put("entropy", 4000.0, "nats/token", "exact")
    assert finding(entropy_is_a_sum, made).cause == "unknown"


def test_a_language_model_that_starts_uniform_lacks_its_weights(make, finding):
    made = make(2)
    made.drop("entropy")
    made.put("entropy", 10.6, "nats/token", "exact")
    assert finding(entropy_is_a_sum, made).cause == "unknown"


def test_a_toy_may_start_uniform(make):
    made = make(3)
    made.drop("entropy")
    made.settings["vocabulary"] = 27
    made.put("entropy", 3.2, "nats/token", "exact")
    assert said(entropy_is_a_sum(made.run())) == []


def test_what_is_known_to_be_a_sum_is_not_doubted(make):
    made = make(4)
    made.drop("entropy")
    made.put("entropy", 40.0, "nats/sequence", "sampled")
    assert said(entropy_is_a_sum(made.run())) == []


@pytest.mark.parametrize(
    ("has", "advice"),
    [
        ({}, {"algorithm.args.clip_high=0.28", "algorithm.args.entropy_coef=0.01"}),
        ({"clip": 0.28, "entropy_coef": 0.02}, set()),
        ({"clip": 0.3, "entropy_coef": 0.0}, {"algorithm.args.entropy_coef=0.01"}),
    ],
)
def test_what_holds_the_entropy_up_already_is_not_advised(make, finding, has, advice):
    made = make(0)
    lose_entropy(made)
    made.settings |= has
    found = finding(entropy_collapse, made)
    assert found.cause == "unknown" and {o for o in found.overrides if "clip" in o or "entropy" in o} == advice


def test_an_entropy_of_unknown_unit_that_falls_to_a_fraction_collapsed_unless_the_answers_shrank():
    entropy = series("entropy", 1.5 * np.exp(-np.arange(30) / 5.0) + 0.02, unit="", estimator="")
    found = entropy_collapse(make_run({"entropy": entropy, "reward": np.full(30, 0.3)}, "grpo", "unknown"))
    assert [(f.state, f.since_step) for f in found] == [("found", 5)]  # below half of 1.5 exp(-1 / 5) + 0.02
    shrinking = {"entropy": entropy, "length": np.linspace(300.0, 10.0, 30) * np.linspace(1.0, 0.3, 30)}
    assert entropy_collapse(make_run(shrinking, "grpo", "unknown"))[0].state == "unknown"


@pytest.mark.parametrize(("longer", "state"), [(1.5, "found"), (8.0, "unknown")])
def test_an_entropy_of_unknown_unit_that_grows_by_more_than_the_answers_exploded(longer, state):
    entropy = series("entropy", np.linspace(0.4, 3.0, 40), unit="", estimator="")
    logged = {"entropy": entropy, "length": np.linspace(90.0, 90.0 * longer, 40), "reward": np.full(40, 0.3)}
    assert entropy_explosion(make_run(logged, "grpo", "unknown"))[0].state == state


def hold_entropy(made, bonus, reward):
    made.put("entropy", 2.0 + 0.02 * made.noise(), "nats/token", "exact")
    made.put("reward", reward)
    made.settings |= {"entropy_coef": bonus, "whitened": True}


@pytest.mark.parametrize(("bonus", "advised"), [(0.4, "0.04"), (0.3, "0.03"), (0.1, None), (0.01, None)])
def test_a_bonus_whose_balance_is_near_the_highest_entropy_holds_it_there(bonus, advised, make, finding):
    """Of 20 tokens: 1 / (2 x 0.3^2 x 20) is 0.28 nats per token, less than a fifth of 2; with 0.1 it is 2.5."""
    made = make(0)
    hold_entropy(made, bonus, 0.3 + 0.02 * made.noise())
    if advised is None:
        assert [result.state for result in entropy_held(made.run())] == ["ok"]
        return
    found = finding(entropy_held, made)
    assert (found.severity, found.overrides) == ("warning", (f"algorithm.args.entropy_coef={advised}",))
    made.put("reward", 0.3 + 0.2 * made.t + 0.01 * made.noise())
    assert finding(entropy_held, made).severity == "info"


def test_a_bonus_holds_nothing_that_is_solved_or_has_lost_entropy(make, finding):
    made = make(0)
    hold_entropy(made, 0.4, np.minimum(0.1 + 0.02 * np.arange(made.n), 1.0))
    assert finding(entropy_held, made).cause == "bonus"
    made.put("reward_max", 1.0, "reward")
    assert [result.state for result in entropy_held(made.run())] == ["ok"]
    hold_entropy(made, 0.4, 0.3)
    made.put("entropy", 2.0 - 1.0 * made.t, "nats/token", "exact")
    assert [result.state for result in entropy_held(made.run())] == ["ok"]
