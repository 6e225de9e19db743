"""The curves of a page: how many points they have, and what is left of a spike."""

import json

import numpy as np

from steadyrl.show.report.pictures.curves import curves, extremes, mean_and_range
from steadyrl.show.report.pictures.plots import palette


def records(steps, metrics, seed):
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(steps, metrics))
    return [{"step": step, **{f"m{i}": float(v) for i, v in enumerate(row)}} for step, row in enumerate(values)]


def drawn(runs):
    """Return each run as the page's script takes it."""
    explored = curves({f"arm-{i}": [run] for i, run in enumerate(runs)}, "report.html")
    return [run for source in json.loads(explored.data) for run in source["runs"]]


def test_the_curves_of_a_page_stay_below_a_megabyte_however_many_runs_and_steps_there_are():
    few = curves({"a": [records(3000, 2, seed=0)]}, "report.html").data
    run = records(200, 60, seed=0)
    many = curves({f"arm-{i}": [run] * 3 for i in range(20)}, "report.html").data
    assert len(few) < 10_000 and len(many) < 800_000  # 3,600 curves of 200 steps would be 4 MB


def test_a_thinned_curve_has_the_mean_of_its_steps_and_ends_where_the_run_does():
    runs = [[{"step": step, "x": step % 7, "y": 1.0} for step in range(3000)]]
    (run,) = drawn(runs)
    assert len(run["steps"]) == len(run["lines"]["x"][0]) == 400
    assert abs(np.mean(run["lines"]["x"][0]) - np.mean([step % 7 for step in range(3000)])) < 0.01
    assert run["steps"][0] < 10 and run["steps"][-1] > 2980


def test_a_curve_that_moves_little_is_no_stair():
    run = [{"step": step, "x": 1.8 + step / 5000, "y": 4000.0 if step == 7 else 0.0123} for step in range(30)]
    (found,) = drawn([run])
    assert len(set(found["lines"]["x"][0])) == 30 and len(set(found["lines"]["y"][0])) == 2
    assert found["lines"]["y"][0][0] == 0.0123  # beside a spike


def test_a_short_run_keeps_every_step():
    (run,) = drawn([[{"step": step, "x": step / 8} for step in range(30)]])
    assert run["steps"] == list(range(30)) and run["lines"]["x"][0] == [float(f"{s / 8:.3g}") for s in range(30)]


def test_a_picture_with_few_points_keeps_the_spikes_of_every_seed():
    runs = [records(1000, 1, seed=seed) for seed in range(3)]
    runs[1][417]["m0"], runs[2][803]["m0"] = 500.0, -500.0
    steps, mean, low, high = mean_and_range(runs, "m0", spikes=True)
    assert len(steps) <= 100 and len(steps) == len(mean) == len(low) == len(high)
    assert high.max() == 500.0 and low.min() == -500.0
    assert steps[high.argmax()] == 417 and steps[low.argmin()] == 803


def test_extremes_of_short_curves_are_all_their_places():
    assert list(extremes([np.arange(5.0)], 10)) == [0, 1, 2, 3, 4]


def test_no_two_groups_share_a_colour():
    colours = palette(40)
    assert len(set(colours)) == 40 and colours[:3] == palette(3)
    sources = json.loads(
        curves({f"arm{i}": [[{"step": 0, "reward/mean": 1.0}]] for i in range(14)}, "report.html").data
    )
    assert len({source["colour"] for source in sources}) == 14


def test_every_measured_metric_has_a_chart_and_only_the_groups_that_are_named_are_shown_at_first():
    run = [{"step": 0, "reward/mean": 1.0, "entropy": 0.5, "grad_norm": 2.0, "mine": 3.0, "time/step": 1.0}]
    explored = curves({"a": [run, run], "b": [run]}, "report.html", visible=["b"])
    assert [panel.metrics[0][0] for panel in explored.overview] == ["reward/mean", "entropy", "grad_norm"]
    assert {topic: [panel.title for panel in charts] for topic, charts in explored.topics.items()} == {
        "Other": ["mine"]
    }
    sources = json.loads(explored.data)
    assert [(source["name"], source["hidden"], len(source["runs"])) for source in sources] == [
        ("a", True, 2), ("b", False, 1),
    ]  # fmt: skip
