import json
import shutil

import pytest

from bench.campaign import run_files
from bench.campaign.trial import command
from steadyrl.core.errors import RunError
from steadyrl.core.rundir import RunDir, write_json
from steadyrl.show.report.write import write_report


@pytest.fixture
def run(tmp_path):
    return RunDir(shutil.copytree(run_files.good_run(), tmp_path / "run"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("packages", ["numpy"]),
        ("machine", 5),
        ("attempt", "1"),
        ("command", {"a": 1}),
        ("status", ["finished"]),
        ("data", "none"),
        ("metric", 7),
        ("processor_s", "an hour"),
    ],
)
def test_a_wrong_type_in_run_json_is_named(run, name, value):
    write_json(run.info_file, {**run.info(), name: value})
    with pytest.raises(RunError, match=f"run.json' is damaged: '{name}' is"):
        run.info()


def test_counts_of_data_that_are_none_stop_a_resume_in_one_line(run):
    write_json(run.info_file, {**run.info(), "data": {"train": 5, "heldout": []}})
    assert command(["train", "--resume", str(run.path), "run.steps=7"], 30.0) == ""


def test_a_run_of_which_nothing_is_recorded_goes_on(run):
    write_json(run.info_file, {})
    assert command(["train", "--resume", str(run.path), "run.steps=7"], 60.0) == ""
    assert run.status == "finished"


def test_a_section_that_is_none_in_resolved_json_is_named(run):
    write_json(run.resolved_file, {**run.resolved(), "rewards": [1]})
    with pytest.raises(RunError, match="'rewards' is no section"):
        write_report(run.path)


def test_lines_that_no_autopilot_wrote_are_left_out(run):
    good = {"step": 1, "kind": "rate", "knob": "rate", "before": 1.0, "after": 0.5, "why": "x", "evidence": ["y"]}
    bad = [{}, {**good, "step": "1"}, {**good, "before": "1"}, {**good, "evidence": 5}, {**good, "kind": None}]
    run.actions_file.write_text("".join(json.dumps(line) + "\n" for line in [*bad, good]) + "[" * 5000 + "\n")
    assert run.actions() == [good]


def test_numbers_of_steps_that_no_run_has_are_left_out(run):
    count = len(run.metrics())
    with run.metrics_file.open("a") as file:
        for step in (-1, 10**400, 1.5, True, "3", None, 10**12):
            file.write(json.dumps({"step": step, "attempt": 0}) + "\n")
    assert [record["step"] for record in run.metrics()] == list(range(count))


def test_a_link_that_leads_nowhere_is_no_file_of_rollouts(run):
    link = run.rollouts_file(2)
    link.unlink()
    link.symlink_to("nothing")
    assert command(["doctor", str(run.path)], 30.0) == ""


def test_steps_without_a_record_are_said_in_the_report(run):
    kept = [line for line in run.metrics_file.read_text().splitlines() if json.loads(line)["step"] not in (1, 3, 4)]
    run.metrics_file.write_text("".join(f"{line}\n" for line in kept))
    write_report(run.path)
    text = (run.report_folder / "report.md").read_text()
    assert "has no record of 3 of 6 steps (1, 3 to 4)" in text.replace("\\", "")


@pytest.mark.parametrize("answers", [{"sampled": 5}, {"sampled": [1]}])
def test_an_answer_that_is_no_object_is_named(run, answers):
    run.evaluation_file("after").write_text(json.dumps({"problem": "p", "answers": answers}) + "\n")
    with pytest.raises(RunError, match="an answer that is no object"):
        write_report(run.path)


def test_parts_that_are_no_object_count_as_unknown(run):
    line = {"problem": "p", "answers": {"sampled": {"text": "x", "parts": [1], "metric": "y"}}}
    run.evaluation_file("after").write_text(json.dumps(line) + "\n")
    write_report(run.path)
