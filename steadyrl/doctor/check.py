"""What a check is: one record that holds all that is known of a fault, and a pure function that looks for it.

Pages, the order of findings, their chains, texts and overrides, and the autopilot's moves are derived from these
records. Knowledge is data, logic is code: ``find`` says which cause shows, since when and by which numbers; what that
cause means and what to do about it stands in ``checks/*.toml``, beside the module with the function.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steadyrl.core.types import Finding, Severity
from steadyrl.doctor.bound import Bound
from steadyrl.doctor.remedies import CHANGES, Times, Value, multiple
from steadyrl.doctor.series import Run

FEWEST_ROWS = 6  # that a course is told from, however many steps each of them averages
WORDS = ("needs", "shows", "follows", "moves", "change")  # in the files: words with spaces between


@dataclass(frozen=True)
class Cause:
    """What may be behind a finding.

    Attributes:
        name: As in ``Finding.cause``.
        sign: The measurement that tells it from the other causes.
        remedy: What to do about it.
        change: What it changes as the run tells, by names of ``remedies.CHANGES``.
        times: The settings that it multiplies, by their names in docs/doctor/quantities.md, with the factors.
        set: The settings that it sets to a fixed value.
        follows: Checks whose findings bring this about, the nearest first.
        moves: What the autopilot may try, in this order (``autopilot.knobs.MOVES``).
        measured: The faults of bench/doctor, or the logs, that it was seen to lead on; "" where it is reasoned only.
    """

    name: str
    sign: str
    remedy: str
    change: tuple[str, ...] = ()
    times: Mapping[str, float] = field(default_factory=dict)
    set: Mapping[str, Value] = field(default_factory=dict)
    follows: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    measured: str = ""

    def changes(self, run: Run) -> dict[str, Value]:
        """Return the settings that the remedy changes in a run."""
        computed = [CHANGES[name](run) for name in self.change]
        multiplied = [multiple(run, name, factor) for name, factor in self.times.items()]
        return {name: value for settings in (*computed, *multiplied, self.set) for name, value in settings.items()}


@dataclass(frozen=True)
class Found:
    """What ``find`` saw.

    Attributes:
        cause: Name of one of the check's causes.
        severity: As in ``Finding``.
        since: As ``Finding.since_step``.
        message: As in ``Finding``.
        evidence: As in ``Finding``.
        remedy: Instead of the cause's, where numbers of the run belong in it.
        change: Instead of ``Cause.changes``, likewise.
    """

    cause: str
    severity: Severity
    since: int | None
    message: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    change: Mapping[str, Value] | None = None


@dataclass(frozen=True)
class Unknown:
    """Why ``find`` cannot tell: one sentence, and the quantities or settings that would let it."""

    why: str
    would_tell: tuple[str, ...] = ()


Result = Found | Unknown | None
Find = Callable[[Run], Result | Sequence[Result]]


def always(run: Run) -> bool:
    """Return True: a check that every kind of training has a use for."""
    return True


@dataclass(frozen=True)
class Check:
    """One check. Its file holds everything but ``find`` and ``when``, which are code.

    Attributes:
        name: As in ``Finding.check``.
        topic: The section of a report that it belongs to.
        title: The fault in one line.
        symptom: What is seen, and beyond which numbers.
        healthy: What a healthy run shows instead.
        causes: What may be behind it.
        find: (run) -> what it saw; several where there are several.
        source: Where the rule comes from.
        needs: Quantities without which it cannot tell; of an alternative "a|b" one is enough.
        min_steps: Fewer steps of the first need cannot be judged; rows count for as many steps as they average.
        not_for: Values of ``Traits`` with which a run has nothing that the check could be about.
        when: False for other runs that have nothing of it.
        follows: Checks whose harmful findings bring this one about, whatever its cause.
        judges: Which of the four things that a verdict "healthy" rests on it looks at, if any.
        shows: The quantities that show it best, where the first need does not.
        bound: What ``healthy`` says of a series, where it names a number.
    """

    name: str
    topic: str
    title: str
    symptom: str
    healthy: str
    causes: tuple[Cause, ...]
    find: Find
    source: str
    needs: tuple[str, ...] = ()
    min_steps: int = 1
    when: Callable[[Run], bool] = always
    not_for: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    follows: tuple[str, ...] = ()
    judges: str = ""
    shows: tuple[str, ...] = ()
    bound: Bound | None = None

    def __call__(self, run: Run) -> list[Finding]:
        """Return what the check says of a run; one finding in state "ok" if it judged and found nothing.

        The evidence of such a finding says where the run is other than healthy runs are, although no harm was found.

        Of a run that has nothing that the check could be about it says nothing.
        """
        if not self.applies(run):
            return []
        missing = [need for need in self.needs if not any(run.get(name) for name in need.split("|"))]
        if missing:
            return [self._unknown(Unknown(f"the log has no {' and no '.join(missing)}", tuple(missing)))]
        if short := self._too_short(run):
            return [self._unknown(short)]
        outcome = self.find(run)
        several = [outcome] if outcome is None or isinstance(outcome, Found | Unknown) else outcome
        findings = [self._finding(run, result) for result in several if result is not None]
        if findings:
            return findings
        broken = "" if self.bound is None else self.bound.broken(run)
        return [Finding(self.name, state="ok", message=self.healthy, evidence=(broken,) if broken else ())]

    def applies(self, run: Run) -> bool:
        """Return whether a run has anything that the check could be about."""
        excluded = any(getattr(run.traits, name) in values for name, values in self.not_for.items())
        return not excluded and self.when(run)

    def cause(self, name: str) -> Cause:
        """Return the cause of a name."""
        return next(cause for cause in self.causes if cause.name == name)

    def _too_short(self, run: Run) -> Unknown | None:
        if self.min_steps <= 1 or not self.needs:
            return None
        several = [series for name in self.needs[0].split("|") if (series := run.get(name)) is not None]
        longest = max(several, key=len)
        rows, steps = len(longest), run.covers(longest)
        if rows >= min(FEWEST_ROWS, self.min_steps) and steps >= self.min_steps:
            return None
        averaged = f" of {run.averaged_over} steps each" if run.averaged_over > 1 else ""
        wanted = -(-self.min_steps * rows // steps)
        return Unknown(f"{rows} rows{averaged} are too few; it takes {max(wanted, min(FEWEST_ROWS, self.min_steps))}")

    def _finding(self, run: Run, result: Found | Unknown) -> Finding:
        if isinstance(result, Unknown):
            return self._unknown(result)
        cause = self.cause(result.cause)
        change = _not_in_force(run, cause.changes(run) if result.change is None else result.change)
        return Finding(
            check=self.name,
            severity=result.severity,
            since_step=result.since,
            cause=cause.name,
            message=result.message,
            evidence=result.evidence,
            remedy=(result.remedy or cause.remedy) + relative(run, change),
            overrides=spelled(run, change),
            source=self.source,
        )

    def _unknown(self, result: Unknown) -> Finding:
        return Finding(self.name, message=result.why, state="unknown", would_tell=result.would_tell)


def _records() -> dict[str, dict[str, Any]]:
    """Return what the files say of each check, as arguments of ``Check``.

    A text may be broken over lines. One that stands above the checks of a file is shared: remedies hold it as {name}.
    """
    entries: dict[str, Any] = {}
    for path in sorted((Path(__file__).parent / "checks").glob("*.toml")):
        entries |= tomllib.loads(path.read_text(encoding="utf-8"))
    shared = {name: " ".join(text.split()) for name, text in entries.items() if isinstance(text, str)}
    records = {}
    for name, entry in entries.items():
        if name not in shared:
            if "bound" in entry:
                entry["bound"] = Bound(**entry["bound"])
            causes = tuple(Cause(cause, **_plain(fields, shared)) for cause, fields in entry.pop("causes").items())
            records[name] = {"name": name, "causes": causes, **_plain(entry, shared)}
    return records


def _plain(fields: Mapping[str, Any], shared: Mapping[str, str]) -> dict[str, Any]:
    lines = {key: " ".join(value.split()) if isinstance(value, str) else value for key, value in fields.items()}
    return {
        key: tuple(value.split()) if key in WORDS else value.format(**shared) if isinstance(value, str) else value
        for key, value in lines.items()
    }


RECORDS = _records()


def check(when: Callable[[Run], bool] = always) -> Callable[[Find], Check]:
    """Return what makes a check of a function that has the name of the check's record.

    Args:
        when: As of ``Check``.
    """
    return lambda find: Check(**RECORDS[find.__name__], find=find, when=when)


def _not_in_force(run: Run, change: Mapping[str, Value]) -> dict[str, Value]:
    """Return a change of settings without what the run has already: advice is never what is followed."""
    return {name: value for name, value in change.items() if _now(run, name) != value}


def _now(run: Run, name: str) -> object:
    """Return what a setting is at the end: what was logged of it last, or what it was set to; None where unknown."""
    logged = run.get(name)
    return float(logged.values[-1]) if logged is not None and len(logged) else run.settings.get(name)


def spelled(run: Run, change: Mapping[str, Value]) -> tuple[str, ...]:
    """Return changes of settings under the trainer's own names, old values beside the new where they are known.

    Of a trainer whose name for a setting is not known, the change is left to the remedy's words.
    """
    named = {name: value for name, value in change.items() if name in run.keys and not isinstance(value, Times)}
    return tuple(f"{run.keys[name]}={_text(value)}" for name, value in named.items())


def relative(run: Run, change: Mapping[str, Value]) -> str:
    """Return a sentence with the trainer's own names of settings whose values the log does not hold; "" for none."""
    factors = {name: value.factor for name, value in change.items() if isinstance(value, Times)}
    phrases = [
        f"{run.keys[name]} to {factor:.2g} times what it is" for name, factor in factors.items() if name in run.keys
    ]
    return f" Set {' and '.join(phrases)}; the log does not hold its value." if phrases else ""


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3g}" if isinstance(value, float) else str(value)
