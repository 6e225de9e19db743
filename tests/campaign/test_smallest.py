"""The smallest part of `bench/campaign/`: a few attacks of every kind that runs in one process."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.campaign import configs, data_files, judges, kinds, logs, run_files
from bench.campaign.child import Fault, in_child
from bench.campaign.killer import KILLS, Killer, _train, traces
from bench.campaign.trial import command, refused_or_done
from steadyrl.core.rundir import RunDir

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("part", "count"), [(configs, 60), (data_files, 60), (logs, 60), (judges, 15), (run_files, 2)])
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
    assert command(["runs", "--no-such-option"], 5.0).startswith("steadyrl runs: exit codes [2], 0 errors")


@pytest.fixture
def killer():
    """Return a killer of two quick kinds."""
    quick = [kind for kind in kinds.TOY if kind.name in ("toy, rloo, plr", "toy, raft, accel")]
    assert len(quick) == 2
    killer = Killer(tuple(quick))
    yield killer
    killer.close()


@pytest.mark.weekly  # tests/test_kill.py kills runs each time
def test_killed_runs_end_as_if_nothing_had_happened_and_kills_are_counted(killer, tmp_path):
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert killer.attack(random.Random(f"test/{number}"), folder) == ""
    assert sum(killer.met[kind] for kind in KILLS) == sum(row[1] for row in killer.rows() if "killed at" in row[0]) > 0
    assert not any(failures for _, _, failures in killer.rows())


@pytest.mark.parametrize(("kind", "ends"), [("operation", -9), ("full", 2), ("size", 2)])
def test_a_fault_hits_a_run_where_it_should(killer, tmp_path, kind, ends):
    (one, _) = killer._kinds
    place = tmp_path / "broken"
    place.mkdir()
    config = one.config(place / "runs")
    code, _ = in_child(lambda: _train(config, place), place, Fault(kind, 5))
    assert code == ends
    assert not list(place.glob("runs/*/checkpoints/*/DONE"))


def test_a_difference_of_one_file_is_seen(killer, tmp_path):
    (one, _) = killer._kinds
    whole = killer._unbroken(one, tmp_path / "whole")
    (run,) = (RunDir(path.parent) for path in (tmp_path / "whole").glob("runs/*/run.json"))
    assert traces(run) == whole.left
    (run.path / "left").touch()
    assert [name for name, value in traces(run).items() if value != whole.left[name]] == ["files"]


def test_the_command_writes_a_table_and_fails_where_a_promise_failed(tmp_path):
    out = tmp_path / "table.md"
    command = [sys.executable, str(ROOT / "bench" / "campaign" / "run.py"), "--minutes", "1", "--out", str(out)]
    before = ["--add", str(out.with_suffix(".json"))]
    for parts in (["--only", "data_files"], ["--only", "logs", "--only", "data_files", *before]):
        command_of_part = [*command, "--trials", "5", *parts]
        done = subprocess.run(command_of_part, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert re.search(r"\| a data file .* is read, .* \| 10 \| 0 \|\n\| a damaged log .* \| 5 \| 0 \|", out.read_text())
