"""A folder that is there whole or not at all."""

import errno
import os
import re
import shutil
from pathlib import Path

import pytest

from steadyrl.core.errors import AccessError, CheckpointError
from steadyrl.integrations.export.folder import whole_folder


def write(folder, *names):
    with whole_folder(folder) as part:
        for name in names:
            (part / name).write_text(name)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("empty", [True, False])
def test_a_folder_that_is_empty_or_not_there_is_written(tmp_path, empty):
    folder = tmp_path / "deep" / "model"
    if empty:
        folder.mkdir(parents=True)
    write(folder, "a", "b")
    assert names(folder) == ["a", "b"]
    assert names(folder.parent) == ["model"]


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(AccessError, match=r"is not empty; remove it, or give a folder that is empty or not there yet"):
        write(tmp_path, "a")
    assert names(tmp_path) == ["mine"]


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "model").write_text("x")
    with pytest.raises(AccessError, match="is a file"):
        write(tmp_path / "model", "a")


@pytest.mark.parametrize("to", [".", "", "{here}", "link"])
def test_the_current_folder_is_refused_for_a_shell_would_stay_in_the_one_that_is_replaced(tmp_path, monkeypatch, to):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "link").symlink_to(tmp_path / "here")
    folder = tmp_path / to if to == "link" else Path(to.format(here=tmp_path / "here"))
    with pytest.raises(AccessError, match=r"is the current folder, which an export would replace; give a folder that"):
        write(folder, "a")
    assert names(tmp_path) == ["here", "link"] and names(tmp_path / "here") == []


def test_the_root_is_refused_in_one_line():
    with pytest.raises(AccessError, match=r"^'/' is not empty"):
        write(Path("/"), "a")


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_the_folder_that_it_points_to_is_written(tmp_path, there):
    target, link = tmp_path / "disk" / "model", tmp_path / "link"
    if there:
        target.mkdir(parents=True)
    link.symlink_to(target)
    write(link, "a")
    assert link.readlink() == target and names(target) == ["a"]
    assert names(tmp_path) == ["disk", "link"] and names(tmp_path / "disk") == ["model"]


def test_a_link_that_leads_nowhere_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(AccessError, match="is a file; give a folder"), whole_folder(tmp_path / "loop"):
        pytest.fail("there is nothing to write into")
    assert names(tmp_path) == ["loop"]


def test_a_name_that_the_disk_cannot_hold_is_refused_in_one_line(tmp_path):
    with pytest.raises(AccessError, match=r"cannot write '.*File name too long"):
        write(tmp_path / ("a" * 300), "a")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), AccessError, "No space left on device; free some space"),
        (CheckpointError("it is damaged"), CheckpointError, "it is damaged"),
        (AccessError("no licence can be written"), AccessError, "^no licence can be written$"),
        (KeyboardInterrupt("asked to"), KeyboardInterrupt, "asked to"),
    ],
)
def test_what_ends_the_writing_leaves_nothing(tmp_path, error, raised, message):
    with pytest.raises(raised, match=message), whole_folder(tmp_path / "model") as part:
        (part / "a").write_text("a")
        raise error
    assert names(tmp_path) == []


def test_of_a_folder_that_cannot_be_copied_the_first_file_is_named(tmp_path):
    (tmp_path / "from").mkdir()
    for name in "abc":
        (tmp_path / "from" / name).symlink_to(tmp_path / "nowhere")
    with pytest.raises(AccessError) as caught, whole_folder(tmp_path / "model") as part:
        shutil.copytree(tmp_path / "from", part, dirs_exist_ok=True)
    told = rf"cannot write '{tmp_path}/model': \[Errno 2\] No such file or directory: '\S+/from/[abc]'; free some space"
    assert re.match(told, str(caught.value))


def test_what_a_killed_export_left_goes_with_the_next(tmp_path):
    """A killed process runs no clean-up: the generator is dropped where it stands."""
    held = whole_folder(tmp_path / "model")
    part = held.__enter__()
    (part / "half").write_text("x")
    assert names(tmp_path) == ["model.part"]
    write(tmp_path / "model", "a")
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["a"]


def test_a_folder_of_the_users_own_with_the_name_of_the_part_is_left_alone(tmp_path):
    (tmp_path / "model.part").mkdir()
    (tmp_path / "model.part" / "mine").write_text("x")
    with pytest.raises(AccessError, match="was not left by an export"):
        write(tmp_path / "model", "a")
    assert (tmp_path / "model.part" / "mine").is_file()


def test_what_others_may_read_is_what_they_may_read_of_any_new_file(tmp_path):
    with whole_folder(tmp_path / "exported") as folder:
        (folder / "policy").mkdir()
        os.close(os.open(folder / "policy" / "model.safetensors", os.O_CREAT | os.O_WRONLY, 0o600))
    (tmp_path / "new").touch()
    mode = (tmp_path / "exported" / "policy" / "model.safetensors").stat().st_mode
    assert mode == (tmp_path / "new").stat().st_mode
