"""Several runs in one report: what differs, the numbers of each, and what is refused."""

import re

import pytest
from typer.testing import CliRunner

from steadyrl.cli.main import app
from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.rundir import RunDir, append_line, write_json
from steadyrl.show.report.overlay import write_overlay
from steadyrl.show.report.pictures.curves import overlay

pytestmark = pytest.mark.pictures


def made(folder, name, rate, rewards, **metrics):
    run = RunDir(folder / name)
    write_json(run.info_file, {"status": "finished", "metric": "m"})
    write_json(run.resolved_file, {"update": {"learning_rate": rate, "epochs": 2}, "run": {"folder": name}})
    for step, reward in enumerate(rewards):
        append_line(run.metrics_file, {"step": step, "attempt": 0, "reward/mean": reward, **metrics})
    return run


def test_the_report_has_what_differs_and_the_numbers_of_each_run(tmp_path):
    runs = [made(tmp_path, "a|b", 0.1, [1.0] * 5), made(tmp_path, "c", 0.2, [0.0, 0, 0, 0, 3], entropy=0.5)]
    page = write_overlay(runs, tmp_path / "out")
    text = (tmp_path / "out" / "overlay.md").read_text()
    assert "| update.learning\\_rate | 0.1 | 0.2 |" in text.replace("update.learning_rate", "update.learning\\_rate")
    settings = text[text.index("## Settings that differ") : text.index("## Why they differ")]
    assert "epochs" not in settings and "run.folder" not in settings
    assert "likely: learning_rate is set differently, 0.1 and 0.2" in text
    assert "B and A cannot be compared problem by problem: there is no evaluation after training of A and B." in text
    assert "| **Reward** |  |  |\n| reward/mean, at the start | 1.000 | 0.000 |" in text
    assert "\n| reward/mean, at the end | 1.000 | 3.000 |" in text
    assert "| **Entropy** |  |  |\n| entropy, at the start | – | 0.500 |" in text
    assert "KL control" not in text  # nothing was measured, so there is no empty row
    assert "a\\|b" in text
    first = {path.name: path.read_bytes() for path in page.parent.iterdir()}
    write_overlay(runs, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in page.parent.iterdir()} == first


def test_what_cannot_be_laid_over_one_another_is_refused(tmp_path):
    run, empty = made(tmp_path, "a", 0.1, [1.0]), made(tmp_path, "b", 0.1, [])
    with pytest.raises(ConfigError, match="given twice"):
        write_overlay([run, run], tmp_path / "out")
    with pytest.raises(RunError, match="has no steps yet"):
        write_overlay([run, empty], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_takes_several_runs(tmp_path):
    runs = [str(made(tmp_path, name, 0.1, [1.0, 2.0]).path) for name in "abc"]
    result = CliRunner().invoke(app, ["report", *runs, "--to", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "None of those that every run has." in (tmp_path / "out" / "overlay.html").read_text()


@pytest.mark.parametrize(
    ("metrics", "panels", "others"),
    [
        ({"clip_fraction": 0.0}, ["Reward"], ["clip fraction"]),  # it never clips: an empty panel
        ({"clip_fraction": 0.0, "kl_old_k3": 0.1}, ["Reward", "KL to the old policy"], ["clip fraction"]),
        ({"clip_fraction": 0.1, "kl_old_k3": 0.1}, ["Reward", "clip fraction"], ["KL to the old policy"]),
        ({"grad_norm": 0.5}, ["Reward", "Gradient norm"], ["Value loss"]),
        ({"grad_norm": 0.5, "loss/value": 0.0}, ["Reward", "Value loss"], ["Gradient norm"]),
        ({"entropy": 0.0}, ["Reward", "Entropy"], []),
    ],
)
def test_a_picture_has_a_panel_for_what_says_something(metrics, panels, others):
    records = [{"step": step, "reward/mean": 0.0, **metrics} for step in range(5)]
    drawn = overlay({"a": [records], "b": [[{"step": 0}]]})
    assert drawn is not None
    assert [name for name in panels if name not in drawn] == []
    assert [name for name in others if name in drawn] == []


@pytest.mark.parametrize(
    ("metric", "title"),
    [("kl_old_k3", "KL to the old policy (k3)"), ("loss/nll", "Loss of the imitated texts"), ("clip_fraction", "clip")],
)
def test_a_metric_in_the_place_of_another_has_a_title_in_words(metric, title):
    picture = overlay({"A": [[{"step": i, metric: 0.1 * i} for i in range(4)]]})
    assert title in picture and f">{metric}<" not in picture


def test_a_whole_picture_does_not_shrink_on_a_phone(tmp_path):
    runs = [made(tmp_path, name, 0.1, [1.0, 2.0, 3.0]) for name in "ab"]
    page = write_overlay(runs, tmp_path / "out").read_text()
    width = re.search(r'\.picture svg\[viewBox\^="(0 0 \d+ )"\], \.picture img \{ min-width: 36rem; \}', page)
    assert width is not None and f'viewBox="{width[1]}' in page
