"""The doctor beside a run that goes on: findings as they are raised and cleared.

It looks every N steps, not by the clock: a run that is repeated raises the same findings at the same steps.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from steadyrl.core.errors import ConfigError
from steadyrl.core.types import Finding
from steadyrl.doctor.causes import SEVERITIES, as_record
from steadyrl.doctor.checks.form import ENDS
from steadyrl.doctor.examine import examine
from steadyrl.doctor.names.identify import checked_names, identify
from steadyrl.doctor.readers.completions import JsonTexts, step_files
from steadyrl.doctor.readers.rows import MAX_STEP
from steadyrl.doctor.readers.spelling import flat_settings, number, plain, settings_of, with_truths
from steadyrl.doctor.series import Column, RawLog, Written

EVERY = 20  # steps; bench/results/doctor_speed.json has what that costs
POINTS = 2000  # kept of each metric; from then on every second one, then every fourth
GONE = 2  # examinations without a finding after which it counts as cleared: noise must not make it blink
NOT_METRICS = ("step", "attempt")


@dataclass(frozen=True)
class Change:
    """A finding that was raised, or that no longer holds."""

    step: int
    """After which it was seen."""
    state: Literal["raised", "cleared"]
    """"raised", also where a known one became more severe, or "cleared"."""
    finding: Finding
    """As it was last seen."""

    def record(self) -> dict[str, Any]:
        """Return a line of findings.jsonl."""
        return {**as_record(self.finding), "step": self.step, "state": self.state}


class _Points:
    """One metric by step, thinned evenly where it grows too long; each by itself, for some are measured seldom."""

    def __init__(self) -> None:
        self._by_step: dict[int, float] = {}
        self._stride = 1
        self._count = 0

    def add(self, step: int, value: float, max_points: int) -> None:
        if self._count % self._stride == 0:
            self._by_step[step] = value
        self._count += 1
        if len(self._by_step) > max_points:
            self._stride *= 2
            self._by_step = dict(list(self._by_step.items())[::2])

    def forget_from(self, step: int) -> None:
        self._by_step = {earlier: value for earlier, value in self._by_step.items() if earlier < step}

    def column(self) -> Column:
        steps = np.fromiter(self._by_step, np.int64, len(self._by_step))
        return Column(steps, np.fromiter(self._by_step.values(), np.float64, len(steps)))


@dataclass(frozen=True)
class Ends:
    """The completions of the first and the last steps that a folder holds; each loop over it looks anew."""

    folder: Path
    """With a file for each step, such as "000012.jsonl"."""
    steps: int = 4
    """>= 1, how many of the first and of the last."""

    def __iter__(self) -> Iterator[Written]:
        files = step_files(self.folder) if self.folder.is_dir() else ()
        return iter(JsonTexts(tuple(dict.fromkeys([*files[: self.steps], *files[-self.steps :]]))))


@dataclass
class Seen:
    """The first and the last completions that were shown to it, for trainers that keep none."""

    limit: int = ENDS

    def __post_init__(self) -> None:
        self._first, self._last = list[Written](), deque[Written](maxlen=self.limit)

    def add(self, written: Iterable[Written]) -> None:
        """Take in what was written at a step, in the order of steps."""
        for sample in written:
            (self._first if len(self._first) < self.limit else self._last).append(sample)

    def __iter__(self) -> Iterator[Written]:
        return iter([*self._first, *self._last])


def _step_number(step: Any) -> int:
    """Return a step as a number; it may be a scalar of NumPy or PyTorch.

    Raises:
        ConfigError: It is no whole number.
    """
    value = number(plain(step), null=None)
    if value is None or not abs(value) < MAX_STEP or value != int(value):
        raise ConfigError(f"the step is {step!r:.80}; expected a whole number, such as trainer.state.global_step")
    return int(value)


@dataclass
class LiveDoctor:
    """Keeps what a run measures and examines it every N steps."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the trainer, under its own names; nested keys are joined with dots."""
    every: int = EVERY
    """>= 1, steps between examinations."""
    points: int = POINTS
    """>= 100, of each metric; longer ones are thinned evenly, so that single steps may be lost."""
    format: str = ""
    """Where it is known, ``RawLog.format``: "steadyrl" for metrics under our own names. Without it the names tell the
    trainer, and common names do for a loop of your own."""
    completions: Iterable[Written] = ()
    """What the policy wrote so far; each loop over it has to look anew."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What metrics of names of your own are, see ``steadyrl.diagnose``."""
    _series: dict[str, _Points] = field(default_factory=lambda: defaultdict(_Points))
    # What holds, and how many examinations in a row have not seen it.
    _active: dict[tuple[str, str], tuple[Finding, int]] = field(default_factory=dict)
    _steps: list[int] = field(default_factory=list)
    _last_examined: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise ConfigError(f"every is {self.every!r}; expected a whole number of steps of at least 1")
        self.settings = settings_of(self.settings)
        self.names = checked_names(self.names)

    def remember(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in what was measured before, such as ``RunDir.metrics()`` of a run that is resumed, without examining.

        Args:
            rows: With a "step" each, in their order.
        """
        for row in rows:
            self._add_row(_step_number(row.get("step")), row)

    def add(self, step: int, metrics: Mapping[str, Any]) -> list[Change]:
        """Take in what a step measured, and examine the run where its turn has come.

        Args:
            step: One below the last takes the run back to it; what is measured again at the last step adds to it.
            metrics: By the trainer's names; those of a dict inside follow its name and "/". A number may be a scalar
                of NumPy or PyTorch. What is None or no number is unknown, and left out.

        Returns:
            What changed since the last examination; mostly nothing.

        Raises:
            ConfigError: The step is no whole number, or the metrics have no names.
        """
        if not isinstance(metrics, Mapping):
            raise ConfigError(f"got {metrics!r:.80}; expected metrics by their names, such as {{'reward': 0.5}}")
        step = _step_number(step)
        new = step not in self._steps[-1:]
        self._add_row(step, metrics)
        return self.look(step) if new and len(self._steps) % self.every == 0 else []

    def look(self, step: int) -> list[Change]:
        """Examine what there is, whosever turn it is; see ``add``."""
        self._last_examined = self._steps[-1] if self._steps else None
        columns = {name: points.column() for name, points in sorted(self._series.items())}
        log = RawLog("this run", self.format, columns, self.settings, completions=self.completions, names=self.names)
        current = {(finding.check, finding.cause): finding for finding in examine(identify(log)).findings}
        before, self._active = self._active, {key: (finding, 0) for key, finding in current.items()}
        succeeded = {check for check, cause in current if (check, cause) not in before}  # by another cause
        cleared, raised = [], []
        for key, finding in current.items():
            worse = SEVERITIES[: SEVERITIES.index(before[key][0].severity)] if key in before else SEVERITIES
            if finding.severity in worse:
                raised.append(Change(step, "raised", finding))
        for key, (finding, missed) in before.items():
            if key in current:
                continue
            if missed + 1 < GONE and key[0] not in succeeded:
                self._active[key] = finding, missed + 1
            else:
                cleared.append(Change(step, "cleared", finding))
        return [*cleared, *raised]  # what a check finds last holds

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What holds now, causes before consequences."""
        return tuple(finding for finding, _ in self._active.values())

    @property
    def fresh(self) -> tuple[Finding, ...] | None:
        """What an examination at the last step itself found, causes before consequences; None if it made none."""
        if [self._last_examined] != self._steps[-1:]:
            return None
        return tuple(finding for finding, missed in self._active.values() if not missed)

    def _add_row(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self._steps and step < self._steps[-1]:  # resumed from a checkpoint: what came after it is made anew
            self._steps = [earlier for earlier in self._steps if earlier < step]
            for points in self._series.values():
                points.forget_from(step)
        if step not in self._steps[-1:]:
            self._steps.append(step)
        for name, value in flat_settings(metrics, separator="/").items():
            scalar = number(with_truths(name, [plain(value)])[0], null=None)
            if scalar is not None and name not in NOT_METRICS:
                self._series[name].add(step, scalar, self.points)
