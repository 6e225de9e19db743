"""Beside a run that goes on: what is raised, what is cleared, and that it stays small."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import RunDir, append_line, read_lines
from steadyrl.core.types import Finding
from steadyrl.doctor.live import GONE, LiveDoctor

sys.path.insert(0, str(Path(__file__).parent))
import logs


def follow(doctor, rows):
    return [change for row in rows for change in doctor.add(row["step"], row)]


def test_a_sick_run_raises_its_cause_within_two_examinations_and_not_before():
    changes = follow(LiveDoctor({}, every=10), logs.sick())
    raised = {change.finding.check: change.step for change in reversed(changes) if change.state == "raised"}
    assert logs.SICK_FROM <= raised["learning_rate_too_high"] <= logs.SICK_FROM + 20
    assert raised["kl_runaway"] >= logs.SICK_FROM


def test_a_healthy_run_raises_nothing_that_harms():
    changes = follow(LiveDoctor({}, every=10), logs.healthy())
    assert [change for change in changes if change.finding.severity != "info"] == []


def test_it_looks_every_n_steps_only():
    steps = {change.step for change in follow(LiveDoctor({}, every=25), logs.sick())}
    assert steps and all((step + 1) % 25 == 0 for step in steps)


def test_a_finding_is_raised_once_and_cleared_after_it_was_missed_twice():
    doctor = LiveDoctor({}, every=10)
    rows = [{"step": i, "reward/mean": math.nan if 30 <= i < 34 else 0.1 * i} for i in range(60)]
    raised = [change for change in follow(doctor, rows) if change.finding.check == "non_finite"]
    assert [(change.step, change.state) for change in raised] == [(39, "raised")]
    doctor._series.clear()
    told = [[(change.state, change.finding.check) for change in doctor.look(60 + i)] for i in range(GONE)]
    assert told[:-1] == [[]] * (GONE - 1)
    assert ("cleared", "non_finite") in told[-1]
    assert doctor.findings == ()


def test_a_finding_is_cleared_at_once_where_one_of_the_same_check_and_another_cause_succeeds_it(monkeypatch):
    def found(cause, severity):
        return Finding("no_signal_groups", severity, 3, cause, "m")

    too_hard, too_easy = found("too_hard", "warning"), found("too_easy", "info")
    seen = iter([(too_hard,), (too_easy,), (too_easy, too_hard), (too_hard,)])
    monkeypatch.setattr("steadyrl.doctor.live.examine", lambda run: SimpleNamespace(findings=next(seen)))
    doctor = LiveDoctor({})

    def changes(step):
        return [(change.state, change.finding.cause) for change in doctor.look(step)]

    assert changes(29) == [("raised", "too_hard")]
    assert changes(49) == [("cleared", "too_hard"), ("raised", "too_easy")]
    assert changes(69) == [("raised", "too_hard")]
    assert changes(89) == [], "missed once, and nothing new came in its place"


def test_a_finding_that_becomes_more_severe_is_raised_again():
    rows = [{"step": i, "reward/mean": math.nan if i >= 30 else 0.1 * i} for i in range(40)]
    doctor = LiveDoctor({}, every=1)
    states = [
        (change.step, change.finding.severity)
        for change in follow(doctor, rows)
        if change.finding.check == "non_finite" and change.state == "raised"
    ]
    assert states == [(30, "warning"), (32, "critical")]


def test_a_resumed_run_remembers_what_was_measured_before():
    rows = list(logs.sick())
    doctor = LiveDoctor({}, every=10)
    doctor.remember(rows[:300])
    changes = follow(doctor, rows[300:310])
    assert "learning_rate_too_high" in {change.finding.check for change in changes}


def test_a_run_that_went_back_to_a_checkpoint_forgets_what_came_after_it():
    broken, whole = LiveDoctor({}, every=10), LiveDoctor({}, every=10)
    rows = list(logs.sick(300))
    broken.remember([*rows[:250], *({**row, "kl_old_k3": 99.0} for row in rows[250:280])])
    whole.remember(rows[:250])
    assert follow(broken, rows[250:]) == follow(whole, rows[250:])
    assert broken._series["kl_old_k3"].column().values.max() < 99.0
    assert broken._series["kl_old_k3"].column().steps.tolist() == list(range(300))


def test_unknown_values_are_left_out_and_words_for_numbers_are_read():
    doctor = LiveDoctor({}, format="trainer_state")
    doctor.add(
        1,
        {
            "loss": "0.5",
            "kl": None,
            "note": "text",
            "reward": "nan",
            "flag": True,
            "step": 1,
            "entropy": np.float32(0.5),
        },
    )
    assert sorted(doctor._series) == ["entropy", "loss", "reward"]
    assert doctor._series["loss"].column().values.tolist() == [0.5]
    assert math.isnan(doctor._series["reward"].column().values[0])


def test_long_runs_are_thinned_evenly_and_a_rare_metric_keeps_all_its_points():
    doctor = LiveDoctor({}, every=10**9, points=100)
    for i in range(1000):
        doctor.add(i, {"loss": float(i), **({"heldout/f1": 1.0} if i % 50 == 49 else {})})
    loss = doctor._series["loss"].column()
    assert 50 <= len(loss.steps) <= 101
    assert set(loss.steps[1:] - loss.steps[:-1]) == {16}
    assert loss.steps[0] == 0 and (loss.values == loss.steps).all()
    assert doctor._series["heldout/f1"].column().steps.tolist() == list(range(49, 1000, 50))


def test_two_rows_of_one_step_count_as_one():
    doctor = LiveDoctor({}, every=2)
    doctor.add(1, {"loss": 1.0})
    doctor.add(1, {"eval_loss": 2.0})
    doctor.add(2, {"loss": 1.5})
    assert doctor._series["loss"].column().steps.tolist() == [1, 2]
    assert doctor._series["eval_loss"].column().steps.tolist() == [1]


def test_changes_go_to_the_run_directory_and_back(tmp_path):
    run = RunDir(tmp_path)
    changes = follow(LiveDoctor({}, every=10), logs.sick())
    for change in changes:
        append_line(run.findings_file, change.record())
    lines = list(read_lines(run.findings_file))
    assert [(line["step"], line["state"], line["check"]) for line in lines] == [
        (change.step, change.state, change.finding.check) for change in changes
    ]
    assert set(lines[0]) >= {"severity", "since_step", "cause", "message", "evidence", "remedy", "overrides", "follows"}
    assert json.dumps(lines[0])


@pytest.mark.parametrize("every", [pytest.param(9, marks=pytest.mark.weekly), 20])
def test_the_same_run_raises_the_same_findings_at_the_same_steps(every):
    rows = list(logs.sick(260))
    assert follow(LiveDoctor({}, every=every), rows) == follow(LiveDoctor({}, every=every), rows)


def test_what_was_found_afresh_is_there_at_the_step_of_an_examination_only():
    doctor, rows, seen = LiveDoctor({}, every=10), list(logs.sick()), {}
    for row in rows:
        doctor.add(row["step"], row)
        seen[row["step"]] = doctor.fresh
    assert all((found is not None) == ((step + 1) % 10 == 0) for step, found in seen.items())
    assert "learning_rate_too_high" in {finding.check for finding in seen[len(rows) // 10 * 10 - 1]}
    assert LiveDoctor({}).fresh is None


def test_scalars_of_arrays_and_nested_metrics_count_as_numbers():
    doctor = LiveDoctor()
    scalar = SimpleNamespace(item=lambda: 0.75)  # as tensors of PyTorch are
    doctor.add(4, {"reward": scalar, "kl": np.array(0.5), "loss": {"policy": np.float32(2.0)}, "drawn": np.ones(3)})
    seen = {name: points.column().values.tolist() for name, points in doctor._series.items()}
    assert seen == {"reward": [0.75], "kl": [0.5], "loss/policy": [2.0]}


def test_a_loop_with_names_of_its_own_is_examined_by_what_they_are_said_to_be():
    rows = [{"step": i, "gain": 0.1 + i / 200, "wander": 0.02 * i * i} for i in range(90)]
    names = {"gain": "reward", "wander": "kl_ref_k1_seq"}
    blind, informed = (
        {change.finding.check for change in follow(LiveDoctor(every=10, names=own), rows)} for own in ({}, names)
    )
    assert "kl_runaway" not in blind
    assert "kl_runaway" in informed


@pytest.mark.parametrize(
    "wrong",
    [
        *({"every": every} for every in (0, -3, "7", 1.5, None)),
        *({"names": names} for names in ({"drift": "kl_reff"}, {"drift": None}, "drift=kl")),
        *({"settings": settings} for settings in ("beta=0.1", [0.1], 3)),
    ],
)
def test_what_no_live_doctor_can_have_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"every is|did you mean 'kl_ref|for names; expected|for the settings; exp"):
        LiveDoctor(**wrong)


@pytest.mark.parametrize("step", [None, 2.5, "later", math.nan, 10**20, True, [4]])
def test_a_step_that_is_no_whole_number_is_refused(step):
    doctor = LiveDoctor()
    with pytest.raises(ConfigError, match=r"the step is .*; expected a whole number"):
        doctor.add(step, {"reward": 0.5})
    with pytest.raises(ConfigError, match="the step is"):
        doctor.remember([{"step": step, "reward": 0.5}])
    assert doctor.add(SimpleNamespace(item=lambda: 3), {"reward": 0.5}) == []  # as a tensor's


@pytest.mark.parametrize("metrics", [None, 0.5, ["reward"], "reward"])
def test_metrics_without_names_are_refused(metrics):
    with pytest.raises(ConfigError, match="expected metrics by their names"):
        LiveDoctor().add(1, metrics)
