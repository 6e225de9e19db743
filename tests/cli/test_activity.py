import sys
import time
from types import SimpleNamespace

import pytest

from steadyrl.cli import activity
from steadyrl.cli.activity import drawing_console, following
from steadyrl.core.counting.count import begin, tell


def test_a_phase_that_takes_long_gets_a_line_and_a_short_one_none(monkeypatch, capsys):
    monkeypatch.setattr(activity, "PATIENCE_S", 0.2)
    with following():
        begin("loading the model")
        time.sleep(0.5)
        begin("counting tokens")  # ends before its time
    time.sleep(0.3)
    assert capsys.readouterr() == ("", "loading the model\n")


def test_a_phase_by_name_gets_its_line_at_once_and_nothing_goes_to_standard_output(capsys):
    with following() as shown:
        shown.phase("exporting the policy")
        assert capsys.readouterr() == ("", "exporting the policy\n")


def test_a_terminal_shows_what_goes_on_and_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with following():
        begin("scoring known answers")
        tell("programs", 3, 12)
        time.sleep(0.6)  # two refreshes
    shown = capsys.readouterr().err
    assert "scoring known answers" in shown and "3 of 12" in shown
    assert shown.rstrip("\n").endswith("\x1b[2K") or "\x1b[1A\x1b[2K" in shown  # and takes it away again


def test_each_count_has_its_own_time_between_lines(monkeypatch, capsys):
    monkeypatch.setattr(activity, "_COUNT_EVERY_S", 0.05)
    with following():
        tell("completions", 1, 4)
        time.sleep(0.06)
        tell("rollouts scored", 1, 4)  # has just begun, and says nothing of what takes long
        tell("completions", 2, 4)
        tell("completions", 4, 4)
        tell("completions", 1, 4)  # the next ones
    assert capsys.readouterr().err == "    completions: 2 of 4\n"


@pytest.mark.parametrize(
    ("stream", "environment", "drawn"),
    [
        (SimpleNamespace(isatty=lambda: True), {"TERM": "xterm-256color"}, True),
        (SimpleNamespace(isatty=lambda: False), {"TERM": "xterm-256color", "FORCE_COLOR": "3"}, False),
        (SimpleNamespace(isatty=lambda: True), {"TERM": "xterm-color", "GIT_PAGER": "cat", "FORCE_COLOR": "1"}, False),
        (SimpleNamespace(isatty=lambda: True), {"TERM": "xterm", "GIT_PAGER": "cat"}, True),
        (SimpleNamespace(write=print), {"TERM": "xterm"}, False),  # a stream of the user's own
    ],
    ids=["terminal", "file", "notebook", "pager", "stand-in"],
)
def test_a_display_is_drawn_anew_in_a_terminal_alone(monkeypatch, stream, environment, drawn):
    for name in ("TERM", "GIT_PAGER", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream)
        assert drawing_console(stderr=name == "stderr").is_terminal is drawn
