"""Which seeds a cell is judged by, and when it judges nothing, on results written by hand."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    return importlib.import_module("any_rate_elsewhere")


def runs(bench, seed, fixed, helped, cell="smollm2-words"):
    arms = [("fixed", rate, after) for rate, after in zip(bench.CELLS[cell].rates, fixed, strict=True)]
    arms += [("autopilot", rate, after) for rate, after in zip(bench.STARTS, helped, strict=True)]
    return [
        {
            "cell": cell,
            "seed": seed,
            "arm": arm,
            "rate": rate,
            "steps": 40,
            "before": 0.1,
            "after": after,
            "processor": "one of ours",
        }
        for arm, rate, after in arms
    ]


def row(bench, lines):
    return next(line for line in bench.page(lines).splitlines() if line.startswith("| smollm2-words |"))


def test_a_seed_with_one_run_missing_is_not_counted(bench):
    """With the second seed the best fixed rate would be 1e-2 and no start near it."""
    first = runs(bench, 0, [0.1, 0.2, 0.3, 0.5, 0.4], [0.46, 0.44, 0.5])
    second = runs(bench, 1, [0.1, 0.1, 0.1, 0.1, 0.9], [0.1, 0.1, 0.1])
    assert bench.whole_seeds(bench.CELLS["smollm2-words"], first + second[1:]) == [0]
    assert (
        row(bench, first + second[1:]) == "| smollm2-words | 40 | 1 | 0.100 | 0.500 at 0.003 | 5.00 | 1 of 5 "
        "| 0.460 (92%) | 0.440 (88%) | 0.500 (100%) | 2 of 3 |"
    )
    assert bench.whole_seeds(bench.CELLS["smollm2-words"], first + second) == [0, 1]
    assert (
        row(bench, first + second) == "| smollm2-words | 40 | 2 | 0.100 | 0.650 at 0.01 | 6.50 | 1 of 5 "
        "| 0.280 (43%) | 0.270 (42%) | 0.300 (46%) | 0 of 3 |"
    )


def test_a_run_that_broke_off_counts_as_nothing_learned(bench):
    """The mean over two seeds of 0.5 and a run without an end is 0.25."""
    lines = runs(bench, 0, [0.1, 0.2, 0.3, 0.5, 0.4], [0.5, 0.5, 0.5])
    lines += runs(bench, 1, [0.1, 0.2, 0.3, 0.5, 0.4], [None, 0.5, 0.5])
    assert "| 0.250 (50%) | 0.500 (100%) | 0.500 (100%) | 2 of 3 |" in row(bench, lines)


def test_a_cell_where_every_rate_is_as_good_is_not_counted(bench):
    flat = runs(bench, 0, [0.46, 0.47, 0.48, 0.49, 0.5], [0.5, 0.5, 0.5])
    assert "| 5.00 | 5 of 5 | 0.500 (100%)" in row(bench, flat)
    assert bench.page(flat).splitlines()[-3].endswith(": 0 of 0 starts.")


@pytest.mark.parametrize(
    ("rates", "decides"),
    [
        ([0.1, 0.1, 0.1, 0.19, 0.20], True),  # twice the 0.1 before, and two near the best
        ([0.1, 0.1, 0.1, 0.18, 0.19], False),
        ([0.1, 0.1, 0.19, 0.19, 0.20], False),
    ],
)
def test_a_cell_decides_much_where_learning_and_the_rate_matter(bench, rates, decides):
    page = bench.page(runs(bench, 0, rates, [0.19, 0.2, 0.1]))
    assert page.endswith(
        ": 1, with 2 of 3 starts near the best.\n" if decides else ": 0, with 0 of 0 starts near the best.\n"
    )


def test_cells_that_taught_a_rule_are_counted_apart(bench):
    near, far = [0.1, 0.2, 0.3, 0.5, 0.4], [0.1, 0.1, 0.1]
    lines = runs(bench, 0, near, [0.5, 0.5, 0.5]) + runs(bench, 0, near, far, "browse")
    page = bench.page(lines + runs(bench, 0, near, [0.5, 0.5, 0.1], "reinforce-search-long")).splitlines()
    assert page[-7].endswith("taught the autopilot a rule: 0 of 3 starts.")
    assert page[-5].endswith("cells that taught it nothing: 3 of 3 starts.")
    assert page[-3].endswith("long ones, which taught it nothing: 2 of 3 starts.")


def test_fixed_rates_and_single_seeds_that_are_near_are_counted(bench):
    """By means the rates have 0.1, 0.2, 0.3, 0.5, 0.45; alone, the starts of the seeds are near in 3 and in 1 of 3."""
    lines = runs(bench, 0, [0.1, 0.2, 0.3, 0.5, 0.45], [0.46, 0.47, 0.5])
    lines += runs(bench, 1, [0.1, 0.2, 0.3, 0.5, 0.45], [0.1, 0.2, 0.5])
    page = bench.page(lines)
    assert "2 of 5 fixed rates are that close by means, and 4 of 6 starts by single seeds, the lowest at 20%." in page
