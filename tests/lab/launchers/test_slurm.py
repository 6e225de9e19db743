"""SLURM's commands as its manual pages describe them, played by a stand-in that begins tasks as processes.

The stand-in keeps a file of JSON with the state of every task, and squeue's raw exit status.
"""

import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

from steadyrl.core.errors import ConfigError, EngineError
from steadyrl.lab.launchers import slurm
from steadyrl.lab.launchers.command import Command, Ended, choose

STAND_IN = Path(__file__).parent / "slurm_stand_in.py"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Put the stand-in on the PATH, and return the folder of its state."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" {name} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN", str(tmp_path / "state"))
    monkeypatch.setattr(slurm, "_POLL_S", 0.0)
    return tmp_path / "state"


def command(tmp_path, name, *words):
    return Command(name, words, tmp_path, tmp_path / f"{name} 's.log")


def python(tmp_path, name, code):
    return command(tmp_path, name, sys.executable, "-S", "-c", textwrap.dedent(code))


def until_ended(launcher, count, seconds=30):
    found, until = [], time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < until, f"only {found} ended"
        found += launcher.ended()
        time.sleep(0.05)
    return sorted(found, key=lambda one: one.name)


def test_tasks_end_with_their_codes_and_write_their_logs(cluster, tmp_path):
    launcher = choose("slurm", {"partition": "long"}, ["time=04:00:00", "gpus=1", "options=['--account=lab']"], 2)
    launcher.start(
        [
            python(tmp_path, "a", "print('it\\'s done')"),
            python(tmp_path, "b", "import sys; sys.exit('error: no')"),
            python(tmp_path, "c", "import os; os.kill(os.getpid(), 9)"),
        ]
    )
    assert until_ended(launcher, 3) == [Ended("a", 0, "COMPLETED"), Ended("b", 1, "FAILED"), Ended("c", -9, "FAILED")]
    assert (tmp_path / "a 's.log").read_text() == "it's done\n"
    assert command(tmp_path, "b").error(Ended("b", 2)) == "no"
    options = (cluster / "options").read_text().split("\n")
    assert {"--array=0-2%2", "--partition=long", "--time=04:00:00", "--gpus=1", "--account=lab", "--requeue"} <= {
        *options
    }
    assert launcher.ended() == []


def test_a_preempted_task_begins_again(cluster, tmp_path):
    launcher = choose("slurm", {}, (), 1)
    code = "import os, pathlib; p = pathlib.Path('begun'); p.exists() or (p.touch(), os.kill(os.getpid(), 31))"
    launcher.start([python(tmp_path, "a", code)])  # signal 31 stands for a preemption
    assert until_ended(launcher, 1) == [Ended("a", 0, "COMPLETED")]
    assert (cluster / "requeued").read_text() == "1_0\n"


def test_stopping_cancels_what_waits_and_asks_what_runs_to_end(cluster, tmp_path):
    launcher = choose("slurm", {}, (), 1)
    code = """
        import pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *args: sys.exit(130))
        pathlib.Path("begun").touch()
        time.sleep(60)
    """
    launcher.start([python(tmp_path, "a", code), python(tmp_path, "b", "pass")])
    until = time.monotonic() + 30
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < until
        assert launcher.ended() == []
    launcher.stop()
    assert until_ended(launcher, 2) == [Ended("a", 130, "FAILED"), Ended("b", None, "CANCELLED")]


def test_stopping_when_the_last_task_has_just_ended_is_no_error(cluster, tmp_path):
    launcher = choose("slurm", {}, (), 1)
    launcher.start([command(tmp_path, "a", "true")])
    until = time.monotonic() + 30
    while not (cluster / "1_0.status").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    launcher.stop()
    assert until_ended(launcher, 1) == [Ended("a", 0, "COMPLETED")]


@pytest.mark.parametrize("kept", [True, False], ids=["accounting", "no accounting"])
def test_a_task_that_the_queue_has_forgotten_is_looked_up_in_the_accounting(cluster, tmp_path, kept):
    launcher = choose("slurm", {}, (), 1)
    launcher.start([python(tmp_path, "a", "import sys; sys.exit(3)")])
    (cluster / "forgets").touch()
    if not kept:
        (cluster / "no_accounting").touch()
    expected = Ended("a", 3, "FAILED") if kept else Ended("a", None, "SLURM does not know it any more")
    assert until_ended(launcher, 1) == [expected]


def test_what_the_cluster_refuses_is_one_line(cluster, tmp_path):
    launcher = choose("slurm", {"partition": "nowhere"}, (), 1)
    with pytest.raises(ConfigError, match=r"^sbatch: .*invalid partition specified: nowhere.*--launcher-args"):
        launcher.start([python(tmp_path, "a", "pass")])


def test_a_controller_that_does_not_answer_is_an_error_of_the_engine(cluster, tmp_path):
    launcher = choose("slurm", {}, (), 1)
    launcher.start([python(tmp_path, "a", "pass")])
    (cluster / "down").touch()
    with pytest.raises(EngineError, match=r"squeue: .*Unable to contact slurm controller"):
        launcher.ended()
    (cluster / "down").unlink()
    assert until_ended(launcher, 1) == [Ended("a", 0, "COMPLETED")]


def test_a_machine_without_slurm_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs the command 'sbatch' on the PATH.*login machine"):
        choose("slurm", {}, (), 1).start([python(tmp_path, "a", "pass")])


def test_a_signal_to_the_script_reaches_the_command(tmp_path):
    line = python(tmp_path, "a", "import os; print(os.getpid(), flush=True); os.kill(os.getpid(), 15)").shell()
    process = os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", line)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    assert int((tmp_path / "a 's.log").read_text()) == process
