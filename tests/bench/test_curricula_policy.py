"""The column of rollouts to a target, against curves written by hand."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    return importlib.import_module("curricula_policy")


def curve(*means):
    return {"curve": [{"step": i, "rollouts": 100 * i, "mean": mean} for i, mean in enumerate(means)]}


def test_a_seed_that_never_got_there_is_no_fast_one(bench):
    """Half of the way is a straight line between measurements: 0.5 after 50, 150 and 200 rollouts, and never."""
    fast, middle, slow, never = curve(0, 1, 1), curve(0, 0, 1), curve(0, 0, 0.5), curve(0, 0, 0.4)
    assert bench.reached([slow, fast, middle], 0.5) == "150 [50, 200], 3 of 3"
    assert bench.reached([never, fast, slow, middle, never], 0.5) == "200 [50, > 200], 3 of 5"
    assert bench.reached([never, fast, never], 0.5) == "> 200 [50, > 200], 1 of 3"
