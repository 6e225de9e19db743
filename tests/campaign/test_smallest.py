"""The smallest part of `bench/campaign/`: a few attacks of every kind that runs in one process."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.campaign import configs, data_files, judges, killer, logs, run_files
from bench.campaign.trial import command, refused_or_done

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("part", "count"), [(configs, 60), (data_files, 60), (logs, 60), (judges, 15), (killer, 3), (run_files, 3)]
)
def test_the_promise_of_a_part_holds(part, count, tmp_path):
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert part.attack(random.Random(f"test/{number}"), folder) == "", number


def test_what_is_no_error_of_ours_is_a_failure():
    def divides():
        return 1 // 0

    def never_ends():
        while True:
            pass

    assert refused_or_done(divides, 5.0).startswith("ZeroDivisionError at test_smallest.py")
    assert "not over after 0.1 s" in refused_or_done(never_ends, 0.1)
    assert command(["no-such-command"], 5.0).startswith("steadyrl no-such-command: exit codes [2], 0 errors")


def test_a_kill_at_an_operation_on_files_is_a_kill(tmp_path):
    folder = tmp_path / "runs"
    code, _ = killer._in_child(lambda: killer._train("grpo", "uniform", "off", folder, 3), None)
    assert code == -9
    assert not list(folder.glob("*/checkpoints/*/DONE"))


def test_the_command_writes_a_table_and_fails_where_a_promise_failed(tmp_path):
    out = tmp_path / "table.md"
    script = [sys.executable, str(ROOT / "bench" / "campaign" / "run.py"), "--minutes", "1", "--out", str(out)]
    done = subprocess.run(
        [*script, "--only", "data_files", "--trials", "5"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\| a data file is read, .* \| 5 \| 0 \|", out.read_text())
