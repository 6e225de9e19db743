"""What a check is: one record that holds all that is known of a fault, and a pure function that looks for it.

Pages, the order of findings, their chains, texts and overrides, and the autopilot's moves are derived from these
records. Knowledge is data, logic is code: ``find`` says which cause shows, since when and by which numbers; what that
cause means and what to do about it stands in a TOML file beside the module with the function.

The doctor's checks look at the log of a run (``check``). The preflight's look at a trial, and those of a task at its
answers; their rooms read records of their own (``Registry``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from steadyrl.core.types import Finding, Severity
from steadyrl.doctor.bound import Bound
from steadyrl.doctor.remedies import CHANGES, Times, Value, multiple
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.readings import falls_short, near_best

Subject = TypeVar("Subject")  # what a check looks at
FEWEST_ROWS = 6  # that a course is told from, however many steps each of them averages
WORDS: Mapping[str, str] = tomllib.loads((Path(__file__).parent / "names" / "quantities.toml").read_text("utf-8"))
FEWEST_OF_MANY, MANY = 4, 5  # rows that are enough if they cover so many times the steps that a check takes


@dataclass(frozen=True)
class Cause:
    """What may be behind a finding."""

    name: str
    """As in ``Finding.cause``."""
    sign: str
    """The measurement that tells it from the other causes."""
    remedy: str
    """What to do about it."""
    change: tuple[str, ...] = ()
    """What it changes as the run tells, by names of ``remedies.CHANGES``."""
    times: Mapping[str, float] = field(default_factory=dict)
    """The settings that it multiplies, by their names in docs/doctor/quantities.md, with the factors."""
    set: Mapping[str, Value] = field(default_factory=dict)
    """The settings that it sets to a fixed value."""
    follows: tuple[str, ...] = ()
    """Checks whose findings bring this about, the nearest first."""
    explains: tuple[str, ...] = ()
    """Beside those of the check, see there."""
    moves: tuple[str, ...] = ()
    """What the autopilot may try, in this order (``autopilot.knobs.MOVES``)."""
    apart: bool = False
    """Of a suspicion: it brings nothing about, and no other advice takes its settings along."""
    doubts: bool = False
    """Whether a run in which it does no harm is not called healthy all the same."""
    measured: str = ""
    """The faults of bench/doctor, or the logs, that it was seen to lead on; "" where it is reasoned only."""

    def changes(self, run: Run) -> dict[str, Value]:
        """Return the settings that the remedy changes in a run."""
        computed = [CHANGES[name](run) for name in self.change]
        multiplied = [multiple(run, name, factor) for name, factor in self.times.items()]
        return {name: value for settings in (*computed, *multiplied, self.set) for name, value in settings.items()}


@dataclass(frozen=True)
class Found:
    """What ``find`` saw."""

    cause: str
    """Name of one of the check's causes."""
    severity: Severity = "critical"
    """As in ``Finding``."""
    since_step: int | None = None
    """As in ``Finding``."""
    message: str = ""
    """As in ``Finding``."""
    evidence: tuple[str, ...] = ()
    """As in ``Finding``."""
    remedy: str = ""
    """Instead of the cause's, where numbers of the run belong in it."""
    change: Mapping[str, Value] | None = None
    """Instead of the cause's changes, likewise."""


@dataclass(frozen=True)
class Unknown:
    """Why ``find`` cannot tell: one sentence, and the quantities or settings that would let it."""

    message: str
    would_tell: tuple[str, ...] = ()


@dataclass(frozen=True)
class Passed:
    """That ``find`` saw nothing wrong: one sentence, where numbers belong in it, and what is odd without harm."""

    message: str
    evidence: tuple[str, ...] = ()


Result = Found | Passed | Unknown | None
Results = Result | Sequence[Result]
Find = Callable[[Run], Results]


def always(subject: object) -> bool:
    """Return True: a check that every subject has a use for."""
    return True


def as_written(subject: object, cause: Cause, result: Found) -> tuple[str, tuple[str, ...]]:
    """Return remedy and overrides of a finding whose changes are named as a config names them."""
    change = cause.set if result.change is None else result.change
    return result.remedy or cause.remedy, tuple(f"{name}={value}" for name, value in change.items())


