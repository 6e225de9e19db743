"""The tables of logs that the doctor had not seen, from labels written by hand."""

import importlib
import json
from pathlib import Path

import pytest


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench" / "doctor"))
    return importlib.import_module("fresh")


def label(file, number, state, first, after, **more):
    source = "somebody/something: log"
    return {"file": file, "set": number, "half": "once", "source": source, "state": state, "first": first,
            "after": after, **more}  # fmt: skip


LABELS = (
    label("a.json", 1, "sick", "silent", "named"),
    label("b.ipynb", 6, "sick", "named", "named", half="last"),
    label("c.md", 9, "healthy", "right", "right"),
    label("d.txt", 9, "undecided", "false alarm", "right", source="somebody/something#12"),
    label("e.txt", 9, "sick", "wrong", "not readable", form="write-up"),
)


def test_a_log_counts_in_its_set_and_in_all(fresh):
    table = fresh.by_set(LABELS)
    assert table[0] == "| first / now | set 1 | 6, last part | 9 | all |"
    assert "| logs | 1 | 1 | 3 | 5 |" in table
    assert "| sick, named rightly | 0 / 1 | 1 / 1 | 0 / 0 | 1 / 2 |" in table
    assert "| sick, wrong cause leads | 0 / 0 | 0 / 0 | 1 / 0 | 1 / 0 |" in table
    assert "| undecided, alarm | 0 / 0 | 0 / 0 | 1 / 0 | 1 / 0 |" in table


def test_what_stands_in_a_thread_is_a_write_up_whatever_its_file_is_called(fresh):
    assert [fresh.form(x) for x in LABELS] == ["trainer", "notebook", "write-up", "write-up", "write-up"]
    table = fresh.by_form(LABELS)
    assert table[0].endswith("| trainers, sets 8 to 9 | notebooks, sets 8 to 9 | write-ups, sets 8 to 9 |")
    assert "| logs | 1 | 1 | 3 | 0 | 0 | 3 |" in table
    assert "| sick | 1 | 1 | 1 | 0 | 0 | 1 |" in table


def test_a_second_reader_counts_where_one_read_and_by_the_words_of_the_label(fresh):
    asked = {"a.json": ("sick", "identical rewards"), "b.ipynb": ("sick", "KL-drift"), "c.md": ("sick", "")}
    labels = [
        {**x, "any_of": ["kl_drift"], "second": dict(zip(("state", "cause"), asked[x["file"]], strict=True))}
        if x["file"] in asked
        else x
        for x in LABELS
    ]
    table = fresh.by_reader(labels)
    assert table[0] == "| of a label | sick | healthy | undecided |"
    assert "| logs | 2 | 1 | 0 |" in table
    assert "| reader: sick | 2 | 1 | 0 |" in table
    assert "| reader: sick, with a word of the label | 1 | 0 | 0 |" in table
    assert "| doctor: sick | 1 | 0 | 0 |" in table
    assert "| doctor: healthy | 0 | 1 | 0 |" in table


def test_the_page_has_the_tables_of_its_labels(fresh):
    labels = [json.loads(line) for line in fresh.LABELS.read_text(encoding="utf-8").splitlines()]
    page = fresh.PAGE.read_text(encoding="utf-8")
    for table in (fresh.by_set(labels), fresh.by_form(labels), fresh.by_reader(labels), fresh.each(labels)):
        assert "\n".join(table) in page
        assert fresh.replaced(page, table) == page
    file, written = fresh.PREFERENCES
    preferences = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for table in (fresh.by_set(preferences), fresh.each(preferences)):
        assert "\n".join(table) in written.read_text(encoding="utf-8")
