"""Folders for passing files: removed at the end, and after a kill by whoever comes next."""

import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from steadyrl import scratch
from steadyrl.scratch import scratch_folder, sweep

HOLD = (
    "import sys\nfrom steadyrl.scratch import scratch_folder\nwith scratch_folder() as folder:\n"
    "    (folder / 'kept').write_text('x')\n    print(folder, flush=True)\n    sys.stdin.read()\n"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_folder_is_there_while_it_is_used_and_gone_afterwards(temporary):
    with scratch_folder() as folder:
        (folder / "file").write_text("x")
        assert folder.parent == temporary
        with scratch_folder() as second:
            assert folder.is_dir() and second.is_dir()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_one_and_not_before(temporary):
    killed, alive = (
        subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    with killed, alive:
        folders = [process.stdout.readline().strip() for process in (killed, alive)]
        sweep()
        assert all(map(os.path.isdir, folders))  # both processes live
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert os.path.isfile(f"{folders[0]}/kept")
        with scratch_folder():
            assert [os.path.isdir(folder) for folder in folders] == [False, True]
        alive.stdin.close()
        alive.wait()
    assert list(temporary.iterdir()) == []


def test_a_folder_that_nobody_has_locked_yet_is_removed_only_when_it_is_old(temporary):
    new, old, other = (temporary / name for name in ("srl-new", "srl-old", "another"))
    for folder in (new, old, other):
        folder.mkdir()
        if folder != new:
            os.utime(folder, (0, time.time() - 2 * scratch._UNLOCKED_S))
    sweep()
    assert sorted(path.name for path in temporary.iterdir()) == ["another", "srl-new"]


def test_a_link_is_never_followed(temporary):
    target = temporary / "target"
    target.mkdir()
    os.utime(target, (0, 0))
    (temporary / "srl-link").symlink_to(target)
    sweep()
    assert target.is_dir()
