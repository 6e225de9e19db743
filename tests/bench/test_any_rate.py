"""Runs beside others: the same arm, rate and seed, and what is one run counts once."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    return importlib.import_module("any_rate")


def lines(*ends):
    """Return lines of one reward: (seed, rate, end)."""
    return [
        {"reward": "length", "arm": "act", "rate": rate, "seed": seed, "steps": 80, "after": end}
        for seed, rate, end in ends
    ]


def test_starts_that_are_one_run_count_once_and_others_have_no_say(bench):
    """Differences of 0.1 and 0.3: mean 0.2, standard deviation 0.1414, over the root of two."""
    ours = lines((0, 1e-4, 1.1), (1, 1e-3, 1.5), (1, 1e-2, 1.5), (2, 1e-4, 9.0))
    others = lines((0, 1e-4, 1.0), (1, 1e-3, 1.2), (1, 1e-2, 1.2), (3, 1e-4, 0.0))
    assert bench.beside(ours, others) == "length: 1.300 beside 1.100 in 2 runs, +0.2000, standard error 0.1000"


def test_a_run_that_broke_off_counts_0_and_one_alone_says_nothing(bench):
    assert bench.beside(lines((0, 1e-4, None), (1, 1e-4, 1.0)), lines((0, 1e-4, 1.0), (1, 1e-4, 1.0))).startswith(
        "length: 0.500 beside 1.000 in 2 runs, -0.5000"
    )
    assert bench.beside(lines((0, 1e-4, 1.0)), lines((0, 1e-4, 1.0))) == ""
