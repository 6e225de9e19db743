import importlib.util
import io
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from steadyrl.core import config

ROOT = Path(__file__).parent.parent
TOY = """
[backend]
name = "toy"
[run]
steps = 3
preflight = "off"
[task]
name = "prompts"
args = { path = "prompts.jsonl" }
[rewards]
length = 1.0
[sampling]
max_new_tokens = 6
"""


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """Return the script as a module, in a folder with a config of the toy backend."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    specification = importlib.util.spec_from_file_location("demo", ROOT / "scripts" / "demo.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.1)
    (tmp_path / "toy.toml").write_text(TOY)
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "say {i}"}}\n' for i in range(8)))
    return module


def test_runs_side_by_side_are_all_returned(demo, monkeypatch, capsys):
    rows = []
    monkeypatch.setattr(demo.Training, "row", lambda self, row=demo.Training.row: rows.append(row(self)) or rows[-1])
    runs = demo.train({"short": ["toy.toml"], "shorter": ["toy.toml", "run.steps=2", "run.seed=1"]})
    assert {name: len(run.metrics()) for name, run in runs.items()} == {"short": 3, "shorter": 2}
    assert {run.path.parent.name for run in runs.values()} == {demo.FOLDER.name}
    out = capsys.readouterr().out
    assert "short: steadyrl train toy.toml" in out
    statuses = [line.partition(" s  ")[2] for line in out.splitlines() if " s  " in line]
    assert len(set(statuses)) == len(statuses)  # a status that stays is printed once
    for name, run in runs.items():  # a row shows the last step
        last = run.metrics()[-1]
        assert [name, str(len(run.metrics())), f"{last['reward/mean']:.3g}"] in [row[:3] for row in rows]


def test_the_status_is_the_last_line_that_is_no_detail(demo):
    training = demo.Training("toy", ["toy.toml"])
    training.process.kill()
    training.process.wait()
    training.lines = ["starting", "step 3 (4/9)", "    rollouts scored by correct: 1 of 192", ""]
    assert training.status() == "toy: step 3 (4/9)"


def test_a_training_that_fails_ends_the_demo_with_the_reason(demo):
    with pytest.raises(SystemExit) as ended:
        demo.train({"broken": ["toy.toml", "run.steps=none"]})
    assert "broken: the training failed" in str(ended.value) and "run.steps" in str(ended.value)


@pytest.mark.parametrize("arguments", ["SETTINGS", "SUMS"])
def test_the_settings_of_the_demo_are_valid(demo, arguments):
    value = getattr(demo, arguments)
    for path, *overrides in [value] if isinstance(value, list) else value.values():
        config.load(ROOT / path, overrides)


def test_both_settings_train_by_the_same_reward(demo):
    founding, steady = (config.load(ROOT / path, overrides) for path, *overrides in demo.SETTINGS.values())
    assert founding.rewards == steady.rewards and founding.task == steady.task and founding.model == steady.model
    assert founding.run.steps == steady.run.steps


def test_dots_pass_on_how_a_command_ends():
    done = subprocess.run(
        ["sh", ROOT / "scripts/dots.sh", "sh", "-c", "echo out; sleep 1.2; exit 3"], capture_output=True
    )
    assert done.returncode == 3 and done.stdout == b"out\n" and re.fullmatch(rb"\.+\n", done.stderr)


def test_the_progress_of_two_trainings_fits_80_columns_with_every_number_once(demo):
    row = ["founding settings", "7", "0.0579", "5.02", "3.09", "2.12"]
    status = "founding settings: step 6 (7/60)  reward 0.0579  KL to ref 2.36 nats/token  entropy 3.09 nats/token"
    training = SimpleNamespace(row=lambda: row, status=lambda: status)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(demo.progress([training, training]))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines[1:] == [" ".join(row).split()] * 2 + ["founding settings: step 6 (7/60)".split()] * 2
