"""What a person sees of a run: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from steadyrl.cli.activity import REFRESHES, Activity, drawing_console
from steadyrl.cli.terminal import note, printable
from steadyrl.core.errors import exception_line
from steadyrl.core.metrics import CATALOGUE, Metric
from steadyrl.core.rundir import RunDir
from steadyrl.core.words import percent
from steadyrl.doctor.live import Change
from steadyrl.loop.rewards.functions import TAKEN
from steadyrl.loop.train import Watch
from steadyrl.show.report.rows import describe_action

_IN_A_LINE = ("reward/mean", "kl_ref_k1", "kl_ref_k1_seq", "entropy", "completion/length")
_PLAIN_UNITS = ("", "share", "reward")  # are not shown
_HEADING_WIDTH = 26  # two headings and two numbers fit into 80 columns
MOST_COMPONENTS = 4  # of the reward; a terminal has few rows
_PLAIN_EVERY_S = 5.0  # a log file needs no line a second


class Progress:
    """Shows the progress of a run. Use it as a context manager around the run."""

    def __init__(self) -> None:
        self.total = 0  # steps of the whole run, known when they begin
        self.target: float | None = None  # of the reward
        self.rewards: Sequence[str] = ()  # of the config, by name or import path
        self._console = drawing_console(stderr=False)
        self._start: tuple[int, float] | None = None
        self._last_line_time, self._last_step_time = 0.0, 0.0
        self._gone = False
        self._record: Mapping[str, Any] | None = None
        self._holding: dict[str, str] = {}  # the raised findings that still hold, by check; the newest is last
        self._cleared, self._forecast = "", ""
        self._activity = Activity(self._say, self._console.is_terminal)
        self.note = note  # on standard error, because a note is not a result
        self.phase, self.begin, self.count = self._activity.phase, self._activity.begin, self._activity.count
        # The view is made anew at each refresh: counts change without a call for each of them.
        live = Live(console=self._console, refresh_per_second=REFRESHES, get_renderable=self.view)
        self._live = live if self._console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._activity.end()
        if self._live:
            self._live.stop()

    @property
    def watch(self) -> Watch:
        """What the run calls."""
        names = ("phase", "note", "opened", "steps", "step", "finding", "action")
        return Watch(**{name: getattr(self, name) for name in names})

    def opened(self, run: RunDir) -> None:
        """Show the run's target and the parts of its reward."""
        settings = run.resolved()
        self.target, self.rewards = settings["run"].get("target"), tuple(settings["rewards"])

    def steps(self, total: int) -> None:
        """Show how far the run is among so many steps."""
        self.total = total

    def finding(self, change: Change) -> None:
        """Show what the doctor raised or cleared, except for information, which `steadyrl doctor` shows."""
        finding = change.finding
        if finding.severity == "info":
            return
        onset = "" if finding.since_step is None else f" since step {finding.since_step}"
        message = finding.message if change.state == "raised" else "cleared"
        line = f"step {change.step}: {finding.severity} {finding.check}{onset}: {message}"
        self._say(f"doctor, {line}")
        self._holding.pop(finding.check, None)
        if change.state == "raised":
            self._holding[finding.check] = line
            self._say(f"    {finding.remedy}")
        else:
            self._cleared = line

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
        self._start = self._start or (record["step"], now)
        self._record, self._last_step_time = record, now
        self._activity.end()
        if not self._live and (now - self._last_line_time >= _PLAIN_EVERY_S or record["step"] + 1 == self.total):
            self._last_line_time = now
            fields = [f"step {record['step']} ({record['step'] + 1}/{self.total})"]
            metrics = [metric for metric in _displayed_metrics(record) if metric.name in _IN_A_LINE]
            for metric in reversed(
                {metric.heading: metric for metric in reversed(metrics)}.values()
            ):  # one KL is enough
                unit = f" {metric.unit}" if metric.unit not in _PLAIN_UNITS else ""
                fields.append(f"{metric.heading} {_number(record[metric.name])}{unit}")
                if metric.name == "reward/mean" and self.target is not None:
                    fields[-1] += f" (target {_number(self.target)})"
            self._say("  ".join([*fields, self._time_left(record, now)]))

    def _say(self, text: str) -> None:
        """Print a line. If the output is gone (a closed pipe or stream, a full disk), the run continues without it."""
        if self._gone:
            return
        try:
            if self._live:
                self._console.print(printable(text), markup=False, highlight=False)
            else:  # rich would end the program where the reader of a pipe went away
                print(printable(text), flush=True)
        except (OSError, ValueError) as error:  # a ValueError where a reward has closed the stream
            self._gone = True
            reason = error.strerror if isinstance(error, OSError) else exception_line(error)
            note(f"standard output cannot be written ({reason}); the run continues in its directory")

    def _time_left(self, record: Mapping[str, Any], now: float) -> str:
        assert self._start is not None
        start_step, start_time = self._start
        done = record["step"] - start_step
        if done == 0:
            return "time left unknown"
        seconds = (now - start_time) / done * (self.total - record["step"] - 1)
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} left"

    def view(self) -> RenderableType:
        """Return what a terminal shows: how far the run is, its measurements, the last finding, what goes on."""
        rows: list[RenderableType] = []
        if self._record is not None:
            step = self._record["step"]
            line = Table.grid(padding=(0, 2))
            line.add_row(
                Text(f"step {step} ({step + 1} of {self.total} done)", style="bold"),
                ProgressBar(total=max(self.total, 1), completed=step + 1, width=24),
                self._time_left(self._record, self._last_step_time),
            )
            rows += [line, self._table(self._record)]
        if self._forecast:
            rows.append(Text(f"forecast, {printable(self._forecast)}", overflow="ellipsis", no_wrap=True))
        *older, newest = self._holding.values() or [self._cleared]  # what was cleared only if none holds
        if newest:
            label = f"last of {len(older) + 1} findings" if older else "last finding"
            rows.append(Text(printable(f"{label}, {newest}"), overflow="ellipsis", no_wrap=True))
        return Group(*rows, *self._activity.rows())

    def _table(self, record: Mapping[str, Any]) -> Table:
        """Return the measurements, two in a row; a name that is too long is cut, a number never."""
        cells = []
        for metric in _displayed_metrics(record):
            unit = f", {metric.unit}" if metric.unit not in _PLAIN_UNITS else ""
            cells.append((f"{metric.heading}{unit}", _number(record[metric.name])))
            if metric.name == "reward/mean":
                if self.target is not None:
                    share = f", {percent(record[metric.name] / self.target)} reached" if self.target > 0 else ""
                    cells.append((f"  target{share}", _number(self.target)))
                # Those with a weight come first: where not all have a row, they are what the policy trains on.
                weighted = [f"reward/{reward.rpartition(':')[2]}" for reward in self.rewards]
                rewards = {
                    name.removeprefix("reward/"): record[name]
                    for name in dict.fromkeys([*weighted, *record])
                    if name.startswith("reward/") and record.get(name) is not None
                }
                components = [(f"  {name}", _number(value)) for name, value in rewards.items() if name not in TAKEN]
                hidden = len(components) - MOST_COMPONENTS
                cells += [*components[:MOST_COMPONENTS], *([(f"  and {hidden} more", "")] if hidden > 0 else [])]
        table = Table.grid(padding=(0, 2))
        for _ in range(2):
            table.add_column(no_wrap=True, overflow="ellipsis", max_width=_HEADING_WIDTH)
            table.add_column(justify="right", style="bold", no_wrap=True)
        half = -(-len(cells) // 2)
        for row in range(half):
            second = cells[half + row] if half + row < len(cells) else ("", "")
            table.add_row(*(printable(cell) for cell in (*cells[row], *second)))
        return table


def _displayed_metrics(record: Mapping[str, Any]) -> list[Metric]:
    return [metric for metric in CATALOGUE if metric.heading and record.get(metric.name) is not None]


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 0.1 else f"{value:.2f}"
