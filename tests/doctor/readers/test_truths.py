"""Truth values: an outcome is 1 or 0, and a flag is no metric."""

import json

import pytest

from steadyrl.doctor.live import LiveDoctor
from steadyrl.doctor.readers.search import search

CAME = [True, False, False, True, True, False, True]


def log_of(tmp_path, text, name):
    (tmp_path / name).write_text(text, encoding="utf-8")
    (log,) = search(tmp_path / name, lambda log: True).logs
    return log


@pytest.mark.parametrize("name", ["success", "env/is_correct", "Reward"])
@pytest.mark.parametrize("form", ["rows.jsonl", "list.json", "columns.json", "long.jsonl", "table.csv", "printed.log"])
def test_truth_values_of_an_outcome_are_numbers_and_flags_are_none(tmp_path, name, form):
    rows = [{"step": i, "loss": 0.5, name: came, "is_best": came} for i, came in enumerate(CAME, 1)]
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    long = [
        {"step": i, "metric": key, "value": x} for i, came in enumerate(CAME, 1) for key, x in ((name, came), ("l", 1))
    ]
    text = {
        "rows.jsonl": "\n".join(map(json.dumps, rows)),
        "list.json": json.dumps(rows, indent=2),
        "columns.json": json.dumps(columns),
        "long.jsonl": "\n".join(map(json.dumps, long)),
        "table.csv": "\n".join(",".join(map(str, cells)) for cells in (rows[0], *(row.values() for row in rows))),
        "printed.log": "\n".join(map(str, rows)),
    }[form]
    columns = log_of(tmp_path, text, form).columns
    assert columns[name].values.tolist() == [float(came) for came in CAME]
    assert "is_best" not in columns


def test_lists_of_outcomes_have_a_mean(tmp_path):
    rows = [{"step": i, "rewards": [came, True, False, False]} for i, came in enumerate(CAME, 1)]
    columns = log_of(tmp_path, "\n".join(map(json.dumps, rows)), "groups.jsonl").columns
    assert columns["rewards/mean"].values.tolist() == [0.25 + 0.25 * came for came in CAME]


def test_an_outcome_that_a_loop_hands_over_is_a_number():
    doctor = LiveDoctor(every=100)
    for step, came in enumerate(CAME):
        doctor.add(step, {"solved": came, "loss": 0.5, "resumed": came})
    assert set(doctor._series) == {"solved", "loss"}
