import errno
import fcntl
import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from steadyrl.core.errors import AccessError, RunError
from steadyrl.core.rundir import (
    RunDir,
    append_line,
    appended,
    read_json,
    read_lines,
    write_json,
    write_lines,
    write_text,
)


def write_metrics(run, *lines):
    run.metrics_file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_lines_are_read_as_they_were_appended(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    append_line(path, {"step": 0, "text": 'ä "quoted"\nline'})
    append_line(path, {"step": 1, "nested": {"a": [1, 2]}})
    assert list(read_lines(path)) == [
        {"step": 0, "text": 'ä "quoted"\nline'},
        {"step": 1, "nested": {"a": [1, 2]}},
    ]
    assert path.read_text(encoding="utf-8").count("\n") == 2


def test_a_torn_last_line_is_ignored(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes('{"step": 0}\n{"step": 1, "text": "ä'.encode()[:-1])  # in the middle of a character, too
    assert list(read_lines(path)) == [{"step": 0}]


def test_what_was_appended_is_read_from_a_byte_on_and_a_line_being_written_is_left_for_later(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\nno object\n{"a": 2}\n{"a"')  # of 9, 10, 9 and 4 bytes
    assert list(appended(path)) == [(0, 9, {"a": 1}), (9, 19, {}), (19, 28, {"a": 2})]
    path.write_bytes(path.read_bytes() + b": 3}\n")
    assert list(appended(path, 28)) == [(28, 37, {"a": 3})]
    assert list(appended(path, 37)) == list(appended(tmp_path / "none")) == []


def test_the_next_append_closes_a_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0}\n{"step": 1, "reward')
    append_line(path, {"step": 1, "reward": 0.5})
    append_line(path, {"step": 2, "reward": 0.6})
    assert list(read_lines(path)) == [{"step": 0}, {"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.6}]


def test_lines_that_are_no_object_are_passed_over(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('1\n[]\n\nnull\n{"step": 3}\nnot json\n', encoding="utf-8")
    assert list(read_lines(path)) == [{"step": 3}]


def test_a_missing_file_has_no_lines(tmp_path):
    assert list(read_lines(tmp_path / "absent.jsonl")) == []


def test_numbers_that_are_not_finite_come_back_as_they_were(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_line(path, {"nan": math.nan, "up": math.inf, "down": -math.inf, "unknown": None, "word": "none"})
    json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)  # the file is plain JSON
    (found,) = read_lines(path)
    assert math.isnan(found.pop("nan"))
    assert found == {"up": math.inf, "down": -math.inf, "unknown": None, "word": "none"}


def test_numpy_numbers_are_written_as_numbers(tmp_path):
    path = tmp_path / "lines.jsonl"
    write_lines(path, [{"a": np.float32(0.5), "b": np.int64(3), "c": (np.float64(2.0), np.bool_(True))}])
    assert list(read_lines(path)) == [{"a": 0.5, "b": 3, "c": [2.0, True]}]


def test_the_highest_attempt_of_each_step_is_kept_in_step_order(tmp_path):
    run = RunDir(tmp_path)
    write_metrics(
        run,
        '{"step": 1, "attempt": 0, "x": 1}',
        '{"step": 0, "attempt": 0, "x": 2}',
        '{"step": 1, "attempt": 2, "x": 3}',
        '{"step": 1, "attempt": 1, "x": 4}',
        '{"step": 2, "attempt": 0, "x": 5}',
    )
    assert [(line["step"], line["x"]) for line in run.metrics()] == [(0, 2), (1, 3), (2, 5)]


def test_of_one_attempt_the_later_line_is_kept(tmp_path):
    run = RunDir(tmp_path)
    write_metrics(run, '{"step": 1, "attempt": 1, "x": 1}', '{"step": 1, "attempt": 1, "x": 2}')
    assert [line["x"] for line in run.metrics()] == [2]


def test_an_object_that_is_no_line_of_metrics_is_passed_over(tmp_path):
    run = RunDir(tmp_path)
    write_metrics(run, '{"step": 1}', '{"attempt": 1}', '{"step": "one", "attempt": 0}', '{"step": 4, "attempt": 0}')
    assert [line["step"] for line in run.metrics()] == [4]


def test_without_its_marker_a_folder_is_no_checkpoint(tmp_path):
    run = RunDir(tmp_path)
    assert run.checkpoints() == []
    for step, complete in ((200, True), (50, True), (300, False), (1_000_000, True)):
        run.checkpoint_folder(step).mkdir(parents=True)
        if complete:
            (run.checkpoint_folder(step) / "DONE").touch()
    for name in ("000400.part", "notes"):
        (tmp_path / "checkpoints" / name).mkdir()
        (tmp_path / "checkpoints" / name / "DONE").touch()
    assert run.checkpoints() == [50, 200, 1_000_000]


def test_runs_of_one_second_get_names_of_their_own(tmp_path):
    paths = [RunDir.create(tmp_path / "runs", "ppo-search-s0").path for _ in range(3)]
    assert len(set(paths)) == 3
    assert all(path.is_dir() and "-ppo-search-s0" in path.name for path in paths)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "runs").write_text("")
    for folder in (tmp_path / "runs", tmp_path / "runs" / "below"):
        with pytest.raises(AccessError, match=r"runs.*folder"):
            RunDir.create(folder, "ppo")


@pytest.mark.ordinary_user
def test_a_folder_without_write_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(AccessError, match=r"cannot write .*Permission denied; .*, or set run\.folder"):
        RunDir.create(tmp_path, "ppo")


def test_files_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "run.json").mkdir()
    for write in (
        lambda: write_text(tmp_path / "run.json", "x"),
        lambda: append_line(tmp_path / "run.json", {}),
    ):
        with pytest.raises(AccessError, match=r"cannot write '.*run\.json': .*; expected the name of a file"):
            write()


@pytest.mark.parametrize("name", [".", "..", "/", "../."])
def test_a_folder_given_as_the_file_to_write_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AccessError, match=r"^cannot write '.*': Is a directory; expected the name of a file$"):
        write_text(Path(name), "x")
    assert not list(tmp_path.iterdir())


def test_a_whole_file_is_written_beside_its_place_first(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_json(path, {"status": "running"})

    def fail(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "replace", fail)
    with pytest.raises(AccessError, match="No space left on device"):
        write_json(path, {"status": "finished"})
    assert read_json(path) == {"status": "running"}


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "there is no run directory"),
        ({}, "is not a run directory: it has no run.json"),
        ({"metrics.jsonl": ""}, "is not a run directory: it has no run.json"),
    ],
)
def test_what_is_no_run_directory_is_refused(tmp_path, contents, message):
    folder = tmp_path / "run"
    if contents is not None:
        folder.mkdir()
        for name, text in contents.items():
            (folder / name).write_text(text)
    with pytest.raises(RunError, match=message):
        RunDir.open(folder)


def test_the_only_run_in_a_folder_stands_for_the_folder(tmp_path):
    """Studies and searches make a folder for each run, and name the folder."""
    folder = tmp_path / "rank-s0"
    (folder / "20261128-my_algo").mkdir(parents=True)
    (folder / "20261128-my_algo" / "run.json").write_text("{}")
    assert RunDir.open(folder).path == folder / "20261128-my_algo"
    assert RunDir.open(folder / "20261128-my_algo").path == folder / "20261128-my_algo"


def test_a_folder_of_several_runs_is_refused_with_one_of_them(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    with pytest.raises(RunError) as caught:
        RunDir.open(tmp_path)
    assert str(caught.value).endswith(
        f"it has no run.json; it holds 2 runs, such as '{tmp_path / 'b'}': name one of them"
    )
    assert RunDir.find(tmp_path) is None


def test_the_folder_of_a_study_is_refused_with_one_of_its_runs(tmp_path):
    for key in ("low-s1", "high-s1"):
        run = tmp_path / "rates" / "runs" / key / "20261128-grpo"
        run.mkdir(parents=True)
        (run / "run.json").write_text("{}")
    for folder in (tmp_path / "rates", tmp_path / "rates" / "runs"):
        with pytest.raises(RunError, match=r"it holds 2 runs, such as '.*low-s1.20261128-grpo'"):
            RunDir.open(folder)


def test_a_single_run_further_down_is_named(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "run.json").write_text("{}")
    with pytest.raises(RunError, match=r"it holds 1 run, such as '.*b': name one of them"):
        RunDir.open(tmp_path)


def test_a_file_is_no_run_directory(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunError, match="run' is a file and no run directory; runs are made by"):
        RunDir.open(tmp_path / "run")


@pytest.mark.parametrize(("text", "message"), [("{", "cannot read"), ("[1]", "holds list; expected a JSON object")])
def test_a_damaged_json_file_is_named(tmp_path, text, message):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=message) as caught:
        RunDir.open(tmp_path).info()
    assert "run.json" in str(caught.value)


def test_a_file_where_a_folder_is_wanted_is_named_as_one(tmp_path):
    (tmp_path / "report").write_text("")
    for write in (
        lambda path: write_text(path, ""),
        lambda path: write_json(path, {}),
        lambda path: append_line(path, {}),
    ):
        for path in ("report/a.json", "report/deeper/a.json"):
            with pytest.raises(AccessError, match=r"cannot write .*: '[^']*report' is a file; expected a folder"):
                write(tmp_path / path)


def test_what_is_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(AccessError, match=r"cannot write .*: '[^']*gone' is a link that leads nowhere; expected"):
        write_text(tmp_path / "gone" / "a.txt", "")
    with pytest.raises(AccessError, match=r"cannot write .*: '/dev/null' is a file; expected a folder"):
        write_text(Path("/dev/null/a.txt"), "")


def test_a_pipe_is_written_and_stays_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE, text=True)
    write_text(tmp_path / "pipe", "a line\n")
    assert reader.communicate(timeout=10)[0] == "a line\n"
    assert (tmp_path / "pipe").is_fifo() and [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_files_that_an_editor_saved_with_a_byte_order_mark_or_other_line_ends_are_whole(tmp_path):
    lines = [{"step": step, "attempt": 0, "text": "ü"} for step in range(3)]
    write_lines(tmp_path / "metrics.jsonl", lines)
    write_json(tmp_path / "run.json", {"status": "running"})
    for path in tmp_path.iterdir():
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    run = RunDir(tmp_path)
    assert run.metrics() == lines and run.status == "running"
    assert [record for _, _, record in appended(run.metrics_file)] == lines


def test_text_that_is_no_unicode_is_written_and_read_back(tmp_path):
    line = {"completion": "half a pair \ud800 and a whole one \U0001f600"}
    append_line(tmp_path / "a.jsonl", line)
    write_lines(tmp_path / "b.jsonl", [line])
    write_json(tmp_path / "c.json", line)
    assert list(read_lines(tmp_path / "a.jsonl")) == list(read_lines(tmp_path / "b.jsonl")) == [line]
    assert read_json(tmp_path / "c.json") == line


@pytest.mark.parametrize("depth", [65, 5_000, 200_000])
def test_json_that_is_nested_too_deep_is_damaged_and_not_a_crash(tmp_path, depth):
    deep = '{"a": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"
    (tmp_path / "deep.json").write_text(deep)
    (tmp_path / "deep.jsonl").write_text('{"step": 1}\n' + deep + '\n{"step": 2}\n')
    with pytest.raises(RunError, match="nested deeper than 64 levels"):
        read_json(tmp_path / "deep.json")
    assert list(read_lines(tmp_path / "deep.jsonl")) == [{"step": 1}, {"step": 2}]


def test_json_of_many_flat_parts_is_read(tmp_path):
    text = '{"a": ' + "[" * 63 + "]" * 63 + ', "b": [' + ",".join(["[]"] * 5_000) + "]}"
    (tmp_path / "flat.json").write_text(text)
    assert len(read_json(tmp_path / "flat.json")["b"]) == 5_000


def test_a_line_that_is_too_long_costs_itself_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("steadyrl.core.rundir.MOST_CHARACTERS", 32)
    (tmp_path / "long.jsonl").write_text('{"step": 1}\n{"text": "' + "x" * 100 + '"}\n{"step": 2}\n')
    assert list(read_lines(tmp_path / "long.jsonl")) == [{"step": 1}, {"step": 2}]


def test_a_file_system_without_locks_is_named_with_what_helps(tmp_path, monkeypatch):
    def unlockable(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unlockable)
    expected = "No locks available; its file system has no locks"
    with pytest.raises(AccessError, match=expected), RunDir(tmp_path).writing():
        pass
