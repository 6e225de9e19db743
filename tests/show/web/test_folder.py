import json
import os

import pytest

from steadyrl.core.errors import RunError
from tests import needs
from tests.show.web.made import make_run

needs.skip_without_packages("starlette", extra="web")

from steadyrl.show.web.folder import Folder  # noqa: E402 # it needs the packages


def test_runs_and_logs_are_found_at_any_depth(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "sweep" / "b")
    (tmp_path / "trl").mkdir()
    rows = [{"step": i, "loss": 0.1, "reward": 0.2} for i in range(5)]
    (tmp_path / "trl" / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {place.name: (place.id, place.kind) for place in Folder(tmp_path).runs()}
    assert found == {
        "a": ("a", "run"),
        "sweep/b": ("sweep~b", "run"),
        "trl/log.jsonl": ("trl~log.jsonl", "log"),
    }


def test_a_single_run_is_a_folder_of_one(tmp_path):
    run = make_run(tmp_path / "only")
    (place,) = Folder(run.path).runs()
    assert (place.name, place.path) == ("only", run.path)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a b", "a~b", "%2e%2e", "é" * 60, "-rf", "a\nb"])
def test_any_name_has_an_address_of_plain_characters(tmp_path, name):
    make_run(tmp_path / name)
    folder = Folder(tmp_path)
    (place,) = folder.runs()
    assert set(place.id) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~-")
    assert folder.find(place.id).path == tmp_path / name


@pytest.mark.linux
def test_a_name_that_is_no_text_is_shown(tmp_path):
    make_run(os.fsencode(tmp_path).decode() + "/" + os.fsdecode(b"bad\xff"))
    (place,) = Folder(tmp_path).runs()
    assert place.id.isascii()


@pytest.mark.parametrize("asked", ["../a", "..~a", "/etc", "a/../../etc", "", "."])
def test_a_path_is_no_name_of_a_run(tmp_path, asked):
    make_run(tmp_path / "in" / "a")
    make_run(tmp_path / "a")
    with pytest.raises(RunError, match="there is no run"):
        Folder(tmp_path / "in").find(asked)


def test_what_lies_outside_is_not_shown(tmp_path):
    outside = make_run(tmp_path / "outside")
    inside = tmp_path / "in"
    run = make_run(inside / "a")
    (inside / "linked").symlink_to(outside.path)
    sly = make_run(inside / "sly")
    sly.metrics_file.unlink()
    sly.metrics_file.symlink_to(outside.metrics_file)
    folder = Folder(inside)
    assert [place.name for place in folder.runs()] == ["a"]
    run.rollouts_file(0).unlink()
    run.rollouts_file(0).symlink_to("/etc/passwd")
    assert folder.file(run.rollouts_file(0)) is None
    assert folder.file(run.rollouts_file(10)) == run.rollouts_file(10)


@pytest.mark.parametrize(
    "name",
    [
        "evaluations/after.jsonl",
        "rollouts/tokens/000010.jsonl",
        "report/summary.json",
        "checkpoints/000200/DONE",
        "x/y/z",
    ],
)
def test_a_run_with_a_link_that_leads_out_is_not_shown_at_whatever_depth(tmp_path, name):
    (tmp_path / "secret").write_text('{"problem": "secret"}\n')
    inside = tmp_path / "in"
    run = make_run(inside / "a")
    make_run(inside / "b")
    folder = Folder(inside)
    assert folder.find("a").path == run.path
    link = run.path / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(RunError, match="a link that leads out of this folder"):
        folder.find("a")  # also where it was seen before
    assert [place.name for place in Folder(inside).runs()] == ["b"]
    link.unlink()
    link.symlink_to(inside / "b" / "run.json")
    assert folder.find("a").path == run.path


@pytest.mark.parametrize("moved", ["a", "sweep"])
def test_a_folder_that_became_a_link_is_not_followed(tmp_path, moved):
    inside = tmp_path / "in"
    for name in ("a", "sweep/b"):
        make_run(inside / name)
    folder = Folder(inside)
    assert len(folder.runs()) == 2
    (inside / moved).rename(tmp_path / "out")
    (inside / moved).symlink_to(tmp_path / "out")
    with pytest.raises(RunError):
        folder.find("a" if moved == "a" else "sweep~b")


def test_a_log_that_became_a_link_is_not_followed(tmp_path):
    inside = tmp_path / "in"
    inside.mkdir()
    log = inside / "log.jsonl"
    log.write_text("".join(json.dumps({"step": i, "loss": 0.1}) + "\n" for i in range(5)))
    folder = Folder(inside)
    (place,) = folder.runs()
    log.rename(tmp_path / "log.jsonl")
    log.symlink_to(tmp_path / "log.jsonl")
    with pytest.raises(RunError):
        folder.find(place.id)


@pytest.mark.linux
@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "resolved.json", "evaluations/after.jsonl"])
def test_a_run_with_a_pipe_in_place_of_a_file_keeps_nobody_waiting(tmp_path, name):
    run = make_run(tmp_path / "a")
    folder = Folder(tmp_path)
    assert folder.find("a").path == run.path
    pipe = run.path / name
    pipe.parent.mkdir(exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with pytest.raises(RunError, match="neither file nor folder"):
        folder.find("a")
    assert Folder(tmp_path).runs() == []
