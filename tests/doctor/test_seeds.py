"""Three seeds of one config against three of another."""

from dataclasses import replace

import numpy as np
import pytest

from steadyrl.doctor.seeds import across, sentences, settings_across
from tests.doctor.checks.series_for_values import make_run


def runs(levels, rate=1e-6, **columns):
    """Return a run for each late level of the reward, with seeds as settings."""
    return [
        replace(
            make_run(
                {"reward": np.full(25, level), **{name: np.full(25, values[i]) for name, values in columns.items()}}
            ),
            settings={"learning_rate": rate},
            config={"seed": i, "lr": rate},
            keys={"learning_rate": "lr"},
        )
        for i, level in enumerate(levels)
    ]


def test_levels_that_seeds_explain_do_not_differ_and_those_that_they_do_not_differ():
    """Welch by hand: means .5 and .9, variances 1e-4 each: t = .4 / sqrt(2e-4 / 3) = 49, 4 degrees of freedom."""
    one = runs([0.49, 0.50, 0.51], length=[100.0, 140.0, 180.0])
    other = runs([0.89, 0.90, 0.91], length=[120.0, 160.0, 200.0], rate=5e-6)
    found = {entry.quantity: entry for entry in across(one, other)}
    assert found["reward"].differs and found["reward"].alone
    assert not found["length"].differs and not found["length"].alone  # t = 20 / 32.7 = 0.61
    assert [(s.name, s.values) for s in settings_across(one, other)] == [("learning_rate", (1e-6, 5e-6))]
    lines = sentences(one, other)
    assert lines[0].startswith("3 runs against 3: learning_rate is set differently, 1e-06 and 5e-06; reward differs by")
    assert "differs at the end: reward: 0.5 (0.49 to 0.51) and 0.9 (0.89 to 0.91)" in lines
    assert lines[-1] == "no difference beyond that within a set: length"


def test_what_one_look_would_show_and_many_do_not_is_told_as_such():
    """t = .04 / sqrt(2e-4 / 3) = 4.9 with 4 degrees: p = .008, above .05 / 10 and below .05."""
    rng = np.random.default_rng(5)
    more = {f"reward_part/{i}": rng.normal(size=6) for i in range(9)}
    one = runs([0.49, 0.50, 0.51], **{name: values[:3] for name, values in more.items()})
    other = runs([0.53, 0.54, 0.55], **{name: values[3:] for name, values in more.items()})
    reward = next(entry for entry in across(one, other) if entry.quantity == "reward")
    assert reward.alone and not reward.differs
    assert any(
        line.startswith("may differ at the end (at 95 % taken alone, not as one of 10): reward")
        for line in sentences(one, other)
    )


def test_a_setting_that_varies_within_a_set_is_none_of_the_difference():
    one, other = runs([0.1, 0.2]), runs([0.3, 0.4])
    assert settings_across(one, [replace(run, config={"seed": 7 + i, "lr": 1e-6}) for i, run in enumerate(other)]) == []


def test_equal_seeds_differ_in_one_set_of_twenty():
    rng = np.random.default_rng(6)
    wrong = 0
    for _ in range(200):
        names = {f"reward_part/{i}": rng.normal(size=6) for i in range(6)}
        sides = [runs(rng.normal(size=3), **{n: v[half] for n, v in names.items()}) for half in (slice(3), slice(3, 6))]
        wrong += any(entry.differs for entry in across(*sides))
    assert wrong <= 20, wrong  # 10 are expected at most


@pytest.mark.parametrize("steps", [3, 0])
def test_too_few_steps_are_not_compared(steps):
    short = [make_run({"reward": np.linspace(i, i + 1, steps)}) if steps else make_run({}) for i in range(4)]
    assert across(short[:2], short[2:]) == []
