import json
import os
from pathlib import Path

import pytest

from steadyrl.cli.runs import runs_command

FINDING = {
    "check": "entropy_collapse",
    "severity": "critical",
    "state": "found",
    "since_step": 3,
    "message": "the entropy collapses",
    "remedy": "lower the rate",
}


def write_run(
    folder: Path, name: str, time: float, status: str = "finished", steps_done: int = 4, summary=None
) -> None:
    """Write the files of a run directory that the table reads."""
    run = folder / name
    (run / "report").mkdir(parents=True)
    process = {"node": os.uname().nodename, "id": os.getpid()}
    info = {
        "status": status,
        "task": "search",
        "model": "base",
        "metric": "f1",
        "algorithm": "grpo",
        "process": process,
    }
    (run / "run.json").write_text(json.dumps(info | {"started": time}))
    (run / "resolved.json").write_text(json.dumps({"run": {"steps": 5}}))
    records = [{"step": step, "attempt": 0, "time": time + step, "reward/mean": 0.5} for step in range(steps_done)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (run / "findings.jsonl").write_text("")
    if summary is not None:
        (run / "report" / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a run that got better and is sick, a healthy one, and one that goes on."""
    sick = {"verdict": "sick", "findings": [FINDING]}
    healthy = {"verdict": "healthy", "findings": []}
    rose = {"after": 0.75, "difference": 0.25, "interval": [0.1, 0.4], "verdict": "better", "doctor": sick}
    stayed = {"after": 0.5, "difference": 0.0, "interval": [-0.1, 0.1], "verdict": "undecided", "doctor": healthy}
    write_run(tmp_path, "20261126-061022-grpo-search-s0", 1000.0, steps_done=5, summary=rose)
    write_run(tmp_path, "20261126-061708-grpo-search-s1", 3000.0, steps_done=5, summary=stayed)
    write_run(tmp_path, "20261126-062000-grpo-search-s2", 2000.0, status="running", steps_done=2)
    return tmp_path


def test_runs_are_rows_newest_first_with_scores_and_verdict(folder, capsys):
    runs_command(folder, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"][-2:] for row in rows] == ["s1", "s2", "s0"]
    assert [row["verdict"] for row in rows] == ["undecided, healthy", "running", "better, sick: entropy_collapse"]
    assert [(row["before"], row["after"]) for row in rows] == [(0.5, 0.5), (None, None), (0.5, 0.75)]
    assert [(row["steps_done"], row["steps"]) for row in rows] == [(5, 5), (2, 5), (5, 5)]
    assert {(row["task"], row["model"]) for row in rows} == {("search", "base")}


def test_a_run_that_cannot_be_read_says_why_and_is_no_log_of_another_trainer(folder, capsys):
    (folder / "20261126-062000-grpo-search-s2" / "run.json").write_text('["running"]')
    runs_command(folder)
    shown = "".join(capsys.readouterr().out.split())
    assert "another" not in shown and "holdslist;expectedaJSONobject" in shown and "unreadable" in shown


def test_a_run_without_a_report_has_the_scores_of_its_evaluations(folder, capsys):
    run = folder / "20261126-062000-grpo-search-s2"
    (run / "evaluations").mkdir()
    scores = {"one": (0.25, 1.0), "two": (0.75, 1.0), "unscored": (None, 1.0)}
    lines = [
        {"problem": name, "answers": {"sampled": {"metric": sampled}, "greedy": {"metric": greedy}}}
        for name, (sampled, greedy) in scores.items()
    ]
    (run / "evaluations" / "before.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs_command(folder, as_json=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows[run.name]["before"], rows[run.name]["after"]) == (0.5, None)
    after = {"problem": "one", "answers": {"sampled": {"metric": 0.75}}}  # a run without a report, as studies make them
    (run / "evaluations" / "after.jsonl").write_text(json.dumps(after) + "\n")
    runs_command(folder, as_json=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows[run.name]["before"], rows[run.name]["after"]) == (0.25, 0.75)  # of the problem that both have
    (run / "evaluations" / "before.jsonl").write_text('{"answers": 3}\n')
    runs_command(folder, as_json=True)
    assert {row["before"] for row in json.loads(capsys.readouterr().out)} == {0.5, None}


def test_the_table_fits_80_columns_and_keeps_names_and_numbers_whole(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    runs_command(folder)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    (row,) = [line for line in lines if line.startswith("20261126-061022-grpo-search-s0 ")]
    assert row.split()[1:6] == ["5/5", "0.500", "0.750", "better,", "sick:"]


def test_the_table_cuts_no_letter_of_a_verdict(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    summary = json.loads((folder / "20261126-061022-grpo-search-s0" / "report" / "summary.json").read_text())
    for length in range(1, 30):
        summary["doctor"]["findings"][0]["check"] = "x" * length
        (folder / "20261126-061022-grpo-search-s0" / "report" / "summary.json").write_text(json.dumps(summary))
        runs_command(folder)
        assert capsys.readouterr().out.count("x") == length


def test_an_empty_folder_says_how_a_run_is_made(tmp_path, capsys):
    runs_command(tmp_path)
    assert "there are no runs" in capsys.readouterr().out


def test_names_of_checks_stay_whole_beside_names_of_runs(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    write_run(folder / "studies" / "study" / "runs" / "faster-s0", "20261126-061022-ppo-prompts-s0", 1.0, summary={})
    summary = folder / "20261126-061022-grpo-search-s0" / "report" / "summary.json"
    summary.write_text(summary.read_text().replace("entropy_collapse", "explained_variance_low"))
    runs_command(folder)
    assert " explained_variance_low" in capsys.readouterr().out
