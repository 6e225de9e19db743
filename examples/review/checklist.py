"""The checklist of a training review: what passes, what fails, and what cannot be determined.

The limits are those of the review that this project started from (0.06, 0.20, 30 %, 50 minutes). They were set for
the rewards of one system, which lie between 0 and 1. An all-or-nothing reward has a variance of p (1 - p), which is
below 0.06 only for success rates under 6 or over 94 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from steadyrl.core.stats import difference_of_means
from steadyrl.core.types import Finding
from steadyrl.doctor.series import Series
from steadyrl.doctor.statistics.signals import BURSTS_FROM, bursts
from steadyrl.show.review.epochs import Records, mean_of, split, values_of

SPIKE = 0.30  # of the level before
MOST_VARIANCE, MOST_GAP, MOST_MINUTES = 0.06, 0.20, 50.0
# A policy loss is near 0 and has both signs, so a percentage of it means nothing. The doctor's check of it
# uses the ratios instead. The other parts are never negative.
POSITIVE_PARTS = {"loss_kl": "KL", "loss_nll": "likelihood", "loss_value": "value"}
# The KL is not among them: from 0 at the start it has to grow as the policy learns.
GROWING_PARTS = {"loss": "total", "loss_policy": "policy", "loss_nll": "likelihood", "loss_value": "value"}
SPIKE_CHECKS = ("policy_loss_spikes", "value_loss_spikes")
SOURCE = "the review of a code model's training that this project started from"


def checklist(table: Mapping[str, Any], metrics: Records, findings: Sequence[Finding]) -> list[Finding]:
    """Return a finding for each point of the review.

    Args:
        table: See ``epochs.epoch_table``.
        metrics: One record per step.
        findings: What the doctor found in the run.
    """
    last = table["rows"][-1]
    slowest = max((row["seconds"] for row in table["rows"] if row["seconds"] is not None), default=None)
    return [
        _judged(
            f"no part of the loss but the KL grows by more than {SPIKE:.0%} from one epoch to the next",
            *_grows(metrics),
        ),
        _judged("no single step's loss spikes out of the usual noise", *_spikes(metrics, findings)),
        _judged("the reward rises, and no epoch falls back", *_rises(table, metrics)),
        _judged(f"the variance of the reward is below {MOST_VARIANCE}", *_below(last["variance"], MOST_VARIANCE)),
        _judged(f"best of N is less than {MOST_GAP:.2f} above the average", *_below(last["gap"], MOST_GAP)),
        _judged(
            f"an epoch takes less than {MOST_MINUTES:.0f} minutes",
            *_below(None if slowest is None else slowest / 60, MOST_MINUTES, "minutes, the slowest"),
        ),
    ]


def _judged(name: str, passed: bool | None, measured: str) -> Finding:
    if passed is None:
        return Finding(name, state="unknown", message=measured)
    if passed:
        return Finding(name, state="ok", message=measured)
    return Finding(name, "warning", message=measured, source=SOURCE)


def _below(value: float | None, limit: float, what: str = "in the last epoch") -> tuple[bool | None, str]:
    if value is None:
        return None, "not measured: it needs several scored rollouts of each problem"
    return value < limit, f"{value:.3f} {what}"


def _grows(metrics: Records) -> tuple[bool | None, str]:
    """Compare the magnitudes of the parts' means in neighbouring epochs: a policy loss from -0.09 to -0.14 has grown.

    Near 0 a mean doubles by noise alone. A growth fails only if the interval of the change excludes 0, at 95 % for all
    comparisons together, and without that it is unknown.
    """
    epochs = split(metrics) or []
    parts = {c: word for c, word in GROWING_PARTS.items() if np.isfinite(values_of(metrics, c)).any()}
    if not parts:
        return None, "no loss was logged"
    confidence = 1.0 - 0.05 / max(1, (len(epochs) - 1) * len(parts))
    growths: list[tuple[float, bool, str]] = []
    for column, word in parts.items():
        for (_, before), (name, after) in pairwise(epochs):
            first, second = (values_of(records, column) for records in (before, after))
            level, reached = (mean_of(side) for side in (first, second))
            if level is None or reached is None or reached == level:
                continue
            growth = abs(reached / level) - 1.0 if level else math.inf
            change = difference_of_means(first, second, confidence)
            certain = change is not None and not change[1] <= 0 <= change[2]
            growths.append((growth, certain, f"{word} {level:.3g} → {reached:.3g} in epoch {name} ({growth:+.0%})"))
    grown = [(certain, text) for growth, certain, text in growths if growth > SPIKE]
    if beyond := [text for certain, text in grown if certain]:
        return False, "; ".join(beyond)
    if grown:
        return None, f"more than that, but within the noise of its steps: {'; '.join(text for _, text in grown)}"
    return True, f"the most is {max(growths)[2]}" if growths else "no part changed"


def _spikes(metrics: Records, findings: Sequence[Finding]) -> tuple[bool | None, str]:
    """Compare single steps with the steps before, as the doctor does: the mean of an epoch may hide a spike."""
    spikes = [f"{finding.check} since step {finding.since_step}" for finding in findings if _is_spike(finding)]
    spikes += list(_bursts(metrics))
    if spikes:
        return False, "; ".join(spikes)
    if len(metrics) <= BURSTS_FROM:
        return None, f"{len(metrics)} steps are too few to know the usual level; it needs {BURSTS_FROM + 1}"
    return True, "no spike is confirmed by a second step or by another metric"


def _is_spike(finding: Finding) -> bool:
    return finding.check in SPIKE_CHECKS and finding.severity in ("warning", "critical")


def _bursts(metrics: Records) -> Iterator[str]:
    steps = np.array([record["step"] for record in metrics])
    for column, word in POSITIVE_PARTS.items():
        values = values_of(metrics, column)
        finite = np.isfinite(values)
        burst_indices = bursts(Series(column, "", "", column, steps[finite], values[finite]), 1.0 + SPIKE)
        if len(burst_indices):
            named = ", ".join(str(step) for step in steps[finite][burst_indices][:5])
            yield f"the {word} part at step {named}{' ...' if len(burst_indices) > 5 else ''}"


def _rises(table: Mapping[str, Any], metrics: Records) -> tuple[bool | None, str]:
    trend = table["trends"]["reward"]
    if trend is None:
        return None, "too few steps for a trend"
    slope = f"{trend[0]:+.4f} per epoch, 95 % interval [{trend[1]:.4f}, {trend[2]:.4f}]"
    if fallen := _fallen_back(metrics):
        return False, f"{slope}; epoch {', '.join(fallen)} is below the previous one by more than noise"
    if trend[1] <= 0 <= trend[2]:
        return None, slope
    return trend[1] > 0, slope


def _fallen_back(metrics: Records) -> list[str]:
    """Return the epochs with less reward than the previous one, by more than noise gives in one of twenty runs."""
    parts = split(metrics) or []
    # There is a comparison per pair of neighbours. Each needs a higher confidence, so that all together keep 95 %.
    confidence = 1.0 - 0.05 / max(1, len(parts) - 1)
    fallen = []
    for (_, before), (name, after) in pairwise(parts):
        change = difference_of_means(values_of(before, "reward"), values_of(after, "reward"), confidence)
        if change is not None and change[2] < 0:
            fallen.append(name)
    return fallen
