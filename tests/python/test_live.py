"""What a notebook shows: a table and a curve in one place, and not more often than once a second."""

import re
import sys
import warnings
from types import SimpleNamespace

import pytest

from steadyrl.loop.train import Watch, joined
from steadyrl.python import live
from steadyrl.python.curve import reward_curve
from steadyrl.python.train import train


@pytest.fixture
def pages(monkeypatch):
    """Stand in for IPython; return the pages that the cell showed."""
    shown = []
    handle = SimpleNamespace(update=lambda view: shown.append(view._repr_html_()))
    display = SimpleNamespace(display=lambda view, display_id: handle)
    kernel = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_terminal_is_no_notebook(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not live.in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not live.in_notebook()


def test_a_cell_shows_the_last_step_with_its_curve(pages, tmp_path, capsys):
    run = train(
        "base", list("abcdefgh"), lambda completion: completion.count("a"),
        steps=5, backend="toy", max_new_tokens=4, preflight="off", run={"folder": str(tmp_path)},
    )  # fmt: skip
    last = run.metrics()[-1]
    assert "step 4 (5 of 5 done)" in pages[-1] and f"<td>reward</td><td><b>{last['reward/mean']:.3g}</b>" in pages[-1]
    assert f"run directory: {run.path}" in pages[-1] and "<svg" in pages[-1]
    assert any("reading the data of the task" in page for page in pages)
    assert capsys.readouterr().out == ""


def test_a_cell_has_no_warning_of_bars_that_it_does_not_use(pages):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        live.NotebookView()
        warnings.warn("IProgress not found. Please update jupyter and ipywidgets.", UserWarning, stacklevel=1)


def test_a_cell_is_updated_at_most_once_a_second(pages, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(live.time, "monotonic", lambda: clock.now)
    with live.NotebookView() as view, view.watch.around(100):
        for step in range(100):
            clock.now += 0.1
            view.watch.step({"step": step, "reward/mean": step / 100})
        assert 9 <= len(pages) <= 11
    assert "step 99 (100 of 100 done)" in pages[-1]


def test_time_left_is_that_of_the_steps_so_far(pages, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(live.time, "monotonic", lambda: clock.now)
    view = live.NotebookView()
    with view.watch.around(10):
        for step in range(4):
            view.watch.step({"step": step, "reward/mean": 0.0})
            clock.now += 2.0
        clock.now -= 2.0
        # Three steps in six seconds: the other six take twelve.
        assert "step 3 (4 of 10 done), about 12 s left" in view._repr_html_()


def test_a_cell_that_is_over_says_no_time_left_and_folds_the_earlier_lines(pages):
    with pytest.raises(KeyboardInterrupt) as caught, live.NotebookView() as view, view.watch.around(50):
        for number in range(11):
            view.note(f"note {number}")
        for step in range(3):
            view.watch.step({"step": step, "reward/mean": 0.0})
        assert "(3 of 50 done), about" in view._repr_html_()
        raise KeyboardInterrupt
    line, text = caught.value._render_traceback_()
    assert line.startswith("test_live.py, line ") and text == "KeyboardInterrupt"
    shown = view._repr_html_()
    assert "<b>step 2 (3 of 50 done)</b>" in shown
    assert "<summary>earlier lines: 3</summary><div>note 0</div><div>note 1</div><div>note 2</div></details>" in shown
    assert repr(view).splitlines() == ["step 2 (3 of 50 done)", *(f"note {number}" for number in range(11))]


def test_a_cell_whose_run_did_not_begin_says_so(pages):
    with pytest.raises(ValueError), live.NotebookView() as view:
        view.watch.phase("reading the data")
        raise ValueError
    assert "no step was made" in pages[-1] and "reading" not in pages[-1]


def test_text_of_a_model_cannot_be_markup(pages):
    view = live.NotebookView()
    view.note("<script>alert(1)</script>")
    assert "<script>" not in view._repr_html_() and "&lt;script&gt;" in view._repr_html_()


def test_a_curve_reaches_from_its_least_to_its_greatest_value():
    drawn = reward_curve([(0, 1.0), (1, None), (2, 5.0), (3, 3.0)])
    line = re.search(r'points="([^"]*)"', drawn)[1]
    points = [tuple(map(float, point.split(","))) for point in line.split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    # 472 pixels is the right end; the middle value lies half-way between the others.
    assert (x0, x2) == (52.0, 472.0) and x1 == pytest.approx(52 + 420 * 2 / 3, abs=0.06)
    assert y1 < y2 < y0 and y2 == pytest.approx((y0 + y1) / 2, abs=0.06)
    assert [text for text in re.findall(">([^<]+)<", drawn) if text != "reward"] == ["1", "5", "step 0", "3"]


@pytest.mark.parametrize("points", [[], [(0, 1.0)], [(0, 1.0), (1, float("nan"))]])
def test_there_is_no_curve_of_fewer_than_two_values(points):
    assert reward_curve(points) == ""


def test_two_watches_are_called_in_their_order_and_either_stops():
    calls = []
    first = Watch(step=lambda line: calls.append("first"), stop=lambda: False)
    watch = joined(first, Watch(step=lambda line: calls.append("second"), stop=lambda: True))
    watch.step({})
    assert calls == ["first", "second"] and watch.stop()
    assert not joined(first, first).stop()
