import gzip
import json
import os
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadyrl.core.errors import RunError
from steadyrl.doctor.readers.search import search

DATA = Path(__file__).parent / "data"


def read(path):
    """Return the logs of a file or folder, whatever their metrics."""
    return list(search(path, lambda log: True).logs)


def whole_files():
    """Return the bytes of one good log of each format, by name."""
    files = {path.name: path.read_bytes() for path in DATA.rglob("*") if path.is_file()}
    found = {
        "trainer_state.json": files["trainer_state.json"],
        "short.wandb": files["run-short.wandb"],
        "trackio.db": gzip.decompress(files["trackio.db.gz"]),
        "events": b"".join(content for name, content in sorted(files.items()) if "tfevents" in name),
        "rows.jsonl": b"".join(b'{"step": %d, "a": {"b": 1.5}, "c": "NaN"}\n' % i for i in range(20)),
        "verl.jsonl": b"".join(b'{"step":%d,"data":{"a":1.5,"b":null}}\n' % i for i in range(20)),
        "verl.log": b"".join(b"(pid=1) step:%d - a:np.float64(1.5) - b:2\n" % i for i in range(20)),
        "printed.log": b"{'loss': '0.5', 'epoch': nan}\n" * 20,
        "words.log": b"".join(b"[step %d] loss=%d.5 kl=0.1 rewards=[0,1] lr=1e-5\n" % (i, i) for i in range(20)),
        "mlx.log": b"".join(b"Iter %d: Train loss 0.5, KL 0.100, Tokens/sec 46.0\n" % i for i in range(20)),
        "bars.log": b"".join(b"\r %d%%|#| %d/20 [00:01<00:01]{'loss': 0.5, 'kl': nan}\n" % (i, i) for i in range(20)),
        "config.log": b"{'a': {'b': 1,\n       'c': {'d': 2}}}\nX(\nbeta=1,\n)\n" + b"step:1 - a:1.5 - b:2\n" * 3,
        "notebook.md": b"Step | Training Loss | kl\n-- | -- | --\n" + b"1 | 0.5 | nan\n" * 20,
        "page.html": b"<table><tr><th>Step<th>loss</th></tr>" + b"<tr><td>1</td><td>2</td></tr>" * 20,
        "nested.json": b'{"lr": 1, "runs": {"a": {"log": [{"step": 1, "loss": 2}]}}, "step": [1, 2], "kl": [1, 2]}',
        "rows.jsonl.gz": gzip.compress(b'{"step": 1, "loss": 2, "completion": "x", "rewards": [1, 2]}\n' * 20),
        "table.csv": b"step,a,b\n" + b"".join(b'%d,1.5,"2"\n' % i for i in range(20)),
    }
    assert all(found.values())
    return found


WHOLE = whole_files()


def read_or_refuse(path):
    """Read a file; anything but logs that keep their promises and a RunError is a failure."""
    try:
        logs = read(path)
    except RunError as error:
        assert "\n" not in str(error)
        return None
    for log in logs:
        assert log.columns
        for name, column in log.columns.items():
            assert isinstance(name, str) and len(column.steps) == len(column.values) > 0
            assert column.steps.dtype == np.int64 and column.values.dtype == np.float64
            assert (np.diff(column.steps) > 0).all()
        assert all(isinstance(written.completion, str) for written in log.completions)
    return logs


@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_file_is_read(name, tmp_path):
    (tmp_path / name).write_bytes(WHOLE[name])
    assert read_or_refuse(tmp_path / name)


# On a busy machine the first examples can be slow to make, which is no fault of what is tested.
UNCHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=UNCHECKED)


@QUICK
@given(name=st.sampled_from(sorted(WHOLE)), share=st.floats(0, 1))
def test_a_file_torn_anywhere_is_read_or_refused(tmp_path, name, share):
    path = tmp_path / name
    path.write_bytes(WHOLE[name][: int(share * len(WHOLE[name]))])
    read_or_refuse(path)


@QUICK
@given(name=st.sampled_from(sorted(WHOLE)), place=st.floats(0, 1), junk=st.binary(min_size=1, max_size=40))
def test_a_file_damaged_anywhere_is_read_or_refused(tmp_path, name, place, junk):
    content = bytearray(WHOLE[name])
    at = int(place * (len(content) - 1))
    content[at : at + len(junk)] = junk
    (tmp_path / name).write_bytes(content)
    read_or_refuse(tmp_path / name)


MAGICS = [
    b"",
    b":W&B\xe1\xbe\x00",
    b"SQLite format 3\x00",
    WHOLE["events"][:40],
    b"{",
    b'[{"',
    b"{'",
    b"step:1 - ",
    b"a,b\n1,",
    b"[step 1] loss=",
    b"Step | loss\n1 | ",
    b"<table><tr><td>",
    b'{"a": [{"loss": 1',
    b"\x1f\x8b\x08\x00",
    "╭─── Step 1 ───╮\n│ ┃ Prompt ┃ Completion ┃ │\n".encode(),
]


