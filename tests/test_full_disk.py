"""Files that may not grow, as on a full disk or under `ulimit -f`: one line, and nothing half-written."""

import errno
import os
import subprocess
import sys

import pytest

from steadyrl.core.errors import AccessError
from steadyrl.core.rundir import RunDir, write_json
from steadyrl.environments.code.sandbox.choose import probe
from steadyrl.loop import checkpoint
from steadyrl.loop.checkpoint import State
from steadyrl.loop.launch import run
from steadyrl.loop.preflight.trial import begin_trial
from steadyrl.loop.preflight.trial_updates import make_trial_updates
from steadyrl.loop.record import recording_end
from tests.file_limit import files_end_after


def test_a_state_that_cannot_be_kept_ends_the_preflight_in_one_line(toy, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    trial = begin_trial(toy())
    with files_end_after(1000), pytest.raises(AccessError, match=r"cannot keep the state .*File too large.*ulimit -f"):
        make_trial_updates(trial)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("size", [0, 1000, 5000])
def test_a_run_that_cannot_be_begun_leaves_no_directory_and_no_other_a_part_of_a_file(toy, tmp_path, size):
    config = toy(f"run.folder='{tmp_path}/runs'", "run.preflight=off").config
    with files_end_after(size), pytest.raises(AccessError, match=r"cannot write '.*': File too large; .*ulimit -f"):
        run(config)
    left = [path.name for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert ("run.json" in left) if size == 5000 else (left == [])
    assert not [name for name in left if name.endswith(".part")]


def test_a_file_that_cannot_be_written_whole_leaves_no_part_of_it(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, {"status": "running"})
    before = path.read_bytes()
    with files_end_after(10), pytest.raises(AccessError, match="File too large"):
        write_json(path, {"status": "finished", "error": "x" * 100})
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"] and path.read_bytes() == before


@pytest.mark.landlock
def test_a_jail_that_cannot_be_tried_is_one_line():
    probe.cache_clear()
    with files_end_after(0), pytest.raises(AccessError, match=r"cannot write '.*target': File too large"):
        probe("landlock")


def test_a_lock_that_cannot_be_written_is_one_line_and_leaves_the_run_free(tmp_path):
    run = RunDir(tmp_path)
    message = r"cannot write '.*writer\.lock': File too large"
    with files_end_after(0), pytest.raises(AccessError, match=message), run.writing():
        pytest.fail("it is written by nobody")
    with run.writing():
        assert str(os.getpid()) in (tmp_path / "writer.lock").read_text()


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before_and_no_part(toy, tmp_path):
    session, directory = toy(), RunDir(tmp_path)
    checkpoint.save(directory, session.backend, State(step=1), 2)
    with files_end_after(1000), pytest.raises(AccessError, match="File too large"):
        checkpoint.save(directory, session.backend, State(step=2), 2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000001"]


@pytest.mark.linux
def test_an_output_file_that_may_not_grow_is_one_line(tmp_path):
    command = [sys.executable, "-m", "steadyrl", "--help"]
    with (tmp_path / "out").open("w") as out, files_end_after(10):
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"error: the output cannot be written: {os.strerror(errno.EFBIG)}\n"


def test_an_interrupt_on_a_full_disk_is_an_interrupt(tmp_path):
    directory = RunDir(tmp_path)
    write_json(directory.info_file, {"status": "running"})
    with files_end_after(5), pytest.raises(KeyboardInterrupt), recording_end(directory):
        raise KeyboardInterrupt
