"""Tables in every form that JSON has for one, and tables with one value in each row: all show the same run."""

import csv
import io
import json

import pytest

from steadyrl.core.errors import RunError
from steadyrl.doctor.names.identify import holds_known_metric
from steadyrl.doctor.readers.search import search

STEPS = [7 * i for i in range(1, 13)]
COLUMNS = {
    "reward": [round(0.3 + 0.01 * i, 6) for i in range(12)],
    "entropy": [round(1.5 - 0.05 * i, 6) for i in range(12)],
}
NAMES = list(COLUMNS)
CELLS = [list(row) for row in zip(STEPS, *COLUMNS.values(), strict=True)]
WIDE = [dict(zip(["step", *NAMES], row, strict=True)) for row in CELLS]
POINTS = [(step, name, x) for step, *row in CELLS for name, x in zip(NAMES, row, strict=True)]


def by_metric(form):
    return {name: form(values) for name, values in COLUMNS.items()}


DOCUMENTS = {
    "split": {"columns": ["step", *NAMES], "index": list(range(12)), "data": CELLS},
    "split with the steps as its index": {"columns": NAMES, "index": STEPS, "data": [row for _, *row in CELLS]},
    "table of W&B": {"_type": "table", "ncols": 3, "columns": ["step", *NAMES], "data": CELLS},
    "lists below names": [["step", *NAMES], *CELLS],
    "rows by index": {str(i): row for i, row in enumerate(WIDE)},
    "rows by step": {str(row["step"]): {name: row[name] for name in NAMES} for row in WIDE},
    "pairs": by_metric(lambda values: [list(pair) for pair in zip(STEPS, values, strict=True)]),
    "charts": by_metric(lambda values: [[1.7e9 + s, s, x] for s, x in zip(STEPS, values, strict=True)]),
    "points": by_metric(lambda values: [{"x": s, "y": x} for s, x in zip(STEPS, values, strict=True)]),
    "metrics of MLflow": by_metric(
        lambda values: [{"step": s, "value": x, "timestamp": 9 + s} for s, x in zip(STEPS, values, strict=True)]
    ),
    "metrics of Sacred": {
        "info": by_metric(lambda values: {"steps": STEPS, "values": values, "timestamps": ["-"] * 12})
    },
    "history of pairs below settings": {
        "config": {"lr": 1e-6},
        "history": by_metric(lambda values: [list(pair) for pair in zip(STEPS, values, strict=True)]),
    },
    "a value in each row": [{"iteration": s, "metric": name, "value": x} for s, name, x in POINTS],
}


def search_of(tmp_path, text, name="log.json"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return search(path, holds_known_metric).logs


def check(log):
    for name, values in COLUMNS.items():
        assert (log.columns[name].steps.tolist(), log.columns[name].values.tolist()) == (STEPS, values)


@pytest.mark.parametrize("form", DOCUMENTS)
@pytest.mark.parametrize("indent", [None, 1])
def test_tables_in_json_are_read_in_every_form(tmp_path, form, indent):
    (log,) = search_of(tmp_path, json.dumps(DOCUMENTS[form], indent=indent))
    check(log)


@pytest.mark.parametrize("form", sorted(DOCUMENTS.keys() - {"points", "split with the steps as its index"}))
def test_a_folder_of_such_a_table_is_read_likewise(tmp_path, form):
    search_of(tmp_path, json.dumps(DOCUMENTS[form]))
    (log,) = search(tmp_path, holds_known_metric).logs
    check(log)


@pytest.mark.parametrize(
    "names", [("step", "name", "value"), ("Step", "tag", "scalar"), ("update", "variable", "value")]
)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("points", [POINTS, sorted(POINTS, key=lambda point: point[1])])
def test_a_value_in_each_row_is_of_the_metric_that_the_row_names(tmp_path, names, form, points):
    file = io.StringIO()
    csv.writer(file).writerows([names, *points])
    rows = [dict(zip(names, point, strict=True)) for point in points]
    text = file.getvalue() if form == "csv" else "\n".join(map(json.dumps, rows))
    (log,) = search_of(tmp_path, text, f"long.{form}")
    check(log)


def test_such_rows_of_two_runs_are_two(tmp_path):
    rows = [{"run": run, "step": s, "key": name, "value": x} for run in ("p", "q") for s, name, x in POINTS]
    logs = search_of(tmp_path, "\n".join(map(json.dumps, rows)), "runs.jsonl")
    assert [log.path.rpartition("#")[2] for log in logs] == ["p", "q"]
    for log in logs:
        check(log)


def test_a_name_and_a_value_beside_metrics_are_no_metric_and_its_value(tmp_path):
    rows = [{**row, "name": "critic", "value": 0.125} for row in WIDE]
    (log,) = search_of(tmp_path, "\n".join(map(json.dumps, rows)), "wide.jsonl")
    check(log)
    assert set(log.columns["value"].values.tolist()) == {0.125}


def test_columns_below_a_metric_are_its_parts_and_columns_below_another_name_are_a_run(tmp_path):
    parts = {"reward": {"mean": COLUMNS["reward"], "std": COLUMNS["entropy"]}}
    (log,) = search_of(tmp_path, json.dumps(parts))
    assert log.columns.keys() == {"reward/mean", "reward/std"}
    logs = search_of(tmp_path, json.dumps({"arm 1": COLUMNS, "arm 2": COLUMNS}))
    assert [log.path.rpartition("#")[2] for log in logs] == ["arm 1", "arm 2"]


def test_the_chart_that_tensorboard_saves_has_its_name_in_that_of_the_file(tmp_path):
    chart = json.dumps([[1.7e9 + s, s, x] for s, x in zip(STEPS, COLUMNS["reward"], strict=True)])
    (log,) = search_of(tmp_path, chart, "run-lion-tag-train_reward.json")
    assert log.columns["train/reward"].steps.tolist() == STEPS and log.chart_of == "lion"
    with pytest.raises(RunError, match="found value"):
        search_of(tmp_path, chart, "download.json")


@pytest.mark.parametrize("pairs", [[[0.5, 1.0], [0.25, 0.0]], [[4, 1], [2, 0]], [[3, 1], [6]], [["a", 1]], [[]]])
def test_lists_whose_first_numbers_are_no_rising_steps_are_no_points(tmp_path, pairs):
    with pytest.raises(RunError, match="without a number"):
        search_of(tmp_path, json.dumps({"reward": pairs}))
