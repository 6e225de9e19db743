"""The figures of the fault benchmark, against cases counted by hand."""

import importlib
import math
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "bench" / "doctor"
RIGHT = {"hot": (("rate", "*"), ("*", "rate_high")), "deaf": (("judge", "silent"),)}


@pytest.fixture
def scoring(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("scoring")


@pytest.fixture
def store(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("store")


def judged(scoring, fault, *alarms, onset=20, told=None, live=False):
    label = {"fault": fault, "onset": None if fault == "healthy" else onset, "steps": 50}
    return scoring.Judged(label, tuple(scoring.Alarm(*alarm) for alarm in alarms), told, live)


def test_an_alarm_dated_well_before_the_onset_is_early_and_names_nothing(scoring):
    run = judged(scoring, "hot", ("rate", "x", "warning", 14), ("rate", "x", "warning", 15))
    row = scoring.fault_row("hot", [run], RIGHT)
    assert (row["early"], row["named"], row["dated"]) == (1, 1, -5)
    only_early = judged(scoring, "hot", ("rate", "x", "warning", 14))
    row = scoring.fault_row("hot", [only_early], RIGHT)
    assert (row["early"], row["detected"], row["named"], row["first"]) == (1, 0, 0, 0)


def test_a_wrong_cause_is_detected_and_not_named(scoring):
    run = judged(scoring, "deaf", ("judge", "loud", "warning", 21))
    row = scoring.fault_row("deaf", [run], RIGHT)
    assert (row["detected"], row["named"], row["first"]) == (1, 0, 0)


def test_precision_counts_claims_on_other_faults_and_on_healthy_runs(scoring):
    runs = [
        judged(scoring, "hot", ("entropy", "rate_high", "critical", None)),
        judged(scoring, "deaf", ("judge", "silent", "warning", 22), ("rate", "x", "warning", 30)),
        judged(scoring, "healthy", ("rate", "x", "warning", 3)),
    ]
    assert scoring.fault_row("hot", runs, RIGHT)["precision"] == pytest.approx(1 / 3)
    assert scoring.fault_row("deaf", runs, RIGHT)["precision"] == 1.0


def test_the_first_alarm_counts_apart_from_the_others(scoring):
    run = judged(scoring, "hot", ("entropy", "unknown", "warning", 25), ("rate", "x", "warning", 24), told=40)
    row = scoring.fault_row("hot", [run], RIGHT)
    assert (row["named"], row["first"], row["dated"], row["told"]) == (1, 0, 4, 20)


def test_false_alarms_are_counted_per_thousand_healthy_steps(scoring):
    runs = [
        judged(scoring, "healthy", ("a", "b", "warning", 3), ("a", "c", "critical", 4), live=True),
        judged(scoring, "healthy", live=True),
        judged(scoring, "hot", ("a", "b", "warning", 3)),
    ]
    row = scoring.healthy_row(runs)
    assert (row["runs"], row["steps"], row["warnings"], row["criticals"]) == (2, 100, 1, 1)
    assert row["alarms_per_1000_steps"] == 20.0
    assert (row["runs_with_alarms"], row["runs_with_alarms_at_any_time"]) == (1, 2)


def test_a_stored_run_becomes_a_run_directory_again(store, tmp_path):
    from steadyrl.core.rundir import RunDir

    records = [
        {"step": 0, "attempt": 0, "time/step": 1.5, "a": 0.1234567, "b": math.nan, "c": None},
        {"step": 1, "attempt": 0, "time/step": 1.4, "a": 2.0, "b": math.inf, "c": 3},
    ]
    path = tmp_path / "x.jsonl.gz"
    store.write_run(path, {"resolved": {"run": {"steps": 2}}, "run": {"id": "x"}}, records)
    run = RunDir.open(store.unpack(path, tmp_path / "x"))
    assert run.resolved() == {"run": {"steps": 2}}
    first, second = run.metrics()
    assert (first["a"], first["c"], second["b"]) == (0.12346, None, math.inf)
    assert "time/step" not in first
    assert math.isnan(first["b"])
    assert [record["step"] for record in RunDir.open(store.unpack(path, tmp_path / "y", 1)).metrics()] == [0]


def test_every_fault_has_right_answers_for_the_doctor_and_for_rlwatch(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    expected, cases = importlib.import_module("expected"), importlib.import_module("trl_cases")
    assert expected.RIGHT.keys() == expected.RLWATCH_FITS.keys()
    assert {case.fault for case in cases.cases()} - {"healthy"} <= expected.RIGHT.keys()
    assert len({case.name for case in cases.cases()}) == len(cases.cases())
