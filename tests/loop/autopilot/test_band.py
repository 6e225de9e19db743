"""The band of the KL of a step: long answers, a sure policy and gradients that point back lower it, lost entropy holds
the rate."""

from dataclasses import replace

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.core.types import Finding
from steadyrl.loop.autopilot.action import KL_STEP, Context
from steadyrl.loop.autopilot.band import (
    Band,
    entropy_share,
    healthy_band,
    length_share,
    narrowed_band,
    narrowing_after,
    observe,
)
from steadyrl.loop.autopilot.decide import decide
from steadyrl.loop.checkpoint import PilotState

SETTINGS = config.resolve(
    {"rewards": {"length": 1.0}},
    ("autopilot.mode=act", "update.learning_rate=0.01", "update.schedule=linear", "run.steps=40"),
)
# An entropy of 0.9 leaves the band as it is configured: 0.06 to 0.3, the middle 0.134.
QUIET = {"learning_rate": 0.01, "reward/std": 1.0, "reward/mean": 0.0, "entropy": 0.9, "completion/length": 10.0}


def finding(check, severity="warning"):
    return Finding(check, severity, 3, "unknown", "It is so.", ("as seen",), "Do something.")


def seen(cosines, entropies=None):
    """Return the state after steps with these cosines and entropies."""
    pilot = PilotState()
    for cosine, entropy in zip(cosines, entropies or [0.9] * len(cosines), strict=True):
        pilot = observe(pilot, {"grad_cosine": cosine, "entropy": entropy}, None)
    return pilot


@pytest.mark.parametrize(("length", "high"), [
    (None, 0.3), (0.0, 0.3), (10.0, 0.3), (33.0, 0.3), (100.0, 0.1), (1000.0, 0.01),
])  # fmt: skip
def test_the_band_ends_at_ten_nats_per_sequence(length, high):
    band = healthy_band(PilotState(), {"completion/length": length}, SETTINGS)
    assert (band.low, band.high) == (pytest.approx(high / 5), pytest.approx(high)), "its width stays"
    unsure = healthy_band(PilotState(first_entropy=2.0), {"completion/length": length}, SETTINGS)
    assert unsure.high == pytest.approx(min(1.05, 10.0 / (length or 1.0))), "however unsure the policy is"


@pytest.mark.parametrize(("narrowing", "agreement", "after"), [
    (1.0, 0.3, 1.0), (1.0, -0.05, 1.0), (1.0, -0.2, 0.8), (0.5, -0.2, 0.4), (0.5, -0.05, 0.5), (0.5, 0.0, 0.55),
    (0.01, -0.9, 0.01),
])  # fmt: skip
def test_the_share_falls_while_gradients_point_back_and_returns_while_they_agree(narrowing, agreement, after):
    assert narrowing_after(narrowing, agreement) == pytest.approx(after)


def test_gradients_that_agree_or_are_noise_leave_the_band_as_it_is():
    noise = np.random.default_rng(0).normal(scale=0.1, size=400)
    assert seen([0.2] * 50).narrowing == 1.0
    assert seen(list(noise)).narrowing > 0.5
    assert seen([None, float("nan"), None]) == PilotState(first_entropy=0.9)


def test_gradients_that_point_back_lower_both_ends_and_one_bad_step_does_not():
    back = seen([0.1, *[-0.3] * 20])
    assert back.agreement == pytest.approx(-0.3, abs=0.01)
    assert 0.01 <= back.narrowing < 0.05
    band, whole = narrowed_band(back, QUIET, SETTINGS), healthy_band(back, QUIET, SETTINGS)
    assert band.high / whole.high == pytest.approx(back.narrowing) == pytest.approx(band.low / whole.low)
    assert seen([0.1, 0.1, -0.5, 0.1]).narrowing == 1.0


