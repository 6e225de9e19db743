import json
import os
import time
from pathlib import Path

import pytest

from steadyrl.core import config
from steadyrl.core.errors import ConfigError, MissingExtraError
from steadyrl.core.rundir import RunDir, append_line, read_lines, write_json, write_lines, write_text
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
    assert [line["step"] for line in kept(run) if "reward/mean" in line.get("metrics", ())] == list(range(6))
    assert kept(run)[-1] == {"status": "finished"}
    assert not [note for note in notes if "tracker" in note.lower() or "sent" in note]


@pytest.mark.parametrize(
    ("name", "why"),
    [("Hanging", "it did not end within"), ("Dying", "Dying.log"), ("Failing", "KeyError: 'reward/meen'; see")],
)
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
    with pytest.raises(MissingExtraError, match=r"^the tracker 'wandb' needs .* pip install 'steadyrl\[wandb\]'"):
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


def evaluation(level):
    """Return two problems: the one with a known reward of `level`, and one without."""
    answer = {"text": "x", "reward": level, "metric": level, "parts": {"retrieval": level / 2}, "unscored": None}
    unknown = {**answer, "reward": None, "metric": None, "parts": {}}
    both = [{"sampled": answer, "greedy": unknown}, {"sampled": unknown, "greedy": unknown}]
    return [{"problem": f"p{i}", "prompt": "", "answers": answers} for i, answers in enumerate(both)]


def with_scores(run):
    write_lines(run.evaluation_file("before"), evaluation(0.25))
    write_lines(run.evaluation_file("after"), evaluation(0.75))
    write_text(run.report_folder / "report.md", "better")
    write_text(run.report_folder / "report.html", "<p>better</p>")
    return run


def heldout(run):
    return [
        (line["step"], line["metrics"])
        for line in kept(run)
        if any(name.startswith("heldout/") for name in line.get("metrics", ()))
    ]


def test_a_tracker_gets_the_held_out_scores_before_and_after_and_the_report(tmp_path, odd):
    run = with_scores(make_run(tmp_path / "a", steps=4))
    Follower(run, "odd_trackers:Keeping").close("finished")
    assert heldout(run) == [
        (0, {"heldout/reward": 0.25, "heldout/retrieval": 0.125}),
        (3, {"heldout/reward": 0.75, "heldout/retrieval": 0.375}),
    ]
    assert [line["report"] for line in kept(run) if "report" in line] == [["report.html", "report.md"]]


def test_a_score_that_the_last_step_has_is_not_sent_again(tmp_path, odd):
    run = with_scores(make_run(tmp_path / "a", steps=3))
    append_line(run.metrics_file, metrics(3, **{"heldout/reward": 0.75, "heldout/retrieval": 0.375}))
    Follower(run, "odd_trackers:Keeping").close("finished")
    assert [step for step, _ in heldout(run)] == [0, 3]


def test_a_run_that_trains_longer_sends_its_scores_of_the_new_last_step(tmp_path, odd):
    run = with_scores(make_run(tmp_path / "a", steps=4))
    Follower(run, "odd_trackers:Keeping").close("finished")
    append_line(run.metrics_file, metrics(4, 1))
    Follower(run, "odd_trackers:Keeping").close("finished")
    assert [(step, values["heldout/reward"]) for step, values in heldout(run)] == [(0, 0.25), (3, 0.75), (4, 0.75)]


def test_what_a_tracker_has_is_not_sent_again(tmp_path, odd, capsys):
    from steadyrl.cli.metrics import metrics_command

    run = with_scores(make_run(tmp_path / "a", steps=4))
    metrics_command(run.path, "odd_trackers:Keeping")
    assert "steps 0 to 3" in capsys.readouterr().out
    lines = kept(run)
    metrics_command(run.path, "odd_trackers:Keeping")
    assert f"nothing to send: odd_trackers:Keeping has all 4 steps of {run.path}" in capsys.readouterr().out
    assert kept(run) == lines
    write_text(run.report_folder / "report.html", "<p>better, and longer</p>")
    metrics_command(run.path, "odd_trackers:Keeping")
    assert "no new steps, but what came after them" in capsys.readouterr().out
    added = [line for line in kept(run)[len(lines) :] if "open" not in line and "status" not in line]
    assert added == [{"report": ["report.html", "report.md"]}]


