"""A table with several runs one below another, told by a column that names them; and columns that name none."""

import json

import pytest

from steadyrl.doctor.readers.search import search

FORMS = ("csv", "jsonl", "json")


def runs(tmp_path, form, rows):
    names = list(rows[0])
    text = {
        "csv": "\n".join([",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]),
        "jsonl": "\n".join(map(json.dumps, rows)),
        "json": json.dumps({"history": rows}),
    }[form]
    (tmp_path / f"run.{form}").write_text(text, encoding="utf-8")
    logs = search(tmp_path / f"run.{form}", lambda log: True).logs
    return {log.path.rpartition("#")[2].removeprefix("history."): log.columns["reward"] for log in logs}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("column", "names"), [("arm", ("dense", "sparse", "both")), ("seed", (7, 8, 9))])
def test_a_column_that_names_the_runs_parts_them(tmp_path, form, column, names):
    rows = [
        {column: name, "step": 10 * i, "reward": i + 100 * place, "model": "small"}
        for place, name in enumerate(names)
        for i in range(5 + place)
    ]
    read = runs(tmp_path, form, rows)
    assert list(read) == [str(name) for name in names]
    for place, column in enumerate(read.values()):
        assert column.values.tolist() == [i + 100 * place for i in range(5 + place)]
        assert column.steps.tolist() == [10 * i for i in range(5 + place)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("key", "trained", "scored"), [("split", "train", "validation"), ("log_type", "Training", "dev")]
)
def test_rows_of_held_out_problems_are_no_rows_of_training(tmp_path, form, key, trained, scored):
    rows = [{"step": step, key: trained, "reward": step / 10} for step in range(1, 13)]
    held_out = [{"step": step, key: scored, "reward": -float(step)} for step in (5, 5, 10)]
    rows = sorted([*rows, *held_out], key=lambda row: row["step"])
    runs(tmp_path, form, rows)
    (log,) = search(tmp_path / f"run.{form}", lambda log: True).logs
    assert log.columns["reward"].values.tolist() == [step / 10 for step in range(1, 13)]
    assert log.columns["eval/reward"].values.tolist() == [-5.0, -10.0]
    alone = [{"step": step, key: scored, "reward": float(step)} for step in range(1, 5)]
    (column,) = runs(tmp_path, form, alone).values()
    assert column.steps.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "phases",
    [
        ["explore", "exploit"] * 6,  # in turn
        ["warm-up"] * 4 + ["main"] * 8,  # one after another, while the steps go on
        ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"],  # a text of each row
    ],
)
def test_a_column_that_changes_within_a_run_parts_none(tmp_path, form, phases):
    rows = [{"phase": phase, "step": i, "reward": 0.5 * i} for i, phase in enumerate(phases)]
    (column,) = runs(tmp_path, form, rows).values()
    assert column.values.tolist() == [0.5 * i for i in range(12)]


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_two_kinds_at_each_step_are_one_run(tmp_path, form):
    rows = [{"split": split, "step": i, "reward": 1.0 * i} for i in range(9) for split in ("train", "test")]
    (column,) = runs(tmp_path, form, rows).values()
    assert column.steps.tolist() == list(range(9))
