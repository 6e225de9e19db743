"""What a person sees of a run: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from steadyrl.cli.terminal import note, printable
from steadyrl.doctor.live import Change
from steadyrl.metrics import describe
from steadyrl.report.actions import describe_action

# (metric, heading), in the order shown; metrics that a run does not measure are left out.
_SHOWN = (
    ("reward/mean", "reward"),
    ("kl_ref_k1", "KL to reference"),
    ("kl_ref_k1_seq", "KL to reference"),
    ("entropy", "entropy"),
    ("clip_fraction", "clipped"),
    ("loss/value", "value loss"),
    ("value/explained_variance", "explained variance"),
    ("grad_norm", "gradient norm"),
    ("tokens/per_second", "speed"),
)
_PLAIN_EVERY_S = 5.0  # a log file needs no line a second


class Progress:
    """Shows the progress of a run. Use it as a context manager around the run."""

    def __init__(self) -> None:
        self.total = 0  # steps of the whole run, known when they begin
        self._console = Console(stderr=False)
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None
        self._first: tuple[int, float] | None = None
        self._last_plain = 0.0
        self._gone = False

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def phase(self, text: str) -> None:
        """Report that a longer phase begins."""
        self._say(text)

    def note(self, text: str) -> None:
        """Show a line on standard error, because it is not a result."""
        note(text)

    def finding(self, change: Change) -> None:
        """Show what the doctor raised or cleared, except for information, which `steadyrl doctor` shows."""
        found = change.finding
        if found.severity == "info":
            return
        since = "" if found.since_step is None else f" since step {found.since_step}"
        said = found.message if change.state == "raised" else "cleared"
        self._say(f"doctor, step {change.step}: {found.severity} {found.check}{since}: {said}")
        if change.state == "raised":
            self._say(f"    {found.remedy}")

    def action(self, line: Mapping[str, Any]) -> None:
        """Show what the autopilot did, or would do."""
        self._say(f"autopilot, step {line['step']}: {describe_action(line)}")

    def step(self, record: Mapping[str, Any]) -> None:
        """Show a step's metrics."""
        now = time.monotonic()
        self._first = self._first or (record["step"], now)
        if self._live:
            self._live.update(self._table(record, now))
        elif now - self._last_plain >= _PLAIN_EVERY_S or record["step"] + 1 == self.total:
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
        parts += [f"{heading} {_format(name, record[name])}" for name, heading in _shown(record)]
        parts += [f"{name.partition('/')[2]} {record[name]:.3f}" for name in _parts(record)]
        return "  ".join([*parts, self._left(record, now)])

    def _table(self, record: Mapping[str, Any], now: float) -> Table:
        table = Table(title=f"step {record['step'] + 1} of {self.total}, {self._left(record, now)}", min_width=48)
        table.add_column("measurement")
        table.add_column("value", justify="right")
        table.add_column("unit")
        for name, heading in _shown(record):
            metric = describe(name)
            table.add_row(heading, _number(record[name]), metric.unit if metric else "")
            if name == "reward/mean":
                for part in _parts(record):
                    table.add_row(f"  {part.partition('/')[2]}", _number(record[part]), "")
        return table


def _shown(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, heading) for name, heading in _SHOWN if record.get(name) is not None]


def _parts(record: Mapping[str, Any]) -> list[str]:
    own = {"reward/mean", "reward/std", "reward/std_within", "reward/unscored"}
    return [name for name in record if name.startswith("reward/") and name not in own and record[name] is not None]


def _format(name: str, value: float) -> str:
    metric = describe(name)
    unit = f" {metric.unit}" if metric and metric.unit not in {"", "share", "reward"} else ""
    return f"{_number(value)}{unit}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 0.1 else f"{value:.2f}"
