"""All checks of a run, and what they say together: ``diagnose`` is the way from a file to a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.doctor.causes import arrange
from steadyrl.doctor.check import Check, Unclear
from steadyrl.doctor.checks.entropy import entropy_collapse, entropy_explosion, entropy_is_a_sum
from steadyrl.doctor.checks.gradient import grad_norm
from steadyrl.doctor.checks.hacking import over_training, reward_hacking
from steadyrl.doctor.checks.jump import reward_jump, value_jump
from steadyrl.doctor.checks.kl import kl_runaway, kl_zero
from steadyrl.doctor.checks.kl_control import kl_controller, kl_unit_clash
from steadyrl.doctor.checks.kl_penalty import kl_penalty_off
from steadyrl.doctor.checks.learning_rate import learning_rate_too_high, learning_rate_too_low
from steadyrl.doctor.checks.length import (
    empty_completions,
    length_collapse,
    length_explosion,
    repetition,
    truncated,
)
from steadyrl.doctor.checks.loss import loss_reading
from steadyrl.doctor.checks.negative_kl import negative_kl
from steadyrl.doctor.checks.non_finite import non_finite
from steadyrl.doctor.checks.progress import stalled, throughput_decay
from steadyrl.doctor.checks.ratios import clip_fraction_high, policy_loss_spikes, ratio_off
from steadyrl.doctor.checks.reward import reward_constant, reward_falling, reward_flat
from steadyrl.doctor.checks.reward_signal import no_signal_groups, reward_noise, reward_scale, reward_unscored
from steadyrl.doctor.checks.sampler import sampler_mismatch, warped_sampling
from steadyrl.doctor.checks.values import GROUPED, advantage_off, explained_variance_low, value_loss_spikes
from steadyrl.doctor.names.identify import holds_known_metric, identify
from steadyrl.doctor.readers.search import search
from steadyrl.doctor.series import Run
from steadyrl.doctor.signals import BLOCKS
from steadyrl.errors import RunError
from steadyrl.types import Finding

# By what a report has a section about; in each, what brings others about comes first.
TOPICS: Mapping[str, tuple[Check, ...]] = {
    "Sampling and numbers": (warped_sampling, sampler_mismatch, non_finite),
    "KL": (kl_unit_clash, negative_kl, kl_controller, kl_penalty_off, kl_zero, kl_runaway),
    "Policy": (
        learning_rate_too_high,
        learning_rate_too_low,
        ratio_off,
        clip_fraction_high,
        policy_loss_spikes,
        grad_norm,
        loss_reading,
    ),
    "Value": (value_jump, value_loss_spikes, explained_variance_low, advantage_off),
    "Entropy": (entropy_is_a_sum, entropy_collapse, entropy_explosion),
    "Reward": (
        reward_constant,
        reward_unscored,
        reward_jump,
        no_signal_groups,
        reward_scale,
        reward_flat,
        reward_falling,
        reward_hacking,
        over_training,
        reward_noise,
    ),
    "Length and text": (length_collapse, length_explosion, truncated, empty_completions, repetition),
    "Speed": (stalled, throughput_decay),
}
CHECKS: tuple[Check, ...] = tuple(check for checks in TOPICS.values() for check in checks)
RANKS = {check.name: rank for rank, check in enumerate(CHECKS)}
_VALUES = (value_jump, value_loss_spikes, explained_variance_low)
# By algorithm. What does not apply says nothing: a run without a value head lacks no value loss in its log.
WITHOUT: Mapping[str, tuple[Check, ...]] = {
    **dict.fromkeys((*GROUPED, "rlaif", "rwr"), _VALUES),
    "ppo": (no_signal_groups,),
    # Of what was sampled only the best is in the batch, and that is likelier than the rest.
    "raft": (*_VALUES, warped_sampling),
    # Nothing was sampled: texts and rewards are those of good answers, and the policy is to become sure of them.
    "sft": (*_VALUES, *TOPICS["Reward"], warped_sampling, sampler_mismatch, advantage_off, entropy_collapse),
}


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a run, and what could not be told.

    Attributes:
        run: As it was read.
        findings: Each cause directly before what it brings about (see ``causes.tree``), the worst chain first.
        unclear: In the order of the checks.
    """

    run: Run
    findings: tuple[Finding, ...]
    unclear: tuple[Unclear, ...]

    @property
    def healthy(self) -> bool:
        """True if nothing harms; something may be worth knowing, or may not be told."""
        return all(finding.severity == "info" for finding in self.findings)


def examine(run: Run, checks: Sequence[Check] = CHECKS) -> Diagnosis:
    """Run the checks that apply to a run, and put causes before consequences."""
    # A diverged run logs 1e300, whose square is infinite: checks compare with that as they should.
    with np.errstate(over="ignore", invalid="ignore"):
        results = [result for check in checks if applies(check, run) for result in check(run)]
    findings = [result for result in results if isinstance(result, Finding)]
    first, last = span(run)
    return Diagnosis(
        run=run,
        findings=arrange(findings, tolerance=(last - first) // BLOCKS, ranks=RANKS),
        unclear=tuple(dict.fromkeys(result for result in results if isinstance(result, Unclear))),
    )


def applies(check: Check, run: Run) -> bool:
    """Return False where an algorithm has nothing that a check could be about."""
    return check not in WITHOUT.get(run.algorithm, ())


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
