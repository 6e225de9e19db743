"""Reward against what it stands for: held-out measurements and other parts that fall while the reward rises."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from steadyrl.doctor.check import Result, Unclear, check
from steadyrl.doctor.checks.measures import setting
from steadyrl.doctor.checks.readings import number, within
from steadyrl.doctor.levels import Levels, measure
from steadyrl.doctor.series import Run, Series
from steadyrl.types import Finding

# Held-out measurements of which more is not better, or that are no goal.
NO_GOAL = (
    "length", "size", "truncated", "empty", "time", "kl", "entropy", "loss", "tokens", "repetition", "unscored", "std",
)  # fmt: skip
TOTALS = ("reward", "reward/mean", "total")  # the reward as a whole, on held-out problems
LOST_SHARE = 0.25  # of what held-out problems had gained, that has to be lost again
FEWEST = 6  # evaluations


@check(needs=("reward",))
def reward_hacking(run: Run) -> Result | list[Result]:
    """Trained reward rises while a held-out measurement, or another part of it, falls.

    Symptom: the training reward ends clearly above its start and a measurement on held-out problems ends clearly below
    its own start. The policy got better at the reward and worse at the task.

    Causes and what tells them apart:
    - held_out_falls: the reward differs from the held-out measurement in something the policy has found: a judge that
      likes a phrase, a rule with a gap, or problems known by heart. Critical: every further step makes it worse.
    - part_falls: one part of the reward falls while the sum rises: parts compete. Told where the part falls in training
      as well, or the held-out reward as a whole rises, or nothing is held out: what is rewarded is then not the gap.
      Worth knowing; which of the parts counts is yours to say.

    Without held-out measurements and without parts this cannot be told: a reward curve alone never shows it.

    Remedy: read the completions with the highest rewards; close the gap in the reward, or weigh the part that falls
    higher; keep the checkpoint with the best held-out measurement; a larger KL coefficient slows it down.

    Source: Secrets of RLHF I (arXiv 2307.04964, abstract): the reward curve misleads; noise of block means as in
    docs/doctor/statistics.md.
    """
    reward, heldout, parts = run.get("reward"), _goals(run, "heldout/"), _goals(run, "reward_part/")
    assert reward is not None, "a need"
    if not heldout and len(parts) < 2:
        return Unclear(
            "reward_hacking",
            "only the trained reward is logged, which rises in a hacked run as well",
            ("heldout/*", "reward_part/*"),
        )
    rewards = measure(reward)
    if rewards is None or not rewards.rose:
        return None
    found: list[Result] = []
    for name, series in heldout.items():
        levels = measure(series)
        if levels is not None and levels.fell:
            gap = not _is_traded(name, heldout, parts)
            found.append(_hacked(run, f"heldout/{name}", levels, rewards, critical=gap))
    if found or heldout:
        return found
    for name, series in parts.items():
        levels = measure(series)
        if levels is not None and levels.fell:
            found.append(_hacked(run, name, levels, rewards, critical=False))
    return found


def _is_traded(name: str, heldout: Mapping[str, Series], parts: Mapping[str, Series]) -> bool:
    """Return True if a measurement is one that the reward itself gives away for others, in training as on the rest."""
    same, whole = parts.get(name), next((heldout[total] for total in TOTALS if total in heldout), None)
    levels, total = (None if series is None else measure(series) for series in (same, whole))
    if name not in TOTALS and total is not None and total.end > total.first:
        return True
    return levels is not None and levels.fell


def _goals(run: Run, family: str) -> dict[str, Series]:
    """Return the measurements of a family of which more is better."""
    every = run.parts(family)
    return {name: series for name, series in every.items() if not any(word in name.lower() for word in NO_GOAL)}


def _hacked(run: Run, name: str, levels: Levels, rewards: Levels, critical: bool) -> Finding:
    coefficient = setting(run, "kl_coef")
    more = (f"algorithm.args.kl_coef={2 * coefficient:.3g}",) if coefficient else ()
    return Finding(
        check="reward_hacking",
        severity="critical" if critical else "info",
        since_step=_leaves_start(levels),
        cause="held_out_falls" if critical else "part_falls",
        message=f"the reward rises from {number(rewards.first)} to {number(max(rewards.end, rewards.late))} while "
        f"{name} falls from {number(levels.first)} to {number(levels.end)}",
        evidence=(
            f"{name}: noise explains a difference of {number(levels.least)} between blocks, it fell by "
            f"{number(levels.first - levels.end)}",
            f"reward: noise explains {number(rewards.least)}",
        ),
        remedy="Read the completions with the highest rewards and close the gap in the reward; keep the checkpoint "
        "with the best held-out measurement."
        if critical
        else f"Give '{name}' more weight if it counts; hold out problems and measure what you want.",
        overrides=more if critical else ("evaluate.every=50",),
        source="Secrets of RLHF I, arXiv 2307.04964 (abstract)",
    )


def _leaves_start(levels: Levels) -> int:
    """Return the first step of the blocks that stay clearly below the first one."""
    low = levels.first - levels.means > levels.least
    above = np.flatnonzero(~low)
    return int(levels.steps[min(int(above[-1]) + 1, len(low) - 1)])


@check(needs=("reward",))
def over_training(run: Run) -> Result | list[Result]:
    """Held-out measurement passed its peak while the training reward went on rising.

    Symptom: a measurement on held-out problems rose, was best in the middle of the run, and lost at least a quarter
    of that gain again, beyond its noise; the training reward did not fall in the same time.

    Causes and what tells them apart:
    - past_peak: the policy fits the training problems or the reward's gaps more than the task. If the training reward
      fell too, the run broke for another reason and reward_falling says so.

    Remedy: use the checkpoint at the peak; plan so many steps, or more and other problems.

    Source: steadyrl's own rule; noise of block means as in docs/doctor/statistics.md.
    """
    heldout, reward = _goals(run, "heldout/"), run.get("reward")
    assert reward is not None, "a need"
    if not heldout:
        return Unclear("over_training", "nothing is measured on held-out problems", ("heldout/*",))
    if max(len(series) for series in heldout.values()) < FEWEST:
        return Unclear("over_training", f"fewer than {FEWEST} held-out evaluations show no peak", ("heldout/*",))
    return [_past_peak(name, series, reward) for name, series in heldout.items()]


def _past_peak(name: str, series: Series, reward: Series) -> Finding | None:
    levels = measure(series)
    if levels is None:
        return None
    top = int(levels.means.argmax())
    best, gain = float(levels.means[top]), float(levels.means[top]) - levels.first
    lost = best - levels.end
    if top == 0 or gain <= levels.least or lost <= max(levels.least, LOST_SHARE * gain):
        return None
    since = int(levels.steps[top])
    rewards = measure(within(reward, since, int(reward.steps[-1])))
    if rewards is None or rewards.fell:
        return None
    return Finding(
        check="over_training",
        severity="warning",
        since_step=since,
        cause="past_peak",
        message=f"heldout/{name} was best from step {since} ({number(best)}) and fell to {number(levels.end)}, while "
        "the training reward did not fall",
        evidence=(
            f"heldout/{name}: {number(levels.first)} at first, {number(best)} at its best, {number(levels.end)} at the "
            f"end; noise explains {number(levels.least)}",
        ),
        remedy=f"Use the checkpoint nearest to step {since}, and plan about so many steps.",
        overrides=(f"run.steps={max(since, 1)}",),
        source="docs/doctor/statistics.md",
    )
