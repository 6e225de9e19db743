import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steadyrl.core import config
from steadyrl.core.rundir import RunDir

EXAMPLES = Path(__file__).parent.parent / "examples"
CONFIGS = sorted(path for path in EXAMPLES.rglob("*.toml") if path.name != "pyproject.toml")


def command_line(folder, *arguments):
    """Run steadyrl in a folder, as a user would; return what it printed."""
    code = "from steadyrl.cli.main import main; main()"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.relative_to(EXAMPLES).as_posix())
def test_every_example_is_a_valid_config(path):
    found = config.load(path)
    assert config.resolve(config.dump(found)) == found


def test_rewards_of_ones_own_and_those_written_for_trl_are_learned_from(tmp_path):
    folder = EXAMPLES / "own_reward"
    printed = command_line(folder, "train", "config.toml", f"run.folder={tmp_path}")
    run = RunDir.open(next(tmp_path.iterdir()))
    metrics = run.metrics()
    assert len(metrics) == 40
    first, last = metrics[0], metrics[-1]
    assert first["reward/echo"] < 0.1 < 0.9 < last["reward/echo"]
    for line in (first, last):
        total = line["reward/echo"] + 0.05 * line["reward/brevity"]
        assert line["reward/mean"] == pytest.approx(total, rel=1e-9)
    summary = json.loads((run.report_folder / "summary.json").read_text())
    # four problems are too few for a verdict, however large the gain
    assert (summary["metric"], summary["verdict"], summary["n"]) == ("echo", "undecided", 4)
    assert summary["before"] < 0.1 < 0.9 < summary["after"]
    assert "held-out echo, sampled: " in printed


def test_the_example_task_is_sound():
    printed = command_line(EXAMPLES / "own_reward", "task", "check", "config.toml")
    assert [line.split()[0] for line in printed.splitlines()] == ["ok"] * 5