@QUICK
@given(magic=st.sampled_from(MAGICS), rest=st.binary(max_size=2000))
def test_random_bytes_are_read_or_refused(tmp_path, magic, rest):
    (tmp_path / "log").write_bytes(magic + rest)
    read_or_refuse(tmp_path / "log")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@QUICK
@given(rows=st.lists(st.dictionaries(st.sampled_from(["step", "a", "b", "c\n", ""]), VALUES, max_size=5), max_size=12))
def test_any_rows_of_json_are_read_or_refused(tmp_path, rows):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read_or_refuse(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("opening", ["[", '{"a":', "{'a':[", "{'a':-", "{'a':("])
def test_deep_nesting_is_refused(tmp_path, opening):
    line = '{"step": 1, "loss": 1}\n' if opening[:2] != "{'" else "{'loss': 1}\n"
    (tmp_path / "log").write_text(line + opening * 20_000 + "}" + "\n" + line)
    (log,) = read_or_refuse(tmp_path / "log")
    assert set(log.columns) == {"loss"}


def test_more_names_than_a_log_can_have_are_left_out(tmp_path):
    rows = ({"step": i, **{f"n{i}-{k}": 1 for k in range(300)}} for i in range(100))
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (log,) = read(tmp_path / "log.jsonl")
    assert len(log.columns) == 20_000
    assert log.notes == ("values left out, for they have more than 20000 names: 10000",)


def test_a_view_in_place_of_a_table_is_not_asked(tmp_path):
    path = tmp_path / "x.db"
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i AS run_name, i AS step, "
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE VIEW metrics AS {endless} i AS metrics, i AS timestamp FROM n")
    connection.close()
    with pytest.raises(RunError, match="a database without the table 'metrics'"):
        read(path)


def test_a_bad_file_does_not_hide_the_run_beside_it(tmp_path):
    (tmp_path / "bad.db").write_bytes(b"SQLite format 3\x00" + b"\x07" * 5000)
    (tmp_path / "events.out.tfevents.1").write_bytes(WHOLE["events"])
    found = search(tmp_path, lambda log: True)
    assert len(found.logs) == 1
    assert list(found.unreadable) == [str(tmp_path / "bad.db")]
    assert found.unreadable[str(tmp_path / "bad.db")].startswith("cannot read the database")


def test_a_trackio_database_without_run_ids_is_read(tmp_path):
    connection = sqlite3.connect(tmp_path / "old.db")
    connection.execute("CREATE TABLE metrics (id INTEGER, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)")
    rows = [(1, "2025", "a", 0, '{"x": 1}'), (2, "2026", "b", 0, '{"x": "-Infinity"}'), (3, "2027", "a", 1, "torn")]
    connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    first, second = read(tmp_path)
    assert (first.columns["x"].values.tolist(), second.columns["x"].values.tolist()) == ([1.0], [-np.inf])
    assert first.notes == ("log calls left out, for their metrics cannot be read: 1",)
    assert sorted(os.listdir(tmp_path)) == ["old.db"]


def test_a_tracker_without_a_log_call_has_no_number(tmp_path):
    connection = sqlite3.connect(tmp_path / "new.db")
    connection.execute("CREATE TABLE metrics (timestamp TEXT, run_id TEXT, run_name TEXT, step INTEGER, metrics TEXT)")
    connection.close()
    with pytest.raises(RunError, match="is a log without a number"):
        read(tmp_path / "new.db")


def test_event_files_with_wrong_checksums_are_read(tmp_path):
    content = bytearray((DATA / "tensors" / "events.out.tfevents.1795180175.host.2.0").read_bytes())
    at = 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 8], "little")
        content[at + 8 : at + 12] = b"\0\0\0\0"
        at += 16 + length
    (tmp_path / "events.out.tfevents.1").write_bytes(content)
    (log,) = read(tmp_path)
    assert log.columns["loss"].steps.tolist() == [10, 20, 30, 40, 50, 60]


def test_a_record_that_claims_exabytes_is_a_torn_end(tmp_path):
    good = (DATA / "tensors" / "events.out.tfevents.1795180175.host.2.0").read_bytes()
    (tmp_path / "events.out.tfevents.1").write_bytes(good + b"\xff" * 7 + b"\x0f" + b"\0" * 40)
    (log,) = read(tmp_path)
    assert len(log.columns["loss"].steps) == 6
    assert log.notes[0] == (
        f"'events.out.tfevents.1' is torn or damaged at byte {len(good)} of {len(good) + 48}; the rest is left out"
    )


