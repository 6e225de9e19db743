"""What a person sees of a run: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from steadyrl.cli.terminal import note, printable
from steadyrl.core.metrics import describe
from steadyrl.doctor.live import Change
from steadyrl.loop.rewards.functions import TAKEN
from steadyrl.show.report.actions import describe_action

# (metric, heading), in the order shown; metrics that a run does not measure are left out.
_SHOWN = (
    ("reward/mean", "reward"),
    ("kl_ref_k1", "KL to reference"),
    ("kl_ref_k1_seq", "KL to reference"),
    ("entropy", "entropy"),
    ("completion/length", "length"),
    ("clip_fraction", "clipped"),
    ("loss/value", "value loss"),
    ("value/explained_variance", "explained variance"),
    ("grad_norm", "gradient norm"),
    ("tokens/per_second", "speed"),
)
_IN_A_LINE = ("reward/mean", "kl_ref_k1", "kl_ref_k1_seq", "entropy", "completion/length")
MOST_PARTS = 4  # of the reward; a terminal has few rows
_PLAIN_EVERY_S = 5.0  # a log file needs no line a second
_COUNT_EVERY_S = 30.0  # and one of a long phase more seldom


class Progress:
    """Shows the progress of a run. Use it as a context manager around the run."""

    def __init__(self) -> None:
        self.total = 0  # steps of the whole run, known when they begin
        self.target: float | None = None  # of the reward
        self._console = Console(stderr=False)
        self._first: tuple[int, float] | None = None
        self._last_plain, self._stepped = 0.0, 0.0
        self._counted: float | None = None  # when a plain line said how far a phase is, or the phase began to count
        self._gone = False
        self._record: Mapping[str, Any] | None = None
        self._phase: Spinner | None = None
        self._counts: dict[str, tuple[int, int]] = {}  # by what is counted: how many are done, and of how many
        self._finding, self._forecast = "", ""
        # The view is made anew at each refresh: counts change without a call for each of them.
        live = Live(console=self._console, refresh_per_second=4, get_renderable=self.view)
        self._live = live if self._console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def phase(self, text: str) -> None:
        """Report that a longer phase begins; a terminal shows that it goes on, and for how long."""
        self._say(text)
        self._phase = Spinner("dots", Text(printable(text), overflow="ellipsis", no_wrap=True))
        self._forget_counts()

    def count(self, what: str, done: int, total: int) -> None:
        """Show how many of a kind are done, until all are or another phase or step begins."""
        if done >= total:
            self._counts.pop(what, None)
            return
        self._counts[what] = done, total
        now = time.monotonic()
        if self._counted is None:
            self._counted = now
        elif not self._live and now - self._counted >= _COUNT_EVERY_S:
            self._counted = now
            self._say(f"    {what}: {done} of {total}")

    def _forget_counts(self) -> None:
        self._counts.clear()
        self._counted = None

    def note(self, text: str) -> None:
        """Show a line on standard error, because it is not a result."""
        note(text)

    def finding(self, change: Change) -> None:
        """Show what the doctor raised or cleared, except for information, which `steadyrl doctor` shows."""
        finding = change.finding
        if finding.severity == "info":
            return
        since = "" if finding.since_step is None else f" since step {finding.since_step}"
        message = finding.message if change.state == "raised" else "cleared"
        self._finding = f"step {change.step}: {finding.severity} {finding.check}{since}: {message}"
        self._say(f"doctor, step {change.step}: {finding.severity} {finding.check}{since}: {message}")
        if change.state == "raised":
            self._say(f"    {finding.remedy}")

    def forecast(self, text: str) -> None:
        """Show where the held-out score will end."""
        self._forecast = text
        self._say(f"forecast, {text}")

    def action(self, line: Mapping[str, Any]) -> None:
        """Show what the autopilot did, or would do."""
        self._say(f"autopilot, step {line['step']}: {describe_action(line)}")

    def step(self, record: Mapping[str, Any]) -> None:
        """Show a step's metrics."""
        now = time.monotonic()
        self._first = self._first or (record["step"], now)
        self._record, self._phase = record, None
        self._forget_counts()
        self._stepped = now
        if not self._live and (now - self._last_plain >= _PLAIN_EVERY_S or record["step"] + 1 == self.total):
            self._last_plain = now
            self._say(self._line(record, now))

    def _say(self, text: str) -> None:
        """Print a line. If the output is gone (a closed pipe, a full disk), the run continues without it."""
        if self._gone:
            return
        try:
            if self._live:
                self._console.print(printable(text), markup=False, highlight=False)
            else:  # rich would end the program where the reader of a pipe went away
                print(printable(text), flush=True)
        except OSError as error:
            self._gone = True
            note(f"standard output cannot be written ({error.strerror}); the run continues in its directory")

    def _left(self, record: Mapping[str, Any], now: float) -> str:
        assert self._first is not None
        first, began = self._first
        done = record["step"] - first
        if done == 0:
            return "time left unknown"
        seconds = (now - began) / done * (self.total - record["step"] - 1)
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} left"

    def _line(self, record: Mapping[str, Any], now: float) -> str:
        parts = [f"step {record['step'] + 1}/{self.total}"]
        names = {heading: name for name, heading in reversed(_shown(record)) if name in _IN_A_LINE}  # one KL is enough
        for heading, name in reversed(names.items()):
            aim = self.target if name == "reward/mean" else None
            parts.append(f"{heading} {_format(name, record[name])}{'' if aim is None else f' (target {_number(aim)})'}")
        return "  ".join([*parts, self._left(record, now)])

    def view(self) -> RenderableType:
        """Return what a terminal shows: how far the run is, its measurements, the last finding, what goes on."""
        parts: list[RenderableType] = []
        if self._record is not None:
            step = self._record["step"] + 1
            line = Table.grid(padding=(0, 2))
            bar = ProgressBar(total=max(self.total, 1), completed=step, width=32)
            line.add_row(
                Text(f"step {step} of {self.total}", style="bold"), bar, self._left(self._record, self._stepped)
            )
            parts += [line, self._table(self._record)]
        if self._forecast:
            parts.append(Text(f"forecast, {printable(self._forecast)}", overflow="ellipsis", no_wrap=True))
        if self._finding:
            parts.append(Text(f"last finding, {printable(self._finding)}", overflow="ellipsis", no_wrap=True))
        if self._phase is not None:
            parts.append(self._phase)
        counts = Table.grid(padding=(0, 2))
        for what, (done, total) in list(self._counts.items()):  # another thread may count meanwhile
            counts.add_row(printable(what), ProgressBar(total=total, completed=done, width=32), f"{done} of {total}")
        if counts.row_count:
            parts.append(counts)
        return Group(*parts)

    def _table(self, record: Mapping[str, Any]) -> Table:
        """Return the measurements, two in a row, with their units."""
        cells = []
        for name, heading in _shown(record):
            metric = describe(name)
            cells.append((heading, _number(record[name]), metric.unit if metric else ""))
            if name == "reward/mean":
                if self.target is not None:
                    share = f"{record[name] / self.target:.0%} reached" if self.target > 0 else ""
                    cells.append(("  target", _number(self.target), share))
                parts = _parts(record)
                cells += [(f"  {part.partition('/')[2]}", _number(record[part]), "") for part in parts[:MOST_PARTS]]
                cells += [(f"  and {len(parts) - MOST_PARTS} more", "", "")] if len(parts) > MOST_PARTS else []
        table = Table.grid(padding=(0, 2))
        for _ in range(2):
            table.add_column(no_wrap=True)
            table.add_column(justify="right", style="bold")
            table.add_column(style="dim", no_wrap=True)
        half = -(-len(cells) // 2)
        for row in range(half):
            second = cells[half + row] if half + row < len(cells) else ("", "", "")
            table.add_row(*(printable(cell) for cell in (*cells[row], *second)))
        return table


def _shown(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, heading) for name, heading in _SHOWN if record.get(name) is not None]


def _parts(record: Mapping[str, Any]) -> list[str]:
    own = {f"reward/{name}" for name in TAKEN}
    return [name for name in record if name.startswith("reward/") and name not in own and record[name] is not None]


def _format(name: str, value: float) -> str:
    metric = describe(name)
    unit = f" {metric.unit}" if metric and metric.unit not in {"", "share", "reward"} else ""
    return f"{_number(value)}{unit}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 0.1 else f"{value:.2f}"
