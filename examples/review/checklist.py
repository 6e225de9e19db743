"""The checklist of a training review, as checks of your own: python examples/review/checklist.py RUN [RUN ...].

The limits (0.06, 0.20, 30 %, 50 minutes) are those of one team's review. They were set for rewards between 0 and 1.
Change them here; what each point means stands in checklist.toml. A run needs two epochs or more.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core.errors import SteadyError
from steadyrl.core.rundir import RunDir
from steadyrl.core.stats import difference_of_means
from steadyrl.core.types import Finding
from steadyrl.doctor.check import Check, Found, Passed, Registry, Result, Unknown
from steadyrl.doctor.examine import diagnose
from steadyrl.doctor.series import Series
from steadyrl.doctor.statistics.signals import BURSTS_FROM, bursts
from steadyrl.loop.preflight.run import finding_lines
from steadyrl.show.review.epochs import Records, epoch_table, mean_of, split, values_of

SPIKE = 0.30  # of the level before
MOST_VARIANCE, MOST_GAP, MOST_MINUTES = 0.06, 0.20, 50.0
# A policy loss is near 0 and has both signs, so a percentage of it means nothing. The doctor's check of it
# uses the ratios instead. The other parts are never negative.
POSITIVE_PARTS = {"loss_kl": "KL", "loss_nll": "likelihood", "loss_value": "value"}
# The KL is not among them: from 0 at the start it has to grow as the policy learns.
GROWING_PARTS = {"loss": "total", "loss_policy": "policy", "loss_nll": "likelihood", "loss_value": "value"}
SPIKE_CHECKS = ("policy_loss_spikes", "value_loss_spikes")
NOT_MEASURED = "not measured: it needs several scored rollouts of each problem"
check = Registry.read(Path(__file__).with_suffix(".toml")).check


@dataclass(frozen=True)
class Review:
    """What is reviewed.

    Attributes:
        table: See ``epochs.epoch_table``.
        metrics: One record per step.
        findings: What the doctor found in the run.
    """

    table: Mapping[str, Any]
    metrics: Records
    findings: Sequence[Finding]


def main(paths: Sequence[str]) -> int:
    """Print the points of each run; return 1 if one fails."""
    if not paths:
        raise SteadyError("no run is named; expected: python examples/review/checklist.py RUN [RUN ...]")
    failed = False
    for path in paths:
        metrics = RunDir(Path(path)).metrics()
        findings = diagnose(path)[0].findings
        table = epoch_table(metrics, findings)
        if table is None:
            raise SteadyError(f"'{path}' has fewer than two epochs; set run.epochs, or review a longer run")
        points = checklist(Review(table, metrics, findings))
        print(path, *finding_lines(points), sep="\n")
        failed = failed or any(point.state == "found" for point in points)
    return int(failed)


def checklist(review: Review) -> list[Finding]:
    """Return a finding for each point of the review."""
    return [finding for look in CHECKS for finding in look(review)]


@check("losses_grow")
def losses_grow(review: Review) -> Result:
    """Compare the magnitudes of the parts' means in neighbouring epochs: a policy loss from -0.09 to -0.14 has grown.

    Near 0 a mean doubles by noise alone. A growth fails only if the interval of the change excludes 0, at 95 % for all
    comparisons together, and without that it is unknown.
    """
    metrics = review.metrics
    epochs = split(metrics) or []
    parts = {c: word for c, word in GROWING_PARTS.items() if np.isfinite(values_of(metrics, c)).any()}
    if not parts:
        return Unknown("no loss was logged")
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
        return Found("growth", "warning", message="; ".join(beyond))
    if grown:
        return Unknown(f"more than that, but within the noise of its steps: {'; '.join(text for _, text in grown)}")
    return Passed(f"the most is {max(growths)[2]}" if growths else "no part changed")


@check("loss_spikes")
def loss_spikes(review: Review) -> Result:
    """Compare single steps with the steps before, as the doctor does: the mean of an epoch may hide a spike."""
    spikes = [f"{finding.check} since step {finding.since_step}" for finding in review.findings if _is_spike(finding)]
    spikes += list(_bursts(review.metrics))
    if spikes:
        return Found("spike", "warning", message="; ".join(spikes))
    if (steps := len(review.metrics)) <= BURSTS_FROM:
        return Unknown(f"{steps} steps are too few to know the usual level; it needs {BURSTS_FROM + 1}")
    return None


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


@check("reward_rises")
def reward_rises(review: Review) -> Result:
    trend = review.table["trends"]["reward"]
    if trend is None:
        return Unknown("too few steps for a trend")
    slope = f"{trend[0]:+.4f} per epoch, 95 % interval [{trend[1]:.4f}, {trend[2]:.4f}]"
    if fallen := _fallen_back(review.metrics):
        message = f"{slope}; epoch {', '.join(fallen)} is below the previous one by more than noise"
        return Found("fell_back", "warning", message=message)
    if trend[1] <= 0 <= trend[2]:
        return Unknown(slope)
    return Passed(slope) if trend[1] > 0 else Found("falls", "warning", message=slope)


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


@check("reward_variance")
def reward_variance(review: Review) -> Result:
    return _below(review.table["rows"][-1]["variance"], MOST_VARIANCE, "in the last epoch", "spread")


@check("best_of_n_gap")
def best_of_n_gap(review: Review) -> Result:
    return _below(review.table["rows"][-1]["gap"], MOST_GAP, "in the last epoch", "gap")


@check("epoch_minutes")
def epoch_minutes(review: Review) -> Result:
    seconds = [row["seconds"] for row in review.table["rows"] if row["seconds"] is not None]
    return _below(max(seconds) / 60 if seconds else None, MOST_MINUTES, "minutes, the slowest", "slow")


def _below(value: float | None, limit: float, what: str, cause: str) -> Result:
    if value is None:
        return Unknown(NOT_MEASURED)
    message = f"{value:.3f} {what}"
    return Passed(message) if value < limit else Found(cause, "warning", message=message)


CHECKS: Sequence[Check[Review]] = (
    losses_grow, loss_spikes, reward_rises, reward_variance, best_of_n_gap, epoch_minutes,
)  # fmt: skip

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SteadyError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