def test_a_damaged_block_of_a_wandb_file_costs_only_itself(tmp_path):
    content = bytearray(WHOLE["short.wandb"])
    content[-40] ^= 1
    (tmp_path / "x.wandb").write_bytes(content)
    (log,) = read(tmp_path / "x.wandb")
    assert len(log.columns["loss"].steps) == 6
    assert log.notes == ("places where the file is torn or damaged, left out: 1",)


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").write_text('{"step": 1, "x": 1}\n')
    (tmp_path / "run" / "again").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    assert len(read(tmp_path)) == 1
    with pytest.raises(RunError, match="there is no file or folder"):
        read(tmp_path / "self")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file or folder"),
        (b"", "is empty"),
        (b"step,reward,loss\n", "holds names of metrics in one line, and no row"),
        (b"some words\nand more\n", "no log that steadyrl can read"),
        (b"\x00\x01" * 4000, "no log that steadyrl can read"),
        (b'{"step": 1, "x": "word"}\n', "is a log without a number"),
        (b'{"log_history": [{"st', "is torn, or nested too deeply"),
        (b"SQLite format 3\x00" + b"\x07" * 5000, "cannot read the database"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(tmp_path, content, message):
    path = tmp_path / "log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunError, match=message):
        read(path)


def test_a_folder_without_logs_is_one_clear_error(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    with pytest.raises(RunError, match="holds no log that steadyrl can read; known are a run directory"):
        read(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="is no file and no folder"):
        read(tmp_path / "pipe")


LONG = [
    *("\r" * 100_000 + "5%|", "{'" * 100_000 + "}", "<" * 40_000 + "<tr", "'a': " * 50_000, "a=" * 50_000),
    *("| " * 50_000, "--a b " * 50_000, "loss: " + "1," * 8000, "step " * 3000, "│" * 50_000, "a.b=" * 50_000),
    *("[" * 50_000, "loss " * 3000, "<td" * 20_000 + "<tr>", "pid=1(" * 50_000),
    *("a: " + "9" * 15_000 + "(", "loss=0." + "1" * 15_000 + "x", "kl 1" + ",1" * 7000 + "x"),
    "| step | loss |\n|---|---|\n| 1 | " + "9" * 15_000 + "x |\n| 2 | 0.5 |",
]


@pytest.mark.halved
@pytest.mark.parametrize("line", LONG, ids=lambda line: line[:6])
def test_a_long_line_costs_no_more_than_its_length(tmp_path, line):
    start = time.process_time()
    for name in ("log.txt", "log.md"):
        (tmp_path / name).write_text(f"{{'loss': 1.0}}\n{line}\n{{'loss': 2.0}}\n")
        (log,) = read_or_refuse(tmp_path / name)
        assert log.columns["loss"].values.tolist() == [1.0, 2.0]
        (tmp_path / name).write_text(line)
        read_or_refuse(tmp_path / name)
    assert time.process_time() - start < 5.0


def test_a_document_nested_too_deeply_is_refused_in_one_line(tmp_path):
    (tmp_path / "log.json").write_text('{"loss": ' * 50_000 + "1" + "}" * 50_000)
    with pytest.raises(RunError, match="nested too deeply"):
        read(tmp_path / "log.json")
    # What json still parses may be too deep to walk through.
    (tmp_path / "log.json").write_text('{"a": ' * 800 + '[{"step": 1, "loss": 1}]' + "}" * 800)
    assert read_or_refuse(tmp_path / "log.json") is None


LINES = [
    *("step: 3|loss: 0.5", "[step 4] kl=0.1 lr=nan", "Iter 5: Train loss 0.5, KL 1", "loss: 1e400", "Step 3/9"),
    *("  • Loss: 1", "{'loss': 1.0}", "{'loss': 'x', 'kl': [1, 2]}", '{"loss": null}', " 5%|#| 5/10 [00:01<00:01]"),
    *(
        "{'a': {'b': 1,",
        " 'c': 2}",
        "Step | loss",
        "-- | --",
        "7 | 0.5",
        "GRPOConfig(",
        "beta=1,",
        "--lr 1 --n 2 --k -3",
    ),
    *("step:7 - a:1.0", "loss=[1,2] kl=[]", "rewards=[1,nan]", "train_runtime", "", "│ ┃ Prompt ┃ Completion ┃ │"),
    *("│ │ x │ 1 │ │", "│ └───┘ │", "╭── Step 3 ──╮"),
]


@QUICK
@given(lines=st.lists(st.sampled_from(LINES) | st.text(max_size=20), max_size=25))
def test_any_printed_lines_are_read_or_refused(tmp_path, lines):
    (tmp_path / "log.txt").write_text("\n".join(lines), encoding="utf-8", errors="replace")
    read_or_refuse(tmp_path / "log.txt")


@QUICK
@given(document=st.dictionaries(st.sampled_from(["step", "loss", "kl", "log", "10", ""]), VALUES, max_size=5))
def test_any_document_is_read_or_refused(tmp_path, document):
    (tmp_path / "log.json").write_text(json.dumps(document, indent=1))
    read_or_refuse(tmp_path / "log.json")
