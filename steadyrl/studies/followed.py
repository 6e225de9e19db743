"""Follows a run that another process makes, perhaps on another machine, by its run directory alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from steadyrl.rundir import RunDir


class Followed:
    """What is new in a run directory since it was last looked at."""

    def __init__(self, find: Callable[[], RunDir | None]) -> None:
        """Remember how far the run is now.

        Args:
            find: Returns the newest run directory, None as long as there is none.
        """
        run = find()
        self._find = find
        self._before = _attempt(run)
        self._saved = _saved(run)
        self.steps = len(run.metrics()) if run else 0
        self._size = -1

    @property
    def begun(self) -> bool:
        """Whether a process has begun the run, or has gone on with it, since this was made."""
        return _attempt(self._find()) != self._before

    @property
    def has_saved(self) -> bool:
        """Whether it has a newer checkpoint than when this was made."""
        return _saved(self._find()) > self._saved

    def new_steps(self) -> Iterator[int]:
        """Yield how many steps there are with each new line of metrics."""
        run = self._find()
        size = run.metrics_file.stat().st_size if run and run.metrics_file.is_file() else -1
        if run is None or size == self._size:
            return
        self._size = size
        records = run.metrics()[self.steps :]
        self.steps += len(records)
        yield from (record["step"] + 1 for record in records)


def _attempt(run: RunDir | None) -> tuple[str, int] | None:
    return (run.path.name, run.info().get("attempt") or 0) if run else None


def _saved(run: RunDir | None) -> int:
    return max(run.checkpoints(), default=0) if run else 0
