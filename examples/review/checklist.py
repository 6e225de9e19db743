"""The checklist of a training review, as checks of your own: python examples/review/checklist.py RUN [RUN ...].

The limits (0.06, 0.20, 30 %, 50 minutes) are those of one team's review. They were set for rewards between 0 and 1.
A run needs two epochs or more.
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
from steadyrl.core.metrics import finite_mean
from steadyrl.core.rundir import RunDir
from steadyrl.core.stats import difference_of_means
from steadyrl.core.types import Finding
from steadyrl.doctor.check import Cause, Check, Found, Passed, Result, Unknown, judged
from steadyrl.doctor.examine import diagnose
from steadyrl.doctor.series import Series
from steadyrl.doctor.statistics.signals import BURSTS_FROM, bursts
from steadyrl.loop.preflight.run import finding_lines
from steadyrl.show.review.epochs import Records, epoch_table, split, values_of

SPIKE = 0.30  # of the level before
MOST_VARIANCE, MOST_GAP, MOST_MINUTES = 0.06, 0.20, 50.0
# A policy loss is near 0 and has both signs, so a percentage of it means nothing. The doctor's check of it
# uses the ratios instead. The other parts are never negative.
POSITIVE_PARTS = {"loss_kl": "KL", "loss_nll": "likelihood", "loss_value": "value"}
# The KL is not among them: from 0 at the start it has to grow as the policy learns.
GROWING_PARTS = {"loss": "total", "loss_policy": "policy", "loss_nll": "likelihood", "loss_value": "value"}
SPIKE_CHECKS = ("policy_loss_spikes", "value_loss_spikes")
NOT_MEASURED = "not measured: it needs several scored rollouts of each problem"


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
        points = judged(CHECKS, Review(table, metrics, findings))
        print(path, *finding_lines(points), sep="\n")
        failed = failed or any(point.state == "found" for point in points)
    return int(failed)


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
            level, reached = (finite_mean(side) for side in (first, second))
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
        noisy = "; ".join(text for _, text in grown)
        return Unknown(f"more than {SPIKE:.0%}, but within the noise of its steps: {noisy}")
    return Passed(f"the most is {max(growths)[2]}" if growths else "no part changed")


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


def reward_variance(review: Review) -> Result:
    return _below(review.table["rows"][-1]["variance"], MOST_VARIANCE, "in the last epoch", "spread")


def best_of_n_gap(review: Review) -> Result:
    return _below(review.table["rows"][-1]["gap"], MOST_GAP, "in the last epoch", "gap")


def epoch_minutes(review: Review) -> Result:
    seconds = [row["seconds"] for row in review.table["rows"] if row["seconds"] is not None]
    return _below(max(seconds) / 60 if seconds else None, MOST_MINUTES, "minutes, the slowest", "slow")


def _below(value: float | None, limit: float, what: str, cause: str) -> Result:
    if value is None:
        return Unknown(NOT_MEASURED)
    message = f"{value:.3f} {what}"
    return Passed(message) if value < limit else Found(cause, "warning", message=message)


LOWER = "See what the doctor says of the run, and lower the learning rate."
BACK = "Go back to the best checkpoint, and see what the doctor says of the run."
LONGER = "Train longer. The variance of an all-or-nothing reward is p (1 - p), below 0.06 outside of 6 to 94 % only."
LEFT = "Train longer: what the best of N has above the average is what is left to learn from."
CHECKS: Sequence[Check[Review]] = (
    Check(
        "losses_grow", "Loss", "A part of the loss grows from one epoch to the next.",
        f"No part of the loss but the KL grows by more than {SPIKE:.0%} from one epoch to the next.", losses_grow,
        causes=(Cause("growth", "the interval of the change excludes 0, at 95 % for all comparisons", LOWER),),
    ),
    Check(
        "loss_spikes", "Loss", "A single step's loss spikes out of the usual noise.",
        "No spike is confirmed by a second step or by another metric.", loss_spikes,
        causes=(Cause("spike", "another step or the doctor's own check confirms it", LOWER),),
    ),
    Check(
        "reward_rises", "Reward", "The reward does not rise, or an epoch falls back.",
        "The reward rises, and no epoch falls back.", reward_rises,
        causes=(
            Cause("falls", "the trend of the reward lies below 0", BACK),
            Cause("fell_back", "an epoch earns less than the one before it, by more than noise", BACK),
        ),
    ),
    Check(
        "reward_variance", "Reward", "Answers still earn very different rewards.",
        f"The variance of the reward is below {MOST_VARIANCE} in the last epoch.", reward_variance,
        causes=(Cause("spread", "the variance is not below the limit", LONGER),),
    ),
    Check(
        "best_of_n_gap", "Reward", "The policy does not yet write its best answers by default.",
        f"The best of N answers is less than {MOST_GAP:.2f} above the average in the last epoch.", best_of_n_gap,
        causes=(Cause("gap", "the best of N is further above the average", LEFT),),
    ),
    Check(
        "epoch_minutes", "Cost", "An epoch takes long.",
        f"An epoch takes less than {MOST_MINUTES:.0f} minutes.", epoch_minutes,
        causes=(Cause("slow", "the slowest epoch takes longer", "See time/ in the metrics: what takes longest?"),),
    ),
)  # fmt: skip

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SteadyError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