def test_a_training_sends_the_report_that_is_written_at_its_end(toy, odd):
    settings = config.dump(toy().config)
    settings["run"] |= {"trackers": ["odd_trackers:Keeping"], "preflight": "off"}
    run = launch.run(settings, watch=Watch(ended=lambda run: write_text(run.report_folder / "report.html", "<p>x</p>")))
    assert kept(run)[-2:] == [{"report": ["report.html"]}, {"status": "finished"}]
    assert [step for step, _ in heldout(run)] == [0, 5]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_the_settings_and_scores_of_its_page_hparams(tmp_path):
    needs.skip_without_packages("tensorboard", extra="tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    run = with_scores(make_run(tmp_path / "run", steps=3, rate=0.002))
    Follower(run, "tensorboard").close("finished")
    events = EventAccumulator(str(run.trackers_folder / "tensorboard")).Reload()
    content = {
        tag: plugin_data_pb2.HParamsPluginData.FromString(data)
        for tag, data in events.PluginTagToContent("hparams").items()
    }
    start = content["_hparams_/session_start_info"].session_start_info
    assert start.hparams["update.learning_rate"].number_value == 0.002
    assert start.hparams["algorithm.name"].string_value == "ppo"
    tags = [info.name.tag for info in content["_hparams_/experiment"].experiment.metric_infos]
    assert tags == ["heldout/retrieval", "heldout/reward", "reward/mean"]
    assert [(event.step, event.value) for event in events.Scalars("heldout/reward")] == [(0, 0.25), (2, 0.75)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_settings_of_a_resumed_run_as_tags_and_the_report_as_artifacts(tmp_path, monkeypatch):
    needs.skip_without_packages("mlflow", "sqlalchemy", "alembic", extra="mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    run = with_scores(make_run(tmp_path / "run", steps=3, planned=6))
    parts = {f"reward/part_{i:03}": 1.0 for i in range(200)}
    append_line(run.metrics_file, metrics(3, **parts))
    Follower(run, "mlflow").close("finished")
    settings = run.resolved()
    settings["run"]["steps"] = 9
    write_json(run.resolved_file, settings)
    append_line(run.metrics_file, metrics(4, 1, **parts))
    Follower(run, "mlflow").close("finished")
    from mlflow import MlflowClient

    client = MlflowClient()
    (stored,) = client.search_runs([client.get_experiment_by_name("steadyrl").experiment_id])
    assert stored.data.params["run.steps"] == "6"
    assert {name: value for name, value in stored.data.tags.items() if name.startswith("resumed.")} == {
        "resumed.run.steps": "9"
    }
    files = [file.path for file in client.list_artifacts(stored.info.run_id, "report")]
    assert files == ["report/report.html", "report/report.md"]
    meanings = Path(client.download_artifacts(stored.info.run_id, "metrics.md", str(tmp_path))).read_text()
    assert "`reward/part_199`" in meanings and len(meanings) > 8000, "a description ends after 8,000 characters"
    assert stored.data.metrics["heldout/reward"] == 0.75


def test_wandb_measures_the_process_that_trains_and_nothing_of_a_run_that_has_ended():
    import platform

    from steadyrl.integrations.trackers.wandb import _measured_process

    process = {"id": 4711, "node": platform.node()}
    assert _measured_process({"status": "running", "process": process}) == {"x_stats_pid": 4711}
    assert _measured_process({"status": "finished", "process": process}) == {"x_disable_stats": True}
    assert _measured_process({"status": "running", "process": {"id": 4711, "node": "elsewhere"}}) == {
        "x_disable_stats": True
    }


def test_a_derived_tracker_needs_only_what_it_does(tmp_path, odd):
    require_trackers(["odd_trackers:Counting"])
    run = make_run(tmp_path / "a", steps=3)
    Follower(run, "odd_trackers:Counting").close("finished")
    assert (run.trackers_folder / "Counting" / "steps").read_text() == "0 1 2 "
