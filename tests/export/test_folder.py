"""A folder that is there whole or not at all."""

import errno

import pytest

from steadyrl.errors import AccessError, CheckpointError
from steadyrl.export.folder import whole_folder


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
