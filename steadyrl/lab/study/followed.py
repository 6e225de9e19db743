"""Follows a run that another process makes, perhaps on another machine, by its run directory alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from steadyrl.core.rundir import RunDir, read_lines
from steadyrl.lab.jobs import Event


class Followed:
    """What is new in a run directory since it was last looked at."""

    def __init__(self, key: str, find: Callable[[], RunDir | None]) -> None:
        """Remember how far the run is now.

        Args:
            key: Of the run, in events.
            find: Returns the newest run directory, None as long as there is none.
        """
        run = find()
        self._key, self._find = key, find
        self._reported = False
        self._before = _attempt(run)
        self._saved = _saved(run)
        self.steps = len(run.metrics()) if run else 0
        self._read = _size(run)

    def report(self, event: Callable[[Event], None]) -> None:
        """Say what is new: that the run has begun, and each of its steps."""
        if not self._reported and self.begun:
            event((self._key, "begin", (self.steps, self.total)))
            self._reported = True
        for step in self.new_steps() if self._reported else ():
            event((self._key, "step", step))

    @property
    def begun(self) -> bool:
        """Whether a process has begun the run, or has gone on with it, since this was made."""
        return _attempt(self._find()) != self._before

    @property
    def total(self) -> int:
        """How many steps the run makes; asked once it has begun. Epochs become steps when the problems are counted."""
        run = self._find()
        assert run is not None, "the run has begun"
        total: int = run.resolved()["run"]["steps"]
        return total

    @property
    def has_saved(self) -> bool:
        """Whether it has a newer checkpoint than when this was made."""
        return _saved(self._find()) > self._saved

    def new_steps(self) -> Iterator[int]:
        """Yield how many steps there are with each new line of metrics. Only what was appended is read."""
        run = self._find()
        size = _size(run)
        if run is None or size <= self._read:
            return
        start, self._read = self._read, size
        for record in read_lines(run.metrics_file, start):
            step = record.get("step")
            if type(step) is int and step >= self.steps:  # an earlier one is made again, from a checkpoint
                self.steps = step + 1
                yield self.steps


def _attempt(run: RunDir | None) -> tuple[str, int] | None:
    return (run.path.name, run.info().get("attempt") or 0) if run else None


def _size(run: RunDir | None) -> int:
    return run.metrics_file.stat().st_size if run and run.metrics_file.is_file() else 0


def _saved(run: RunDir | None) -> int:
    return max(run.checkpoints(), default=0) if run else 0