@dataclass(frozen=True)
class Check(Generic[Subject]):
    """One check. Its file holds everything but ``find``, ``applies`` and ``advise``, which are code."""

    name: str
    """As in ``Finding.check``."""
    topic: str
    """The section of a report that it belongs to."""
    title: str
    """The fault in one line."""
    healthy: str
    """What is so where nothing is wrong."""
    find: Callable[[Subject], Results]
    """(subject) -> what it saw; several where there are several."""
    symptom: str = ""
    """What is seen, and beyond which numbers, where ``healthy`` does not say so."""
    causes: tuple[Cause, ...] = ()
    """What may be behind it."""
    source: str = ""
    """Where the rule comes from."""
    needs: tuple[str, ...] = ()
    """Quantities of a log without which it cannot tell; of an alternative "a|b" one is enough."""
    min_steps: int = 1
    """Fewer steps of the first need cannot be judged; rows count for as many steps as they average."""
    applies: Callable[[Subject], bool] = always
    """(subject) -> False where it has nothing that the check could be about."""
    advise: Callable[[Subject, Cause, Found], tuple[str, tuple[str, ...]]] = as_written
    """(subject, cause, what was seen) -> remedy and overrides."""
    not_for: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of ``Traits`` with which a run has nothing that the check could be about."""
    follows: tuple[str, ...] = ()
    """Checks whose harmful findings bring this one about, whatever its cause."""
    explains: tuple[str, ...] = ()
    """Of a suspicion: checks whose findings it brings about where nothing measured does, "check" or "check:cause"."""
    slows: bool = False
    """Whether it explains a reward that falls short: it advises a setting then, be it without harm, and none where the
    reward is near the best."""
    judges: str = ""
    """Which of the four things that a verdict "healthy" rests on it looks at, if any."""
    shows: tuple[str, ...] = ()
    """The quantities that show it best, where the first need does not."""
    bound: Bound | None = None
    """What ``healthy`` says of a series, where it names a number."""

    def __call__(self, subject: Subject) -> list[Finding]:
        """Return what the check says; one finding in state "ok" if it judged and found nothing.

        Of a subject that has nothing that the check could be about it says nothing.
        """
        if not self.applies(subject):
            return []
        findings = [self._finding(subject, result) for result in _listed(self.find(subject)) if result is not None]
        return findings or [self._finding(subject, Passed(self.healthy))]

    def cause(self, name: str) -> Cause:
        """Return the cause of a name."""
        return next(cause for cause in self.causes if cause.name == name)

    def _finding(self, subject: Subject, result: Found | Passed | Unknown) -> Finding:
        if isinstance(result, Unknown):
            return Finding(self.name, message=result.message, state="unknown", would_tell=result.would_tell)
        if isinstance(result, Passed):
            return Finding(self.name, message=result.message, state="ok", evidence=result.evidence)
        cause = self.cause(result.cause)
        remedy, overrides = self.advise(subject, cause, result)
        return Finding(
            check=self.name,
            severity=result.severity,
            since_step=result.since_step,
            cause=cause.name,
            message=result.message,
            evidence=result.evidence,
            remedy=remedy,
            overrides=overrides,
            source=self.source,
        )


def judged(checks: Sequence[Check[Subject]], subject: Subject) -> list[Finding]:
    """Return what checks say of a subject, in their order."""
    return [finding for check in checks for finding in check(subject)]


def _listed(results: Results) -> Sequence[Result]:
    return [results] if results is None or isinstance(results, Found | Passed | Unknown) else results


@dataclass(frozen=True)
class Registry:
    """The records of a room's checks."""

    records: Mapping[str, Mapping[str, Any]]
    """By name, in the order of the files; each holds arguments of ``Check``."""

    @classmethod
    def read(cls, *files: Path) -> Registry:
        """Return the records of TOML files: a table for each check, with a table for each of its causes.

        A text may be broken over lines. One that stands above the checks of a file is shared: remedies hold it as
        {name}.
        """
        entries: dict[str, Any] = {}
        for path in files:
            entries |= tomllib.loads(path.read_text(encoding="utf-8"))
        shared = {name: " ".join(text.split()) for name, text in entries.items() if isinstance(text, str)}
        records = {}
        for name, entry in entries.items():
            if name not in shared:
                causes = [Cause(cause, **_plain(fields, shared)) for cause, fields in entry.get("causes", {}).items()]
                bound = Bound(**entry["bound"]) if "bound" in entry else None
                records[name] = {**_plain(entry, shared), "name": name, "causes": tuple(causes), "bound": bound}
        return cls(records)

    def check(
        self, name: str, applies: Callable[[Any], bool] = always
    ) -> Callable[[Callable[[Subject], Results]], Check[Subject]]:
        """Return what makes a check of a function and of the record of a name; ``applies`` as of ``Check``."""
        return lambda find: Check(**self.records[name], find=find, applies=applies)


