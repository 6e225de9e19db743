"""What the runs of a study answer: each expectation judged, each arm with a verdict, the doctor's causes and a status.

Everything is computed from the run directories, so the same runs give the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Finding
from steadyrl.doctor.causes import tree
from steadyrl.doctor.examine import diagnose
from steadyrl.lab.jobs import find_run
from steadyrl.lab.measure import ended_by, measure
from steadyrl.lab.seeds import Difference, Word, difference, difference_of_pairs, interquartile_mean, judge
from steadyrl.lab.study.file import ABSOLUTE, Expect, Rule, Take
from steadyrl.lab.study.plan import Arm, Study, job_of
from steadyrl.lab.study.study import DONE, state_of

Verdict = Word | Literal["not asked"]
LEAST_RUN = 6  # steps that a doctor can examine


@dataclass(frozen=True)
class SeedRun:
    """One run of an arm."""

    seed: int
    run: RunDir
    state: str  # see ``state_of``
    steps: int  # made so far
    ended: str  # why a rule ended it; "" where none did
    error: str  # what ended it; "" where nothing did
    records: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Judged:
    """An expectation and its answer."""

    expect: Expect
    metric: str
    than: str  # the experiment that it was compared with; "" for a number
    word: Word
    values: tuple[float, ...]  # one number per run, in the order of the runs
    than_values: tuple[float, ...]  # of the other arm, likewise
    change: Difference | None  # the difference; None for a comparison with a number, or where nothing was measured


@dataclass(frozen=True)
class Cause:
    """A root cause that the doctor names."""

    finding: Finding  # of the first run that has it
    seeds: int  # how many runs have it


@dataclass(frozen=True)
class ArmResult:
    """What became of an arm."""

    arm: Arm
    runs: tuple[SeedRun, ...]
    judged: tuple[Judged, ...]
    causes: tuple[Cause, ...]

    @property
    def word(self) -> Verdict:
        """Return the verdict of its expectations."""
        return combined(self.judged)


@dataclass(frozen=True)
class Claim:
    """An earlier conclusion, and the expectations that decide it."""

    text: str
    judgements: tuple[tuple[str, Judged], ...]  # with the name of the experiment, in the order of the file

    @property
    def verdict(self) -> str:
        """Return the verdict of its expectations, by experiment where the experiments differ.

        A conclusion about a founding rate is not refuted by an experiment at another rate.
        """
        by_arm: dict[str, list[Judged]] = {}
        for name, judged in self.judgements:
            by_arm.setdefault(name, []).append(judged)
        by_word: dict[Verdict, list[str]] = {}
        for name, expectations in by_arm.items():
            by_word.setdefault(combined(expectations), []).append(name)
        if len(by_word) == 1:
            return next(iter(by_word))
        return "; ".join(f"{word} in {', '.join(names)}" for word, names in by_word.items())


def combined(judged: Sequence[Judged]) -> Verdict:
    """Return the verdict of several expectations: refuted if one of them is, supported if all are."""
    words = {judgement.word for judgement in judged}
    if not words:
        return "not asked"
    if "refuted" in words:
        return "refuted"
    return "supported" if words == {"supported"} else "undecided"


def claims(results: Sequence[ArmResult]) -> list[Claim]:
    """Return the earlier conclusions that expectations name, each once, in the order of the file."""
    by_claim: dict[str, list[tuple[str, Judged]]] = {}
    for result in results:
        for judged in result.judged:
            if judged.expect.claim:
                by_claim.setdefault(judged.expect.claim, []).append((result.arm.name, judged))
    return [Claim(text, tuple(judgements)) for text, judgements in by_claim.items()]


def arm_results(study: Study, folder: Path) -> list[ArmResult]:
    """Return what became of every arm, in the order of the file."""
    runs: dict[str, list[SeedRun]] = {arm.name: [] for arm in study.arms}
    for arm in study.arms:
        for seed in study.seeds:
            if (run := find_run(folder, job_of(study, arm, seed))) is None:
                continue
            records = run.metrics()
            ended = ended_by(study.file.stop, records)
            ended_text = f"after step {ended[0]}: {ended[1].why}" if ended else ""
            state, error = state_of(run, study.file.stop), str(run.info().get("error") or "")
            runs[arm.name].append(SeedRun(seed, run, state, len(records), ended_text, error, records))
    return [
        ArmResult(
            arm,
            tuple(runs[arm.name]),
            tuple(_judge(study, arm, expect, runs) for expect in arm.experiment.expect),
            _causes(runs[arm.name]),
        )
        for arm in study.arms
    ]


def values_of(runs: Sequence[SeedRun], metric: str, take: Take, rule: Rule) -> tuple[float, ...]:
    """Return the number of each run that has one."""
    values = (measure(seed_run.run, seed_run.records, metric, take, rule) for seed_run in runs)
    return tuple(value for value in values if value is not None)


def meets(expect: Expect, value: float) -> bool:
    """Return whether a run's number meets the bound of an expectation."""
    assert expect.value is not None, "the file was checked"
    return value >= expect.value if expect.be == "at least" else value <= expect.value


def seed_mean(values: Sequence[float]) -> float | None:
    """Return the interquartile mean over seeds, or None without any."""
    return float(interquartile_mean(values)) if values else None


def _judge(study: Study, arm: Arm, expect: Expect, runs: Mapping[str, Sequence[SeedRun]]) -> Judged:
    rule, metric = study.file.rule, expect.metric or study.file.metric
    # A run that was cut has no end yet.
    done_runs = [seed_run for seed_run in runs[arm.name] if seed_run.state in (*DONE, "failed")]
    values = values_of(done_runs, metric, expect.take, rule)
    if expect.be in ABSOLUTE:
        met = [meets(expect, value) for value in values]
        word: Word = "undecided"  # seeds disagree, or a seed without a number may yet do so
        if len(met) == len(study.seeds) and len(set(met)) == 1:
            word = "supported" if met[0] else "refuted"
        return Judged(expect, metric, "", word, values, (), None)
    than = expect.than or arm.experiment.base
    than_runs = [seed_run for seed_run in runs[than] if seed_run.state in (*DONE, "failed")]
    than_values = values_of(than_runs, metric, expect.take, rule)
    # All runs of both were measured and have the same seeds: the n-th value of one and of the other are a pair.
    seeds = [seed_run.seed for seed_run in done_runs]
    pairs = seeds == [seed_run.seed for seed_run in than_runs] and len(seeds) == len(values) == len(than_values)
    change = (difference_of_pairs if pairs else difference)(than_values, values, rule.confidence)
    judged = "undecided" if change is None else judge(change, expect.be, expect.margin)
    return Judged(expect, metric, than, judged, values, than_values, change)


def _causes(runs: Sequence[SeedRun]) -> tuple[Cause, ...]:
    """Return the doctor's root causes over all runs of an arm, the most frequent first."""
    by_check: dict[str, list[Finding]] = {}
    for seed_run in runs:
        for diagnosis in diagnose(seed_run.run.path) if seed_run.steps >= LEAST_RUN else ():
            for placed in tree(diagnosis.findings):
                if placed.depth == 0 and placed.finding.harms:
                    by_check.setdefault(placed.finding.check, []).append(placed.finding)
    return tuple(Cause(same[0], len(same)) for same in sorted(by_check.values(), key=len, reverse=True))
