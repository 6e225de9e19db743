"""What a command is doing: the phase that goes on, and how far it is, for all commands that take a while."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from steadyrl.cli.terminal import note, printable
from steadyrl.core.counting.count import heard_by

PATIENCE_S = 2.0  # without a line, the longest
_COUNT_EVERY_S = 30.0  # a log file needs few lines of a long phase
REFRESHES = 4  # a second, of a terminal


class Activity:
    """The phase that goes on, with its counts."""

    def __init__(self, say: Callable[[str], None], live: bool) -> None:
        self._say, self._live = say, live
        self._text, self._start = "", 0.0
        self._spinner = Spinner("dots")
        self._counts: dict[str, tuple[int, int]] = {}  # by unit, such as "steps": how many are done, and of how many
        self._line_times: dict[str, float] = {}  # by unit: when a plain line said how far, or the count began
        self._timer: threading.Timer | None = None

    def phase(self, text: str) -> None:
        """Begin a phase that is worth a line however long it takes."""
        self.end()
        self._say(text)
        self._begin(text)

    def begin(self, text: str) -> None:
        """Begin a phase that is worth a line if it takes long; a terminal shows it at once."""
        self.end()
        if not self._live:
            self._timer = threading.Timer(PATIENCE_S, self._say, (text,))
            self._timer.daemon = True
            self._timer.start()
        self._begin(text)

    def _begin(self, text: str) -> None:
        self._text, self._start = text, time.monotonic()

    def count(self, unit: str, done: int, total: int) -> None:
        """Show how many of a unit are done, until all are or something else begins."""
        if done >= total:
            self._counts.pop(unit, None)
            self._line_times.pop(unit, None)
            return
        self._counts[unit] = done, total
        now = time.monotonic()
        if not self._live and now - self._line_times.setdefault(unit, now) >= _COUNT_EVERY_S:
            self._line_times[unit] = now
            self._say(f"    {unit}: {done} of {total}")

    def end(self) -> None:
        """Forget the phase and its counts."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._text = None, ""
        self._counts.clear()
        self._line_times.clear()

    def rows(self) -> list[RenderableType]:
        """Return what a terminal shows of it."""
        rows: list[RenderableType] = []
        if self._text:
            seconds = int(time.monotonic() - self._start)
            duration = f", {seconds} s" if seconds >= PATIENCE_S else ""
            self._spinner.update(text=Text(printable(self._text + duration), overflow="ellipsis", no_wrap=True))
            rows.append(self._spinner)
        table = Table.grid(padding=(0, 2))
        for unit, (done, total) in list(self._counts.items()):  # another thread may count meanwhile
            table.add_row(printable(unit), ProgressBar(total=total, completed=done, width=32), f"{done} of {total}")
        if table.row_count:
            rows.append(table)
        return rows


def drawing_console(stderr: bool) -> Console:
    """Return a console that is a terminal where a display can be drawn anew in its place.

    A file, and what a notebook shows of a command (``!steadyrl ...``), would keep every state of the display. For a
    kernel imitates a terminal, and asks for colours in files too by FORCE_COLOR, as services that build software do.
    """
    in_kernel = (os.environ.get("TERM"), os.environ.get("GIT_PAGER")) == ("xterm-color", "cat")  # as ipykernel sets
    try:
        is_terminal = (sys.stderr if stderr else sys.stdout).isatty() and not in_kernel
    except (AttributeError, ValueError):  # a stream of the user's own that has no such method, or is closed
        is_terminal = False
    return Console(stderr=stderr, force_terminal=is_terminal)


@contextmanager
def following() -> Iterator[Activity]:
    """Show on standard error what goes on inside, without a trace in a terminal afterwards."""
    console = drawing_console(stderr=True)
    activity = Activity(note, console.is_terminal)
    live = Live(
        console=console,
        refresh_per_second=REFRESHES,
        transient=True,
        get_renderable=lambda: Group(*activity.rows()),
    )
    with live if console.is_terminal else nullcontext(), heard_by(activity.count, activity.begin):
        try:
            yield activity
        except KeyboardInterrupt:
            note("stopped")
            raise
        finally:
            activity.end()