def test_on_an_overshooting_quadratic_the_rate_comes_down_until_gradients_agree():
    """Gradient descent on x^2 / 2 with noise: from a rate of 1 on, each step goes past the minimum."""
    rng, pilot, rate, x, mean, rates = np.random.default_rng(1), PilotState(), 1.7, 1.0, 0.0, []
    for _ in range(150):
        gradient = x + 0.1 * rng.normal()
        pilot = observe(pilot, {"grad_cosine": float(np.sign(gradient * mean))}, None)
        mean = 0.5 * mean + 0.5 * gradient
        x -= rate * pilot.narrowing**0.5 * gradient  # the KL of a step grows with the square of the rate
        rates.append(rate * pilot.narrowing**0.5)
    assert rates[0] > 1.5 and max(rates[-50:]) < 1.2


def follow(records, findings=None):
    """Return the state after decisions about these steps."""
    pilot = PilotState(found_scale=1.0)
    for step, record in enumerate(records, 1):
        rate = 0.01 * pilot.scale
        pilot = decide(pilot, {**QUIET, "learning_rate": rate, **record}, findings, Context(SETTINGS, step, {})).pilot
    return pilot


def test_the_rate_follows_the_narrowed_band_and_the_line_says_why():
    steps = [{KL_STEP: 0.1, "grad_cosine": cosine} for cosine in [0.1] * 3 + [-0.4] * 12]
    assert follow(steps[:3]).scale == 1.0
    assert follow(steps).scale < 0.2
    narrow = PilotState(found_scale=1.0, narrowing=0.1, agreement=-0.3)
    record = {**QUIET, KL_STEP: 0.25, "grad_cosine": -0.3}
    (line,) = decide(narrow, record, None, Context(SETTINGS, 9, {})).lines
    assert "gradients pointed back" in line["evidence"][1] and "-0.30" in line["evidence"][1]


@pytest.mark.parametrize(("entropy", "share"), [
    (None, 1.0), (float("nan"), 1.0), (0.9, 1.0), (1.8, 3.5), (1.272792, 2.0), (0.45, 0.25), (0.01, 0.2), (0.0, 0.2),
])  # fmt: skip
def test_the_band_follows_the_square_of_the_entropy_that_the_run_begins_with(entropy, share):
    assert entropy_share(entropy) == pytest.approx(share)
    record = {**QUIET, "entropy": entropy, "completion/length": 5.0}
    band, later = (
        narrowed_band(PilotState(), record, SETTINGS),
        narrowed_band(PilotState(first_entropy=0.45), QUIET, SETTINGS),
    )
    assert band.high == pytest.approx(0.3 * share) and band.low == pytest.approx(0.06 * share)
    assert later.high == pytest.approx(0.075), "only the beginning counts"


def test_a_rate_that_does_not_fall_has_a_quarter_of_the_band():
    constant = config.resolve(config.dump(SETTINGS), ("update.schedule=constant",))
    assert narrowed_band(PilotState(), QUIET, constant) == Band(0.015, 0.075)


@pytest.mark.parametrize(("steps", "share"), [(1, 1.0), (40, 1.0), (80, 0.5), (640, 0.0625), (10_000, 0.0625)])
def test_the_band_falls_with_the_steps_of_a_long_run_and_the_line_says_why(steps, share):
    assert length_share(steps) == share
    long = config.resolve(config.dump(SETTINGS), (f"run.steps={steps}",))
    assert narrowed_band(PilotState(), QUIET, long).high == pytest.approx(0.3 * share)
    (line,) = decide(PilotState(), {**QUIET, KL_STEP: 0.59 * share}, None, Context(long, 1, {})).lines
    assert ("the noise of" in " ".join(line["evidence"])) == (share < 1.0)


def test_the_rate_of_a_sure_policy_settles_lower_and_the_line_says_why():
    steps = [{KL_STEP: 0.2 / 4, "entropy": 0.45}] * 4
    assert follow(steps).scale == pytest.approx(follow([{KL_STEP: 0.2, "entropy": 0.9}] * 4).scale)
    pilot = PilotState(first_entropy=0.45, narrowing=0.5, agreement=-0.2)
    (line,) = decide(pilot, {**QUIET, KL_STEP: 0.07, "entropy": 0.4}, None, Context(SETTINGS, 1, {})).lines
    assert "0.25 times the configured one" in line["evidence"][1] and "0.45 nats/token" in line["evidence"][1]
    assert "0.5 times that, because gradients" in line["evidence"][2]


