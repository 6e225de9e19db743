"""All checks of a run, and what they say together: ``diagnose`` is the way from a file to a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from os import PathLike, fspath
from typing import Any, Literal

import numpy as np

from steadyrl.core.errors import RunError
from steadyrl.core.types import Finding
from steadyrl.doctor.causes import arrange
from steadyrl.doctor.check import Check
from steadyrl.doctor.judgement.model import HIDDEN, JUDGED, Judgement, judge
from steadyrl.doctor.names.identify import checked_names, holds_known_metric, identify, require_named
from steadyrl.doctor.readers.search import search, search_rows
from steadyrl.doctor.readers.spelling import settings_of
from steadyrl.doctor.remedies import with_rate
from steadyrl.doctor.series import RawLog, Run
from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.readings import direction, learns
from steadyrl.doctor.statistics.repeats import without_repeats
from steadyrl.doctor.statistics.signals import BLOCKS

# The modules with the records. Of findings that are equally bad and equally old, what brings others about comes first.
MODULES = (
    "sampler", "non_finite", "kl_control", "negative_kl", "kl_penalty", "kl", "plan", "limits", "learning_rate",
    "ratios", "gradient", "jump", "values", "entropy", "ending", "length", "form", "reward", "reward_scale", "signal",
    "pairs", "hacking", "stated", "unusual",
)  # fmt: skip
CHECKS: tuple[Check[Run], ...] = tuple(
    record
    for module in MODULES
    for record in vars(import_module(f"steadyrl.doctor.checks.{module}")).values()
    if isinstance(record, Check)
)
BY_NAME: Mapping[str, Check[Run]] = {check.name: check for check in CHECKS}
TOPICS: Mapping[str, tuple[Check[Run], ...]] = {
    topic: tuple(check for check in CHECKS if check.topic == topic)
    for topic in dict.fromkeys(check.topic for check in CHECKS)
}
Verdict = Literal["healthy", "sick", "too little to judge"]
ENOUGH = 30  # steps
OF_PAIRS = ("pair_order", "chosen_unlikely")


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a run, what is in order, and what could not be told."""

    run: Run
    """As it was read."""
    findings: tuple[Finding, ...]
    """Each cause directly before what it brings about (see ``causes.tree``), the worst chain first."""
    unknown: tuple[Finding, ...] = ()
    """What could not be judged, in the order of the checks."""
    fine: tuple[Finding, ...] = ()
    """What was judged and is in order, in the order of the checks."""
    uneven: tuple[Finding, ...] = ()
    """What no check found harm in, although the log is other than in healthy runs; the evidence says where."""

    def __repr__(self) -> str:
        verdict = self.judgement.sentence if self.judgement else self.verdict
        lines = [f"{self.run.path}: {self.run.facts}", f"    {verdict}"]
        if self.run.unknown and self.run.trainer == "unknown":
            lines.append(f"    {self.run.left_out}")
        if self.judgement:
            lines += [f"    not known: {text}" for text in self.missing]
        for finding in self.findings:
            started = "" if finding.since_step is None else f", since step {finding.since_step}"
            lines.append(f"    {finding.severity} {finding.check} ({finding.cause}){started}: {finding.message}")
            lines += [f"        do: {finding.remedy}"] if finding.remedy else []
            lines += [f"        change: {text}" for text in self.run.changes(finding)]
        return "\n".join(lines)

    @property
    def verdict(self) -> Verdict:
        """Sick if anything harms; healthy only where reward, signal, length and gradient were judged, or are minor.

        Where the checks leave that open, what labelled logs like this one were decides, if they agree enough.
        """
        if self.harmful:
            return "sick"
        if self.judgement is None:
            return "healthy"
        return self.judgement.verdict or "too little to judge"

    @property
    def harmful(self) -> tuple[str, ...]:
        """The checks that found harm, the worst chain first."""
        return tuple(dict.fromkeys(finding.check for finding in self.findings if finding.harms))

    @property
    def healthy(self) -> bool:
        """True if enough was judged and nothing harms; something may be worth knowing."""
        return self.verdict == "healthy"

    @property
    def missing(self) -> tuple[str, ...]:
        """Of each thing that could not be judged and has to be, what it is and what would let it be judged."""
        return tuple(text for aspect, text in self._gaps.items() if aspect not in self._minor)

    @property
    def minor(self) -> tuple[str, ...]:
        """Of each thing that could not be judged and does not have to be, what it is and what stays hidden."""
        return tuple(f"{JUDGED[aspect]} ({HIDDEN[aspect]})" for aspect in self._minor)

    @cached_property
    def judgement(self) -> Judgement | None:
        """What labelled logs like this one were, where no check found harm and some could not tell; else None."""
        if self.harmful or not self.missing:
            return None
        about_pairs = (result.message for result in (*self.unknown, *self.findings) if result.check in OF_PAIRS)
        return judge(self.run, contradicted=bool(self._doubts), pairs=next(about_pairs, ""))

    @property
    def rise(self) -> str:
        """What makes the rest weigh little, as the end of a sentence."""
        return f"beside {self._scores.replace(': ', ' (', 1)})" if self._scores else "while the reward rises"

    @property
    def _scores(self) -> str:
        """Says which scores, or which order of pairs, training has raised; "" where none are known to be."""
        return next((f.message for f in self.fine if f.check in ("heldout_no_gain", "pair_order")), "")

    @cached_property
    def _minor(self) -> tuple[str, ...]:
        """What could not be judged and weighs little: a reward that clearly rises shows a signal and a gradient.

        So do scores that training has raised.
        """
        minor = tuple(aspect for aspect in self._gaps if aspect in HIDDEN)
        if self._scores:
            return minor
        reward = self.run.get("reward")
        if reward is None or self.run.covers(reward) < ENOUGH:
            return ()
        with np.errstate(over="ignore", invalid="ignore"):
            course, rose = measure(reward), direction(reward) > 0
        if course is None:
            return ()
        # Where one thing only is open, a trend above 0 is enough of a rise; else one that is twice its uncertainty.
        change, one_gap = course.change, len(self._gaps) == 1
        rose |= one_gap and learns(self.run) is True
        return minor if rose or change.low > (0.0 if one_gap else (change.high - change.low) / 2.0) else ()

    @cached_property
    def _gaps(self) -> dict[str, str]:
        gaps = {gap.check: gap for gap in self.unknown}
        reasons = {}
        for aspect, title in JUDGED.items():
            checks = [check for check in CHECKS if check.judges == aspect and check.applies(self.run)]
            if any(check.name not in gaps for check in checks):
                continue
            if not checks and self.run.traits.trains_on == "given":
                continue  # given texts have no groups, and no length that the policy chose
            reason = next((gaps[check.name].message for check in checks if check.name in gaps), "no check applies")
            reasons[aspect] = f"{title}: {reason}"
        return reasons | ({"reward": f"{JUDGED['reward']}: {self._doubts[0]}"} if self._doubts else {})

    @property
    def _doubts(self) -> list[str]:
        """What does no harm, and contradicts that the run is healthy."""
        doubting = {(check.name, cause.name) for check in CHECKS for cause in check.causes if cause.doubts}
        return [finding.message for finding in self.findings if (finding.check, finding.cause) in doubting]


