"""All checks of a run, and what they say together: ``diagnose`` is the way from a file to a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from steadyrl.doctor.causes import arrange
from steadyrl.doctor.check import Check
from steadyrl.doctor.checks.ending import empty_completions, truncated
from steadyrl.doctor.checks.entropy import entropy_collapse, entropy_explosion, entropy_is_a_sum
from steadyrl.doctor.checks.form import answers_alike
from steadyrl.doctor.checks.gradient import grad_norm
from steadyrl.doctor.checks.hacking import over_training, reward_hacking
from steadyrl.doctor.checks.jump import reward_jump, value_jump
from steadyrl.doctor.checks.kl import kl_runaway, kl_zero
from steadyrl.doctor.checks.kl_control import kl_controller, kl_unit_clash
from steadyrl.doctor.checks.kl_penalty import kl_penalty_off, kl_penalty_outweighs
from steadyrl.doctor.checks.learning_rate import learning_rate_too_high, learning_rate_too_low
from steadyrl.doctor.checks.length import length_collapse, length_explosion, repetition
from steadyrl.doctor.checks.loss import loss_reading
from steadyrl.doctor.checks.negative_kl import negative_kl
from steadyrl.doctor.checks.non_finite import non_finite
from steadyrl.doctor.checks.progress import stalled, throughput_decay
from steadyrl.doctor.checks.ratios import clip_fraction_high, policy_loss_spikes, ratio_off
from steadyrl.doctor.checks.reward import reward_constant, reward_falling, reward_flat
from steadyrl.doctor.checks.reward_scale import reward_noise, reward_scale, reward_unscored
from steadyrl.doctor.checks.sampler import sampler_mismatch, warped_sampling
from steadyrl.doctor.checks.signal import advantage_baseline, no_signal_groups, reward_part_idle
from steadyrl.doctor.checks.values import advantage_off, explained_variance_low, value_loss_spikes
from steadyrl.doctor.names.identify import holds_known_metric, identify
from steadyrl.doctor.readers.search import search
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.repeats import without_repeats
from steadyrl.doctor.statistics.signals import BLOCKS
from steadyrl.errors import RunError
from steadyrl.types import Finding

# Among findings that are equally bad and equally old, what brings others about comes first.
CHECKS: tuple[Check, ...] = (
    warped_sampling, sampler_mismatch, non_finite,
    kl_unit_clash, negative_kl, kl_controller, kl_penalty_off, kl_penalty_outweighs, kl_zero, kl_runaway,
    learning_rate_too_high, learning_rate_too_low, ratio_off, clip_fraction_high, policy_loss_spikes, grad_norm,
    loss_reading,
    value_jump, value_loss_spikes, explained_variance_low, advantage_off,
    entropy_is_a_sum, entropy_collapse, entropy_explosion,
    truncated, empty_completions, length_collapse, length_explosion, repetition, answers_alike,
    reward_constant, reward_unscored, reward_jump, advantage_baseline, no_signal_groups, reward_part_idle, reward_scale,
    reward_flat, reward_falling, reward_hacking, over_training, reward_noise,
    stalled, throughput_decay,
)  # fmt: skip
BY_NAME: Mapping[str, Check] = {check.name: check for check in CHECKS}
TOPICS: Mapping[str, tuple[Check, ...]] = {
    topic: tuple(check for check in CHECKS if check.topic == topic)
    for topic in dict.fromkeys(check.topic for check in CHECKS)
}
Verdict = Literal["healthy", "sick", "too little to judge"]
# What has to be judged before a run is called healthy; of each one check is enough.
JUDGED: Mapping[str, str] = {
    "reward": "the course of the reward",
    "signal": "the learning signal",
    "length": "the length of the answers",
    "gradient": "the gradient",
}


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a run, what is in order, and what could not be told.

    Attributes:
        run: As it was read.
        findings: Each cause directly before what it brings about (see ``causes.tree``), the worst chain first.
        unknown: What could not be judged, in the order of the checks.
        fine: What was judged and is in order, in the order of the checks.
    """

    run: Run
    findings: tuple[Finding, ...]
    unknown: tuple[Finding, ...] = ()
    fine: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Sick if anything harms; healthy only where reward, signal, length and gradient were judged."""
        if any(finding.harms for finding in self.findings):
            return "sick"
        return "too little to judge" if self.missing else "healthy"

    @property
    def healthy(self) -> bool:
        """True if enough was judged and nothing harms; something may be worth knowing."""
        return self.verdict == "healthy"

    @property
    def missing(self) -> tuple[str, ...]:
        """Of each thing that could not be judged and has to be, what it is and what would let it be judged."""
        gaps = {gap.check: gap for gap in self.unknown}
        found = []
        for aspect, what in JUDGED.items():
            checks = [check for check in CHECKS if check.judges == aspect]
            if any(check.name not in gaps and check.applies(self.run) for check in checks):
                continue
            why = next((gaps[check.name].message for check in checks if check.name in gaps), "no check applies")
            found.append(f"{what}: {why.replace('|', ' or ')}")
        return tuple(found)


def examine(run: Run, checks: Sequence[Check] = CHECKS) -> Diagnosis:
    """Run the checks that apply to a run, and put causes before consequences."""
    run = without_repeats(run)
    # A diverged run logs 1e300, whose square is infinite: checks compare with that as they should.
    with np.errstate(over="ignore", invalid="ignore"):
        results = [result for check in checks for result in check(run)]
    first, last = span(run)
    return Diagnosis(
        run=run,
        findings=arrange([result for result in results if result.state == "found"], (last - first) // BLOCKS, BY_NAME),
        unknown=tuple(dict.fromkeys(result for result in results if result.state == "unknown")),
        fine=tuple(result for result in results if result.state == "ok"),
    )


def diagnose(path: Path | str, settings: Mapping[str, Any] | None = None) -> list[Diagnosis]:
    """Read and examine every run of a file or folder.

    Args:
        path: Of a log, a run, or a folder of several.
        settings: The trainer's own settings, nested keys joined with dots; those that the log holds count more.

    Raises:
        RunError: There is nothing, or something that cannot be read.
    """
    diagnoses, unreadable = diagnose_all(path, settings)
    for problem in unreadable.values():
        raise RunError(problem)
    return diagnoses


def diagnose_all(
    path: Path | str, settings: Mapping[str, Any] | None = None
) -> tuple[list[Diagnosis], Mapping[str, str]]:
    """Read and examine what can be read of a file or folder; arguments as of ``diagnose``.

    Returns:
        The diagnoses, and why other logs could not be read, by their path; not both empty.

    Raises:
        RunError: There is nothing, or it is a file that cannot be read.
    """
    found = search(path, holds_known_metric)
    logs = (replace(log, settings={**(settings or {}), **log.settings}) for log in found.logs)
    return [examine(identify(log)) for log in logs], found.unreadable


def span(run: Run) -> tuple[int, int]:
    """Return the first and the last step that anything was logged at; (0, 0) for a run without any."""
    every = [series.steps for several in run.series.values() for series in several if len(series)]
    if not every:
        return 0, 0
    return int(np.min([steps[0] for steps in every])), int(np.max([steps[-1] for steps in every]))
