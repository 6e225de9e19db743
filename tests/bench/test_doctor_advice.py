"""Whether advice that was followed made a run better, on rewards written by hand."""

import importlib
from pathlib import Path

import pytest

from steadyrl.core.types import Finding


@pytest.fixture
def advice(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench" / "doctor"))
    return importlib.import_module("advice")


def run(*last):
    """Return ten steps whose last fifth is given."""
    return [{"reward/mean": 9.0}] * 8 + [{"reward/mean": reward} for reward in last]


FINDING = Finding("reward_flat", overrides=("update.learning_rate=1e-4",))


@pytest.mark.parametrize(("last", "outcome"), [((2.0, 2.2), "better"), ((1.2, 1.4), "the same"), ((0.1, 0.3), "worse")])
def test_better_and_worse_are_beyond_two_standard_errors_of_the_last_fifth(advice, last, outcome):
    """Both variances are 0.02 over two steps, so that the error of the difference is the root of 0.02."""
    line = advice.compared("founding", run(1.0, 1.2), FINDING, run(*last))
    assert (line["before"], line["after"]) == pytest.approx((1.1, sum(last) / 2))
    assert line["error"] == pytest.approx(0.02**0.5)
    assert line["outcome"] == outcome
    shown = f"| founding | reward_flat: update.learning_rate=1e-4 | 1.100 | {sum(last) / 2:.3f} | {outcome} |"
    assert shown in advice.table([line])


def test_a_run_without_a_setting_to_change_is_counted_apart(advice):
    line = advice.compared("founding", run(1.0, 1.2), None, None)
    assert "after" not in line
    assert advice.table([line]).endswith("no setting is advised: 1")