def _plain(fields: Mapping[str, Any], shared: Mapping[str, str]) -> dict[str, Any]:
    """Return fields with each text on one line, its shared texts filled in, and with tuples for arrays."""
    plain = dict(fields)
    for key, value in fields.items():
        if isinstance(value, str):
            plain[key] = " ".join(value.split()).format(**shared)
        elif isinstance(value, list):
            plain[key] = tuple(value)
    return plain


RECORDS = Registry.read(*sorted((Path(__file__).parent / "checks").glob("*.toml")))


def check(name: str, when: Callable[[Run], bool] = always) -> Callable[[Find], Check[Run]]:
    """Return what makes a check of runs of a function and of the record of a name.

    Args:
        name: Of the record.
        when: False for runs that have nothing of it, beside those that the record excludes.
    """

    def of_runs(find: Find) -> Check[Run]:
        plain = RECORDS.check(name)(find)

        def applies(run: Run) -> bool:
            return when(run) and not any(getattr(run.traits, trait) in no for trait, no in plain.not_for.items())

        return replace(plain, find=partial(_judge, plain), applies=applies, advise=partial(_for_trainer, plain))

    return of_runs


def _judge(check: Check[Run], run: Run) -> Results:
    """Return what a check sees in a run, or what its log lacks.

    The evidence of what passed says where the run is other than healthy runs are, although no harm was found.
    """
    missing = [need for need in check.needs if not any(run.get(name) for name in need.split("|"))]
    if missing:
        lacking = [
            f"{'finite ' if any(name in run.series for name in need.split('|')) else ''}{in_words(need)}"
            for need in missing
        ]
        return Unknown(f"the log has no {' and no '.join(lacking)}", tuple(missing))
    if short := _too_short(check, run):
        return short
    results = check.find(run)
    broken = "" if check.bound is None or any(_listed(results)) else check.bound.broken(run)
    return Passed(check.healthy, (broken,)) if broken else results


def _too_short(check: Check[Run], run: Run) -> Unknown | None:
    if check.min_steps <= 1 or not check.needs:
        return None
    logged = [series for name in check.needs[0].split("|") if (series := run.get(name)) is not None]
    longest = max(logged, key=len)
    rows, steps = len(longest), run.covers(longest)
    fewest = FEWEST_OF_MANY if steps >= MANY * check.min_steps else FEWEST_ROWS
    if rows >= min(fewest, check.min_steps) and steps >= check.min_steps:
        return None
    averaged = f" of {run.averaged_over} steps each" if run.averaged_over > 1 else ""
    rows_of_min_steps = -(-check.min_steps * rows // steps)  # rounded up
    needed_rows = max(rows_of_min_steps, min(FEWEST_ROWS, check.min_steps))
    return Unknown(f"too few rows{averaged}: {rows}, and it takes {needed_rows}")


def in_words(need: str) -> str:
    """Return what a sentence calls a need of a check, in which bars part what can stand for one another."""
    *leading, last = (WORDS.get(name, name) for name in need.split("|"))
    return f"{', '.join(leading)} or {last}" if leading else last


def _for_trainer(check: Check[Run], run: Run, cause: Cause, result: Found) -> tuple[str, tuple[str, ...]]:
    """Return remedy and overrides under the trainer's own names of settings.

    What the run has already is left out: advice is never what is followed. What harms nothing changes a setting only if
    it explains a reward that falls short, and what explains one changes none where the reward is near the best. A
    suspicion asks for that itself.
    """
    needless = not (check.slows and falls_short(run)) if result.severity == "info" else check.slows and near_best(run)
    if needless and not check.explains:
        return result.remedy or cause.remedy, ()
    advised = cause.changes(run) if result.change is None else result.change
    # What a setting is at the end: what was logged of it last, or what it was set to; None where that is unknown.
    logged = {name: series.last for name in advised if (series := run.get(name)) is not None}
    change = {name: value for name, value in advised.items() if logged.get(name, run.settings.get(name)) != value}
    return (result.remedy or cause.remedy) + relative(run, change), spelled(run, change)


def spelled(run: Run, change: Mapping[str, Value]) -> tuple[str, ...]:
    """Return changes of settings under the trainer's own names, old values beside the new where they are known.

    Of a trainer whose name for a setting is not known, the change is left to the remedy's words.
    """
    keys = {**{name: name for name in run.config}, **run.keys}  # a name of the trainer's own stands for itself
    named = {name: value for name, value in change.items() if name in keys and not isinstance(value, Times)}
    return tuple(f"{keys[name]}={_text(value)}" for name, value in named.items())


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
