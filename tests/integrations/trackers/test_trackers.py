import json
import os
import time
from pathlib import Path

import pytest

from steadyrl.core import config
from steadyrl.core.errors import ConfigError, MissingExtraError
from steadyrl.core.rundir import RunDir, append_line, read_lines
from steadyrl.doctor.examine import diagnose
from steadyrl.integrations.trackers import tracked as subject
from steadyrl.integrations.trackers.follow import Follower, sent_until
from steadyrl.integrations.trackers.tracked import require_trackers, tracked
from steadyrl.loop import launch
from steadyrl.loop.train import Watch
from tests import needs
from tests.show.web.made import FINDING, make_run, metrics, rollout

HERE = Path(__file__).parent


@pytest.fixture
def odd(monkeypatch):
    """Let this process and those it starts import the trackers of odd_trackers.py."""
    monkeypatch.syspath_prepend(HERE)
    paths = [str(HERE), str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))


def kept(run):
    return list(read_lines(run.trackers_folder / "Keeping" / "kept.jsonl"))


def test_a_tracker_gets_each_step_once_with_findings_and_samples(tmp_path, odd):
    run = make_run(tmp_path / "a", steps=5)
    follower = Follower(run, "odd_trackers:Keeping")
    assert follower.send()
    assert not follower.send()
    append_line(run.metrics_file, metrics(5, **{"reward/mean": float("nan"), "kl": None, "text": "x"}))
    follower.close("finished")
    lines = kept(run)
    assert lines[0]["settings"]["update"] == {"learning_rate": 0.001}
    assert [line["step"] for line in lines if "step" in line] == [0, 1, 2, 3, 4, 5]
    assert lines[1]["metrics"] == {k: v for k, v in metrics(0).items() if k not in ("step", "attempt", "time")}
    last = next(line for line in lines if line.get("step") == 5)
    assert "reward/mean" not in last["metrics"]
    assert [line["finding"] for line in lines if "finding" in line] == [FINDING["check"]]
    (samples,) = [line["samples"] for line in lines if "samples" in line]
    assert samples[0]["completion"] == "red at 0"
    assert lines[-1] == {"status": "finished"}


def test_after_a_resumption_a_tracker_goes_on_where_it_was(tmp_path, odd):
    run = make_run(tmp_path / "a", steps=7)
    Follower(run, "odd_trackers:Keeping").close("killed")
    for step in range(5, 9):  # a checkpoint after 5 steps
        append_line(run.metrics_file, metrics(step, 1))
    again = Follower(run, "odd_trackers:Keeping")
    again.close("finished")
    assert [line["step"] for line in kept(run) if "step" in line] == list(range(9))
    assert json.loads((run.trackers_folder / "Keeping.json").read_text())["kept"] == {"opened": 2}
    assert [line["finding"] for line in kept(run) if "finding" in line] == [FINDING["check"]]


def test_a_training_sends_its_steps_and_says_nothing(toy, tmp_path, odd):
    notes = []
    settings = config.dump(toy().config)
    settings["run"] |= {"trackers": ["odd_trackers:Keeping"], "preflight": "off"}
    run = launch.run(settings, watch=Watch(note=notes.append))
    assert [line["step"] for line in kept(run) if "step" in line] == list(range(6))
    assert kept(run)[-1] == {"status": "finished"}
    assert not [note for note in notes if "tracker" in note.lower() or "sent" in note]


@pytest.mark.parametrize(("name", "why"), [("Hanging", "it did not end within"), ("Dying", "Dying.log")])
def test_a_tracker_that_hangs_or_dies_costs_its_own_steps_only(toy, odd, monkeypatch, name, why):
    monkeypatch.setattr(subject, "END_S", 3.0)
    notes = []
    settings = config.dump(toy().config)
    settings["run"] |= {"trackers": [f"odd_trackers:{name}"], "preflight": "off"}
    began = time.monotonic()
    run = launch.run(settings, watch=Watch(note=notes.append))
    assert time.monotonic() - began < 60
    assert (run.status, len(run.metrics())) == ("finished", 6)
    (said,) = [note for note in notes if "not sent" in note]
    assert "of 6 steps were not sent" in said
    assert why in said
    assert f"steadyrl metrics {run.path} --to odd_trackers:{name}" in said


