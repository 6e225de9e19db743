"""The real libraries against servers: one of W&B that stores what it is sent, one that is dead, one that hangs."""

import json
import socket
import time

import pytest

from steadyrl.core import config
from steadyrl.core.rundir import append_line, write_lines
from steadyrl.doctor.examine import diagnose
from steadyrl.integrations.trackers import tracked as subject
from steadyrl.integrations.trackers.follow import Follower, sent_until
from steadyrl.loop import launch
from steadyrl.loop.train import Watch
from tests import needs
from tests.integrations.trackers.wandb_server import WandbService
from tests.show.web.made import FINDING, make_run, metrics

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of the library, on itself


@pytest.fixture
def online(monkeypatch, tmp_path):
    """Return a function that points the clients of W&B and MLflow to an address; nothing else is asked."""
    monkeypatch.chdir(tmp_path)

    def point(url):
        for name, value in (("BASE_URL", url), ("API_KEY", "a" * 40), ("MODE", "online"), ("ERROR_REPORTING", "false")):
            monkeypatch.setenv(f"WANDB_{name}", value)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)

    return point


def sick(step, attempt=0):
    """Return the metrics of a run whose KL an unbiased estimate cannot have."""
    return metrics(step, attempt, kl_ref_k1_seq=-1.0 - 0.1 * step, kl_ref_k1=-0.1, kl_ref_k1_seq_se=0.05)


def test_a_run_killed_and_resumed_goes_on_behind_its_curve_and_is_read_back_to_the_same_verdict(tmp_path, online):
    needs.skip_without_packages("wandb", extra="wandb")
    run = make_run(tmp_path / "run", steps=0)
    write_lines(run.metrics_file, [sick(step) for step in range(60)])
    with WandbService() as service:
        online(service.url)
        first = Follower(run, "wandb")
        first.send()
        first.close("killed")
        stored = service.runs["run"]
        assert [line["_step"] for line in stored.history] == list(range(60))
        for step in range(50, 90):
            append_line(run.metrics_file, sick(step, 1))
        second = Follower(run, "wandb")
        second.close("finished")
        assert list(service.runs) == ["run"]
    assert [line["_step"] for line in stored.history] == list(range(90))
    assert sent_until(run, "wandb") == 89
    assert stored.history[3]["train/reward/mean"] == stored.history[3]["reward/mean"] == sick(3)["reward/mean"]
    assert stored.config["update"]["value"] == {"learning_rate": 0.001}
    assert "Unit: nats/token." in stored.config["metrics"]["value"]["entropy"]
    assert [alert["title"] for alert in stored.alerts] == [f"{FINDING['check']} (step 19)"]
    assert any("rollouts" in name for name in stored.files)

    (tmp_path / "theirs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in stored.history))
    (ours,), (theirs,) = diagnose(run.path), diagnose(tmp_path / "theirs.jsonl")
    assert theirs.verdict == ours.verdict == "sick"
    assert "negative_kl" in {finding.check for finding in theirs.findings}
    assert theirs.run.steps == ours.run.steps == 90


@pytest.mark.parametrize("answers", [False, True], ids=["dead", "hanging"])
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_server_that_is_dead_or_hangs_costs_only_the_curve_there(toy, online, monkeypatch, name, answers):
    needs.skip_without_packages(name, extra=name)
    monkeypatch.setattr(subject, "END_S", 3.0)
    notes = []
    with socket.create_server(("127.0.0.1", 0)) as waiting:  # it accepts, and says nothing
        port = waiting.getsockname()[1]
        if not answers:
            waiting.close()
        online(f"http://127.0.0.1:{port}")
        settings = config.dump(toy().config)
        settings["run"] |= {"trackers": [name], "preflight": "off"}
        began = time.monotonic()
        run = launch.run(settings, watch=Watch(note=notes.append))
        assert time.monotonic() - began < 60
    assert (run.status, len(run.metrics())) == ("finished", 6)
    (said,) = [note for note in notes if "not sent" in note]
    assert f"{name}: 6 of 6 steps were not sent" in said
    assert f"steadyrl metrics {run.path} --to {name}" in said
