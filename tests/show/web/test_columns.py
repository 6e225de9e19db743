import json
import time

import numpy as np

from steadyrl.core.rundir import append_line
from tests import needs
from tests.show.web.made import make_run, metrics

needs.skip_without_packages("starlette", extra="web")

from steadyrl.show.web import columns as subject  # noqa: E402 # it needs the packages


def test_columns_agree_with_the_records_of_the_run(tmp_path):
    run = make_run(tmp_path / "a")
    for step in (15, 16):
        append_line(run.metrics_file, metrics(step, 1, **{"reward/mean": 9.0 + step}))
    append_line(run.metrics_file, metrics(3, 0, **{"heldout/x": 0.5, "entropy": float("nan")}))
    columns = subject.Columns(run.metrics_file)
    columns.follow()
    steps, values = columns.arrays()
    records = run.metrics()
    assert steps.tolist() == [record["step"] for record in records]
    for name in ("reward/mean", "heldout/x", "entropy"):
        expected = [record.get(name, np.nan) for record in records]
        np.testing.assert_allclose(values[name], np.array(expected, np.float32))


def test_columns_follow_a_file_that_grows_by_half_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    columns = subject.Columns(path)
    assert not columns.follow()
    text = "".join(json.dumps(metrics(step)) + "\n" for step in range(30)).encode()
    for end in range(0, len(text) + 100, 100):
        path.write_bytes(text[:end])
        columns.follow()
    assert columns.arrays()[0].tolist() == list(range(30))


def test_another_file_in_its_place_is_read_anew(tmp_path):
    run = make_run(tmp_path / "a")
    columns = subject.Columns(run.metrics_file)
    columns.follow()
    run.metrics_file.write_text(json.dumps(metrics(0)) + "\n")
    columns.follow()
    assert columns.arrays()[0].tolist() == [0]


def test_lines_that_are_no_metrics_are_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    bad = [
        "{",
        "[]",
        "null",
        '{"step": "1", "attempt": 0}',
        '{"step": 1e9, "attempt": 0}',
        '{"step": -1, "attempt": 0}',
    ]
    deep = '{"step": 4, "attempt": 0, "x": ' + "[" * 200 + "]" * 200 + "}"
    good = json.dumps({**metrics(7), "list": [1], "text": "x", "flag": True, "huge": 10**400, "inf": "Infinity"})
    path.write_text("\n".join([*bad, deep, good]) + "\n")
    columns = subject.Columns(path)
    columns.follow()
    steps, values = columns.arrays()
    assert steps.tolist() == [7]
    assert set(values) == set(metrics(7)) - {"step", "attempt", "time"}


def test_thinning_keeps_a_single_spike():
    steps = np.arange(10_000)
    values = np.zeros(10_000)
    values[4321] = 7.0
    values[100:120] = np.nan
    thinned = subject.thin(steps, {"x": values}, 500)
    mean, low, high = thinned.lines["x"]
    assert len(thinned.steps) == 500
    assert np.nanmax(high) == 7.0
    at = int(np.nanargmax(high))
    assert thinned.steps[at] <= 4321 < thinned.steps[at + 1]
    assert low[at] == 0.0
    assert 0.0 < mean[at] < 7.0
    assert np.isnan(mean[5])  # all of its steps are unknown


def test_a_large_file_is_sampled_until_it_is_read(tmp_path, monkeypatch):
    run = make_run(tmp_path / "a", steps=3000)
    monkeypatch.setattr(subject, "AT_ONCE", 10_000)
    monkeypatch.setattr(subject.Shelf, "_read_on", lambda self, columns: None)
    curves = subject.Shelf().curves(run)
    assert not curves.complete
    assert 500 <= curves.rows <= 600
    assert curves.steps[0] == 0
    assert set(curves.lines) == set(metrics(0)) - {"step", "attempt", "time"}


def test_the_thread_reads_all_of_a_large_file(tmp_path, monkeypatch):
    run = make_run(tmp_path / "a", steps=3000)
    monkeypatch.setattr(subject, "AT_ONCE", 10_000)
    shelf = subject.Shelf()
    columns = shelf.columns(run)
    for _ in range(200):
        if shelf.curves(run).complete:
            break
        time.sleep(0.02)
    assert len(columns.arrays()[0]) == 3000


def test_nobody_waits_for_the_thread_that_reads_a_large_file(tmp_path):
    run = make_run(tmp_path / "a")
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    run.metrics_file.write_bytes(b"".join(lines * (1 + 40 * 2**20 // sum(map(len, lines)))))
    shelf = subject.Shelf()
    assert not shelf.curves(run).complete
    run.metrics_file.unlink()  # the thread ends


def test_the_shelf_drops_what_was_used_least(tmp_path):
    runs = [make_run(tmp_path / str(i), steps=50) for i in range(4)]
    shelf = subject.Shelf(most_cells=1500)
    for run in runs:
        shelf.columns(run)
    shelf.columns(runs[0])
    kept = list(shelf._cache)
    assert runs[0].metrics_file in kept
    assert len(kept) < 4


def test_what_is_new_of_a_run_is_asked_for_alone_and_steps_made_anew_are_told(tmp_path):
    run = make_run(tmp_path / "a")
    shelf = subject.Shelf()
    whole = shelf.curves(run)
    assert (whole.last, whole.rows) == (19, 20)
    append_line(run.metrics_file, metrics(20))
    more = shelf.curves(run, between=(whole.last + 1, 10**12))
    assert (more.steps.tolist(), more.last, more.rows, more.version) == ([20], 20, 21, whole.version)
    nothing = shelf.curves(run, between=(21, 10**12))
    assert (nothing.steps.tolist(), nothing.last, nothing.version) == ([], None, whole.version)
    append_line(run.metrics_file, metrics(18, 1))
    assert shelf.curves(run, between=(21, 10**12)).version != whole.version


def test_steps_that_were_written_out_of_order_are_cut_in_order(tmp_path):
    run = make_run(tmp_path / "a", steps=0)
    for step in (4, 1, 3, 0, 2):
        append_line(run.metrics_file, metrics(step))
    columns = subject.Columns(run.metrics_file)
    columns.follow()
    steps, values = columns.arrays(["entropy"], (1, 3))
    assert steps.tolist() == [1, 2, 3]
    np.testing.assert_allclose(values["entropy"], [1.99, 1.98, 1.97], atol=1e-6)
