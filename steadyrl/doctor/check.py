"""What a check is: a pure function of a run, with what it needs and how it explains itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steadyrl.doctor.series import Run
from steadyrl.types import Finding


@dataclass(frozen=True)
class Unclear:
    """A check could not tell: never the same as health.

    Attributes:
        check: Which.
        why: One sentence.
        would_tell: Quantities or settings that would let it tell.
    """

    check: str
    why: str
    would_tell: tuple[str, ...] = ()


Result = Finding | Unclear | None


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: As in ``Finding.check``.
        needs: Quantities without which it cannot tell; of an alternative "a|b" one is enough.
        page: Its docstring: symptom, causes, what tells them apart, remedy, source.
        function: The check itself.
    """

    name: str
    needs: tuple[str, ...]
    page: str
    function: Callable[[Run], Result | Sequence[Result]]

    def __call__(self, run: Run) -> list[Finding | Unclear]:
        """Return what the check says of a run; nothing if it is healthy."""
        missing = [need for need in self.needs if not any(run.get(name) for name in need.split("|"))]
        if missing:
            return [Unclear(self.name, f"the log has no {' and no '.join(missing)}", tuple(missing))]
        found = self.function(run)
        several = found if isinstance(found, list | tuple) else [found]
        return [result for result in several if isinstance(result, Finding | Unclear)]


def check(needs: Sequence[str] = ()) -> Callable[[Callable[[Run], Result | Sequence[Result]]], Check]:
    """Make a check of a function; its name and docstring become the check's."""

    def make(function: Callable[[Run], Result | Sequence[Result]]) -> Check:
        return Check(function.__name__, tuple(needs), inspect.getdoc(function) or "", function)

    return make
