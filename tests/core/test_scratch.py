"""Folders of temporary files: who is alive keeps them, who was killed does not."""

import errno
import fcntl
import signal
import subprocess
import sys
import tempfile

import pytest

from steadyrl.core.errors import AccessError
from steadyrl.core.scratch import Folder, scratch_folder, sweep

OWNER = (
    "from steadyrl.core.scratch import Folder\n"
    "import sys, time\n"
    "folder = Folder()\n"
    "folder.note_profile(sys.argv[1])\n"
    "print(folder.path, flush=True)\n"
    "time.sleep(60)\n"
)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def killed_owner_of(profile):
    with subprocess.Popen([sys.executable, "-c", OWNER, str(profile)], stdout=subprocess.PIPE, text=True) as owner:
        folder = owner.stdout.readline().strip()
        yield folder
        owner.send_signal(signal.SIGKILL)
    yield folder


def test_what_a_killed_program_left_goes_and_what_a_living_one_holds_stays(temporary):
    profile = temporary / "playwright_chromiumdev_profile-abc"
    profile.mkdir()
    mine = Folder()
    steps = killed_owner_of(profile)
    theirs = next(steps)
    sweep()
    assert {str(path) for path in temporary.iterdir()} == {str(mine.path), theirs, str(profile)}
    next(steps)
    sweep()
    assert list(temporary.iterdir()) == [mine.path]
    mine.remove()
    assert list(temporary.iterdir()) == []


def test_nothing_but_a_profile_beside_the_folder_goes_with_it(temporary):
    kept = temporary / "documents"
    elsewhere = temporary / "other" / "playwright_chromiumdev_profile-abc"
    for target in (kept, elsewhere):
        target.mkdir(parents=True)
        (target / "file").touch()
        folder = Folder()
        folder.note_profile(str(target))
        folder.remove()
        assert not folder.path.exists() and (target / "file").exists()


def test_a_folder_is_there_while_it_is_used_and_gone_afterwards(temporary):
    with scratch_folder() as folder:
        (folder / "file").write_text("x")
        assert folder.parent == temporary
        with scratch_folder() as second:
            assert folder.is_dir() and second.is_dir()
    assert list(temporary.iterdir()) == []


def test_the_next_folder_that_is_made_removes_what_a_killed_program_left(temporary):
    *_, theirs = killed_owner_of(temporary / "playwright_none")
    with scratch_folder() as mine:
        assert [str(path) for path in temporary.iterdir()] == [str(mine)] != [theirs]


def test_a_link_named_like_a_folder_is_left_alone(temporary):
    target = temporary / "documents"
    target.mkdir()
    (temporary / "srl-link").symlink_to(target)
    sweep()
    assert target.exists() and (temporary / "srl-link").is_symlink()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(AccessError, match=r"no folder for temporary files can be made: .*; set TMPDIR"):
        Folder()


def test_a_folder_that_cannot_be_locked_is_refused_with_the_way_out_and_removed(temporary, monkeypatch):
    def unlockable(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unlockable)
    with pytest.raises(AccessError, match="No locks available; set TMPDIR to a folder of a local disk"):
        Folder()
    assert list(temporary.iterdir()) == []