@pytest.mark.linux
def test_what_a_tracker_that_failed_has_started_is_ended(toy, odd):
    settings = config.dump(toy().config)
    settings["run"] |= {"trackers": ["odd_trackers:Straying"], "preflight": "off"}
    run = launch.run(settings)
    (child,) = [
        line["child"] for line in read_lines(run.trackers_folder / "Straying" / "kept.jsonl") if "child" in line
    ]
    until = time.monotonic() + 10
    while Path(f"/proc/{child}/environ").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < until, "the process is still there"
        time.sleep(0.05)


def test_what_was_not_sent_is_sent_later(tmp_path, odd, capsys):
    from steadyrl.cli.metrics import metrics_command

    run = make_run(tmp_path / "a", steps=4)
    Follower(run, "odd_trackers:Keeping").send()
    append_line(run.metrics_file, metrics(4))
    metrics_command(run.path, "odd_trackers:Keeping")
    assert "steps 4 to 4" in capsys.readouterr().out
    assert [line["step"] for line in kept(run) if "step" in line] == list(range(5))


def test_a_tracker_that_is_not_there_is_refused_before_anything_runs(toy, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="wandbb"):
        require_trackers(["wandbb"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'steadyrl\[wandb\]'"):
        require_trackers(["wandb"])
    settings = config.dump(toy().config)
    settings["run"] |= {"trackers": ["mlflow"], "folder": str(tmp_path / "none")}
    with pytest.raises(MissingExtraError):
        launch.run(settings)
    assert not (tmp_path / "none").exists()


def test_a_run_that_is_sent_to_nobody_starts_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(subject, "_start", None)
    with tracked(RunDir(tmp_path), [], print):
        pass


STORES = {
    "tensorboard": "run/trackers/tensorboard",
    "wandb": "run/trackers/wandb",
    "trackio": "trackio",
    "mlflow": "mlflow.db",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries, on one another
@pytest.mark.parametrize("name", STORES)
def test_a_run_killed_and_resumed_is_read_back_to_the_same_verdict(tmp_path, monkeypatch, name):
    needs.skip_without_packages(name, extra=name)
    if name == "mlflow":
        needs.skip_without_packages("sqlalchemy", "alembic", extra=name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    run = make_run(tmp_path / "run", steps=0)
    for step in range(60):  # a KL that an unbiased estimate cannot have
        append_line(
            run.metrics_file, metrics(step, kl_ref_k1_seq=-1.0 - 0.1 * step, kl_ref_k1=-0.1, kl_ref_k1_seq_se=0.05)
        )
    first = Follower(run, name)
    first.send()
    first.close("killed")
    for step in range(50, 90):
        append_line(
            run.metrics_file, metrics(step, 1, kl_ref_k1_seq=-1.0 - 0.1 * step, kl_ref_k1=-0.1, kl_ref_k1_seq_se=0.05)
        )
    second = Follower(run, name)
    second.close("finished")
    assert sent_until(run, name) == 89
    (ours,) = diagnose(run.path)
    theirs = diagnose(tmp_path / STORES[name])[-1]  # of W&B offline the newest is whole
    assert theirs.verdict == ours.verdict == "sick"
    assert {finding.check for finding in ours.findings} == {finding.check for finding in theirs.findings}
    assert "negative_kl" in {finding.check for finding in theirs.findings}
    assert theirs.run.steps == ours.run.steps == 90
    reward = theirs.run.get("reward")
    assert reward.values[-1] == pytest.approx(metrics(89)["reward/mean"])


def test_rows_of_a_table_hold_the_texts(tmp_path, odd):
    run = make_run(tmp_path / "a", steps=12)
    from steadyrl.core.rundir import write_lines

    write_lines(run.rollouts_file(10), [rollout("p", None, "x" * 10_000) for _ in range(40)])
    Follower(run, "odd_trackers:Keeping").send()
    (samples,) = [line["samples"] for line in kept(run) if "samples" in line]
    assert len(samples) == 16
    assert (len(samples[0]["completion"]), samples[0]["reward"]) == (4000, None)
