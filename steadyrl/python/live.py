"""What a notebook shows of a run while it goes on: a table and a curve, updated in their place."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Mapping
from functools import partial
from html import escape
from typing import Any

from steadyrl.core.counting.count import duration
from steadyrl.core.errors import users_traceback
from steadyrl.core.metrics import describe
from steadyrl.core.plugins import require
from steadyrl.doctor.live import Change
from steadyrl.loop.train import Watch
from steadyrl.python.curve import reward_curve
from steadyrl.show.report.rows import describe_action

_UPDATE_S = 1.0  # a notebook keeps what it is sent, and its page redraws the cell
_MAX_LINES = 8  # of notes and findings, the newest; the others are folded
_TABLE_METRICS = {
    "reward/mean": "reward",
    "kl_ref_k1_seq": "KL to the reference",
    "entropy": "entropy",
    "completion/length": "answer length",
    "grad_norm": "gradient norm",
}


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython(), "kernel") if ipython else False


class NotebookView:
    """Shows the progress of a run in the cell that trains it. Use it as a context manager around the run."""

    def __init__(self) -> None:
        display = require("IPython.display")
        # transformers imports tqdm, which warns in red that its bars need another package: this view needs none.
        warnings.filterwarnings("ignore", message="IProgress not found")
        self._total_steps, self._first_step_end = 0, 0.0  # time of a step is measured after the first
        self._rewards: list[tuple[int, float | None]] = []
        self._record: Mapping[str, Any] = {}
        self._phase, self._count = "", ""
        self._lines: list[str] = []
        self._updated = 0.0
        self._over = False
        self._handle = display.display(self, display_id=True)

    def __enter__(self) -> NotebookView:
        return self

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            vars(error)["_render_traceback_"] = partial(users_traceback, error)  # is called by notebooks
        self._phase = self._count = ""
        self._over = True
        self._update(at_once=True)

    @property
    def watch(self) -> Watch:
        """What the run calls."""
        return Watch(
            phase=self.begin,
            note=self.note,
            opened=lambda run: self.note(f"run directory: {run.path}"),
            steps=self._steps,
            step=self._step,
            finding=self._finding,
            action=lambda line: self.note(f"autopilot, step {line['step']}: {describe_action(line)}"),
        )

    def note(self, text: str) -> None:
        """Show a line below the table."""
        self._lines.append(text)
        self._update()

    def count(self, noun: str, done: int, total: int) -> None:
        """Show how many of a kind are done."""
        self._count = "" if done >= total else f"{noun}: {done} of {total}"
        self._update()

    def begin(self, text: str) -> None:
        """Show what begins, such as the loading of the model."""
        self._phase, self._count = text, ""
        self._update(at_once=not self._record)  # the phases before the first step are few and long

    def _steps(self, total: int) -> None:
        self._total_steps = total

    def _step(self, record: Mapping[str, Any]) -> None:
        self._first_step_end = self._first_step_end or time.monotonic()
        self._record, self._phase, self._count = record, "", ""
        self._rewards.append((record["step"], record.get("reward/mean")))
        self._update()

    def _finding(self, change: Change) -> None:
        finding = change.finding
        if finding.severity != "info":
            message = finding.message if change.state == "raised" else "cleared"
            self.note(f"doctor, step {change.step}: {finding.severity} {finding.check}: {message}")

    def _update(self, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self._updated >= _UPDATE_S:
            self._updated = now
            self._handle.update(self)

    def __repr__(self) -> str:
        return "\n".join([self._headline(), *self._lines])

    def _repr_html_(self) -> str:
        rows = []
        for name, heading in _TABLE_METRICS.items():
            if (value := self._record.get(name)) is not None:
                metric = describe(name)
                unit = metric.unit if metric and metric.unit != "reward" else ""
                rows.append(f"<tr><td>{heading}</td><td><b>{value:.3g}</b></td><td>{escape(unit)}</td></tr>")
        blocks = [f"<b>{escape(self._headline())}</b>", f"<table>{''.join(rows)}</table>" if rows else ""]
        blocks.append(reward_curve(self._rewards))
        lines = [f"<div>{escape(line)}</div>" for line in self._lines]
        if earlier := lines[:-_MAX_LINES]:
            blocks.append(f"<details><summary>earlier lines: {len(earlier)}</summary>{''.join(earlier)}</details>")
        blocks += lines[-_MAX_LINES:]
        return f'<div style="font: 14px/1.5 system-ui, sans-serif">{"".join(blocks)}</div>'

    def _headline(self) -> str:
        activity = " ".join(filter(None, (self._phase, self._count)))
        if not self._record:
            return activity or ("no step was made" if self._over else "starting")
        done = self._record["step"] + 1
        line = f"step {done - 1} ({done} of {self._total_steps} done)"
        if len(self._rewards) > 1 and done < self._total_steps and not self._over:
            seconds = (time.monotonic() - self._first_step_end) / (len(self._rewards) - 1) * (self._total_steps - done)
            line += f", about {duration(seconds)} left"
        return f"{line}; {activity}" if activity else line