def examine(run: Run, checks: Sequence[Check[Run]] = CHECKS) -> Diagnosis:
    """Run the checks that apply to a run, and put causes before consequences."""
    run = without_repeats(run)
    # A diverged run logs 1e300, whose square is infinite: checks compare with that as they should.
    with np.errstate(over="ignore", invalid="ignore"):
        results = [result for check in checks for result in check(run)]
    first, last = run.span
    findings = arrange([result for result in results if result.state == "found"], (last - first) // BLOCKS, BY_NAME)
    return Diagnosis(
        run=run,
        findings=tuple(with_rate(run, finding) for finding in findings),
        unknown=tuple(dict.fromkeys(result for result in results if result.state == "unknown")),
        fine=tuple(result for result in results if result.state == "ok" and not result.evidence),
        uneven=tuple(result for result in results if result.state == "ok" and result.evidence),
    )


Log = PathLike[str] | str | Mapping[str, Any] | Iterable[Mapping[str, Any]]


def diagnose(log: Log | object, settings: object = None, names: Mapping[str, str] | None = None) -> list[Diagnosis]:
    """Read and examine every run of a file or folder, or of rows in memory.

    Args:
        log: The path of a log, of a run, or of a folder of several; a trainer of transformers or TRL; or rows, such as
            ``trainer.state.log_history``: a dict for each step, a dict of columns, or a DataFrame of pandas or polars.
        settings: The trainer's own settings, such as ``trainer.args`` or a dict; those that the log holds count more.
        names: What metrics of names of your own are: ``{"policy_divergence": "kl_ref_k3"}``. The names that they stand
            for are those of docs/metrics.md, with their units, or common ones such as "kl", of no certain unit.

    Raises:
        RunError: There is nothing, or something that cannot be read.
        ConfigError: A name stands for nothing that is known, or is not in the log; or the settings are none.
    """
    rows: Any = getattr(getattr(log, "state", None), "log_history", log)
    if rows is not log and settings is None:
        settings = getattr(log, "args", None)
    diagnoses, unreadable = diagnose_all(rows, settings, names)
    for problem in unreadable.values():
        raise RunError(problem)
    require_named(names or {}, [diagnosis.run for diagnosis in diagnoses])
    return diagnoses


def diagnose_all(
    log: Log, settings: object = None, names: Mapping[str, str] | None = None
) -> tuple[list[Diagnosis], Mapping[str, str]]:
    """Read and examine what can be read of a file or folder; arguments as of ``diagnose``.

    Returns:
        The diagnoses, and why other logs could not be read, by their path; not both empty.

    Raises:
        RunError: There is nothing, or it is a file that cannot be read.
        ConfigError: A name stands for nothing that is known, or the settings are none.
    """
    own_names, own_settings = checked_names(names or {}), settings_of(settings or {})

    def knows(read: RawLog) -> bool:
        return holds_known_metric(replace(read, names=own_names))

    result = search(fspath(log), knows) if isinstance(log, str | PathLike) else search_rows(log, knows)
    logs = (replace(read, settings={**own_settings, **read.settings}, names=own_names) for read in result.logs)
    return [examine(identify(read)) for read in logs], result.unreadable
