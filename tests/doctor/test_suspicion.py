"""A verdict that could not be reached names what to look for first; one that could says what stays hidden."""

import numpy as np
import pytest

from steadyrl.doctor.examine import examine
from steadyrl.doctor.series import Series
from tests.doctor.checks.series_for_values import healthy, make_run, noise, rise

N = 120
SIGNAL = ["no_signal", "reward_std_within", "reward_std", "advantage_std", "reward_max", "reward_min"]
LENGTH = ["length", "truncated", "length_max"]


@pytest.mark.parametrize(("without", "hidden"), [(["grad_norm"], "updates"), (SIGNAL, "groups"), (LENGTH, "cut off")])
def test_a_reward_that_rises_is_healthy_where_one_of_the_others_is_not_logged(without, hidden):
    run = healthy(n=N, algorithm="grpo", without=without)
    diagnosis = examine(run)
    assert diagnosis.verdict == "healthy"
    assert len(diagnosis.minor) == 1 and hidden in diagnosis.minor[0]


def test_of_a_log_with_a_reward_that_rises_and_little_else_each_gap_is_named():
    diagnosis = examine(healthy(n=N, algorithm="grpo", without=[*SIGNAL, *LENGTH, "grad_norm"]))
    assert diagnosis.verdict == "healthy"
    assert [gap.partition(" (")[0] for gap in diagnosis.minor] == [
        "the learning signal", "the length of the answers", "the gradient"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.05, 0.11, 0.28, 0.33, 0.52, 0.55, 0.74, 0.78, 0.93, 0.97], "healthy"),
        ([0.05, 0.71, 0.08, 0.53, 0.32, 0.75, 0.24, 0.78, 0.43, 0.67], "too little to judge"),
    ],
)
def test_ten_rows_far_apart_show_a_course_if_it_is_clear(values, verdict):
    steps = 40 * np.arange(1, 11)
    reward = Series("reward", "", "", "reward", steps, np.array(values))
    assert examine(make_run({"reward": reward}, trainer="unknown")).verdict == verdict


def test_a_reward_that_is_level_needs_the_gradient_too():
    level = 0.4 + noise(np.random.default_rng(5), N, 0.03)
    diagnosis = examine(healthy(n=N, without=["grad_norm"], reward=level))
    assert diagnosis.verdict != "healthy" and diagnosis.minor == ()


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (np.zeros(7), "it is 0 in 7 of 7 rows"),
        (np.array([0, 0, 0, 0.5, 0, 0, 0.25]), "the reward is 0 in 71% of the 7 rows"),
        (np.array([0.6, 0.5, 0.6, 0.5, 0.4, 0.5, 0.2, 0.3]), "a reward that falls"),
        (np.array([0.6, 0.5, 0.6, 0.5, 0.5, 0.5, 0.6, 0.5]), "a reward that does not rise"),
        (rise(8, 0.1, 0.8), ""),
    ],
)
def test_a_short_log_names_what_to_look_for_first(reward, words):
    diagnosis = examine(make_run({"reward": reward}, trainer="unknown"))
    assert diagnosis.verdict == "too little to judge"
    assert words in diagnosis.suspicion and bool(words) == bool(diagnosis.suspicion)


def test_nothing_is_suspected_of_a_run_that_was_judged():
    assert examine(healthy(n=N)).suspicion == ""


def test_a_fall_is_suspected_with_how_often_chance_makes_one():
    # Of the 28 pairs of 8 values 5 rise: Kendall's S is 5 - 23 = -18; (18 - 1) / 8.083 = 2.10, and a normal variable
    # exceeds that in 1.8 of 100 cases.
    reward = np.array([0.7, 0.72, 0.6, 0.65, 0.4, 0.5, 0.2, 0.45])
    assert np.sign(reward[None, :] - reward[:, None])[np.triu_indices(8, 1)].sum() == -18
    assert "in 2 of 100 logs" in examine(make_run({"reward": reward}, trainer="unknown")).suspicion


def test_a_part_for_being_right_that_never_pays_contradicts_health():
    parts = {"reward_part__check_numbers": rise(N, 0.1, 0.6), "reward_part__check_answer": np.zeros(N)}
    run = healthy(n=N, algorithm="grpo", without=["reward_part/retrieval", "reward_part/structure"], **parts)
    diagnosis = examine(run)
    assert ("reward_part_idle", "never_right", False) in [(f.check, f.cause, f.harms) for f in diagnosis.findings]
    assert diagnosis.verdict == "too little to judge"
    assert "these parts are 0 throughout: check_answer" in diagnosis.missing[0]
    form = {**parts, "reward_part__xml_format": parts["reward_part__check_answer"]}
    del form["reward_part__check_answer"]
    run = healthy(n=N, algorithm="grpo", without=["reward_part/retrieval", "reward_part/structure"], **form)
    assert examine(run).verdict == "healthy"
