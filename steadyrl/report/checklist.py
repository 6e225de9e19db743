"""The checklist of a training review: what passes, what fails, and what cannot be determined.

The limits are those of the review that this project started from (0.06, 0.20, 30 %, 50 minutes). They were set for
the rewards of one system, which lie between 0 and 1. An all-or-nothing reward has a variance of p (1 - p), which is
below 0.06 only for success rates under 6 or over 94 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from steadyrl.doctor.examine import diagnose
from steadyrl.doctor.series import Series
from steadyrl.doctor.statistics.signals import BURSTS_FROM, bursts
from steadyrl.report.epochs import Records, epoch_table, split, values_of
from steadyrl.stats import difference_of_means
from steadyrl.types import Finding

SPIKE = 0.30  # of the usual level
MOST_VARIANCE, MOST_GAP, MOST_MINUTES = 0.06, 0.20, 50.0
# A policy loss is near 0 and has both signs, so a percentage of it means nothing. The doctor's check of it
# uses the ratios instead. The other parts are never negative.
POSITIVE_PARTS = {"loss_kl": "KL", "loss_nll": "likelihood", "loss_value": "value"}
SPIKE_CHECKS = ("policy_loss_spikes", "value_loss_spikes")

Word = Literal["pass", "fail", "cannot tell"]


def checklist(table: Mapping[str, Any], metrics: Records, findings: Sequence[Finding]) -> list[dict[str, str]]:
    """Return the points of the review: "name", "word" ("pass", "fail" or "cannot tell") and "measured" each.

    Args:
        table: See ``epochs.epoch_table``.
        metrics: One record per step.
        findings: What the doctor found in the run.
    """
    last = table["rows"][-1]
    slowest = max((row["seconds"] for row in table["rows"] if row["seconds"] is not None), default=None)
    return [
        _point(f"no part of the loss spikes by more than {SPIKE:.0%}", *_spikes(metrics, findings)),
        _point("the reward rises, and no epoch falls back", *_rises(table, metrics)),
        _point(f"the variance of the reward is below {MOST_VARIANCE}", *_below(last["variance"], MOST_VARIANCE)),
        _point(f"best of N is less than {MOST_GAP:.2f} above the average", *_below(last["gap"], MOST_GAP)),
        _point(
            f"an epoch takes less than {MOST_MINUTES:.0f} minutes",
            *_below(None if slowest is None else slowest / 60, MOST_MINUTES, "minutes, the slowest"),
        ),
    ]


def epochs_with_checklist(path: Path | str, metrics: Records) -> dict[str, Any] | None:
    """Return the epoch table of a run with its checklist, or None if it has none. The doctor examines the run again.

    Args:
        path: The run directory.
        metrics: Its records, one per step.
    """
    if split(metrics) is None:
        return None
    findings = [finding for diagnosis in diagnose(path) for finding in diagnosis.findings]
    table = epoch_table(metrics, findings)
    assert table is not None, "a run that can be split has a table"
    return {**table, "checklist": checklist(table, metrics, findings)}


def _point(name: str, word: Word, measured: str) -> dict[str, str]:
    return {"name": name, "word": word, "measured": measured}


def _below(value: float | None, limit: float, what: str = "in the last epoch") -> tuple[Word, str]:
    if value is None:
        return "cannot tell", "not measured: it needs several scored rollouts of each problem"
    return ("pass" if value < limit else "fail"), f"{value:.3f} {what}"


def _spikes(metrics: Records, findings: Sequence[Finding]) -> tuple[Word, str]:
    """Compare single steps with the steps before, as the doctor does. Means of epochs would hide and invent spikes."""
    seen = [f"{finding.check} since step {finding.since_step}" for finding in findings if _is_spike(finding)]
    seen += list(_bursts(metrics))
    if seen:
        return "fail", "; ".join(seen)
    if len(metrics) <= BURSTS_FROM:
        return "cannot tell", f"{len(metrics)} steps are too few to know the usual level; it needs {BURSTS_FROM + 1}"
    return "pass", "no spike is confirmed by a second step or by another metric"


def _is_spike(finding: Finding) -> bool:
    return finding.check in SPIKE_CHECKS and finding.severity in ("warning", "critical")


def _bursts(metrics: Records) -> Iterator[str]:
    steps = np.array([record["step"] for record in metrics])
    for column, word in POSITIVE_PARTS.items():
        values = values_of(metrics, column)
        known = np.isfinite(values)
        found = bursts(Series(column, "", "", column, steps[known], values[known]), 1.0 + SPIKE)
        if len(found):
            named = ", ".join(str(step) for step in steps[known][found][:5])
            yield f"the {word} part at step {named}{' ...' if len(found) > 5 else ''}"


def _rises(table: Mapping[str, Any], metrics: Records) -> tuple[Word, str]:
    trend = table["trends"]["reward"]
    if trend is None:
        return "cannot tell", "too few steps for a trend"
    seen = f"{trend[0]:+.4f} per epoch, 95 % interval [{trend[1]:.4f}, {trend[2]:.4f}]"
    if fallen := _fallen_back(metrics):
        return "fail", f"{seen}; epoch {', '.join(fallen)} is below the previous one by more than noise"
    if trend[1] <= 0 <= trend[2]:
        return "cannot tell", seen
    return ("pass" if trend[1] > 0 else "fail"), seen


def _fallen_back(metrics: Records) -> list[str]:
    """Return the epochs with less reward than the previous one, by more than noise gives in one of twenty runs."""
    parts = split(metrics) or []
    # There is a comparison per pair of neighbours. Each needs a higher confidence, so that all together keep 95 %.
    confidence = 1.0 - 0.05 / max(1, len(parts) - 1)
    found = []
    for (_, before), (name, after) in pairwise(parts):
        change = difference_of_means(values_of(before, "reward"), values_of(after, "reward"), confidence)
        if change is not None and change[2] < 0:
            found.append(name)
    return found