def test_a_policy_that_lost_its_entropy_is_not_driven_on_and_may_still_slow_down():
    still = {KL_STEP: 1e-4}
    assert follow([still] * 5).scale > 1.5
    assert follow([still, *[{**still, "entropy": 0.2}] * 5]).scale == pytest.approx(1.3)
    assert follow([{KL_STEP: 0.1}, {KL_STEP: 0.9, "entropy": 0.1}]).scale < 1.0
    back = follow([still, {**still, "entropy": 0.2}, still])
    assert back.held_by is None and back.scale == pytest.approx(1.3**2), "it rises again once the entropy is back"


@pytest.mark.parametrize(("check", "severity", "held"), [
    ("answers_alike", "warning", True), ("length_collapse", "critical", True), ("entropy_collapse", "warning", True),
    ("entropy_collapse", "info", False), ("reward_scale", "warning", False),
])  # fmt: skip
def test_a_finding_about_entropy_or_text_holds_the_rate_until_the_doctor_finds_it_no_longer(check, severity, held):
    pilot = observe(PilotState(), {"entropy": 2.0}, [finding(check, severity)])
    assert pilot.held_by == (check if held else None)
    assert observe(pilot, {"entropy": 2.0}, None).held_by == pilot.held_by, "the doctor did not look"
    assert observe(pilot, {"entropy": 2.0}, ()).held_by is None


def test_a_step_that_is_taken_back_leaves_no_trace_in_the_band():
    record = {**QUIET, KL_STEP: 5.0, "grad_cosine": -0.9}
    action = decide(PilotState(), record, None, Context(SETTINGS, 4, {}, (3,)))
    assert action.back_to == 3
    assert replace(action.pilot, scale=1.0, reported_scale=1.0, steps_taken_back=0) == PilotState()


def test_a_step_of_long_answers_is_taken_back_by_its_nats_per_sequence():
    long, short = {**QUIET, KL_STEP: 0.5, "completion/length": 1000.0}, {**QUIET, KL_STEP: 0.5}
    assert decide(PilotState(), long, None, Context(SETTINGS, 4, {}, (3,))).back_to == 3
    assert decide(PilotState(), short, None, Context(SETTINGS, 4, {}, (3,))).back_to is None


def test_the_search_takes_back_what_leaps_for_the_share_of_its_rate_and_later_steps_go_back_only_from_afar():
    """At a tenth of the rate the band ends at 0.3 x 0.0316 = 0.0095."""
    warm = {**QUIET, "learning_rate": 0.001, KL_STEP: 0.1}
    searching, found = PilotState(), PilotState(found_scale=1.0)
    assert decide(searching, warm, None, Context(SETTINGS, 4, {}, (3,))).back_to == 3
    assert decide(searching, {**warm, KL_STEP: 0.015}, None, Context(SETTINGS, 4, {}, (3,))).back_to is None
    assert decide(found, warm, None, Context(SETTINGS, 4, {}, (3,))).back_to is None
    assert decide(found, {**warm, KL_STEP: 0.7}, None, Context(SETTINGS, 4, {}, (3,))).back_to == 3


def test_below_half_of_the_rate_the_schedule_decides_and_the_band_bounds_it():
    """Aimed at the middle, 0.134 x 0.3 ^ 1.5 = 0.022, the first would rise and the second fall."""
    low = {**QUIET, "learning_rate": 0.003}
    rewards = [0.1] * 12
    for kl, scale in ((0.012, 1.0), (0.045, 1.0), (0.2, 0.5), (0.001, 1.3)):
        context = Context(SETTINGS, 30, {}, (), rewards)
        after = decide(PilotState(found_scale=1.0), {**low, KL_STEP: kl}, None, context).pilot.scale
        assert after == pytest.approx(scale)


def test_a_band_times_a_factor_keeps_its_width():
    assert Band(0.06, 0.3).times(0.5) == Band(0.03, 0.15)
