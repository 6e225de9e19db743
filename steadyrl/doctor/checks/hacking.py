"""Reward against what it stands for: held-out measurements and other parts that fall while the reward rises."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from steadyrl.doctor.check import Cause, Check, Found, Result, Unknown
from steadyrl.doctor.checks.reward import learning_reward
from steadyrl.doctor.remedies import times
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.readings import number, within

# Held-out measurements of which more is not better, or that are no goal.
NO_GOAL = (
    "length", "size", "truncated", "empty", "time", "kl", "entropy", "loss", "tokens", "repetition", "unscored", "std",
)  # fmt: skip
TOTALS = ("reward", "reward/mean", "total")  # the reward as a whole, on held-out problems
LOST_SHARE = 0.25  # of what held-out problems had gained, that has to be lost again
FEWEST_ROWS = 3
HALVED = 0.5  # of the first third of the log
RIGHTNESS = ("accura", "correct", "answer", "exact", "solve")


def _hacking(run: Run) -> Result | list[Result]:
    reward, heldout, parts = run.needed("reward"), _goals(run, "heldout/"), _goals(run, "reward_part/")
    if not heldout and len(parts) < 2:
        why = "only the trained reward is logged, which rises in a hacked run as well"
        return Unknown(why, ("heldout/*", "reward_part/*"))
    if given_up := _given_up(reward, parts):
        return given_up
    found: list[Result] = [_past_peak(name, series, reward) for name, series in heldout.items()]
    rewards = measure(reward)
    if rewards is None or not rewards.rose:
        return found
    for name, series in (heldout or parts).items():
        levels = measure(series)
        if levels is None or not levels.fell:
            continue
        grave = bool(heldout) and not _is_traded(name, heldout, parts)
        low = levels.first - levels.means > levels.least
        since = levels.steps[min(int(np.flatnonzero(~low)[-1]) + 1, len(low) - 1)]  # clearly below the start from there
        told = f"{'heldout/' if heldout else ''}{name} falls from {number(levels.first)} to {number(levels.end)}"
        rise = f"the reward rises from {number(rewards.first)} to {number(max(rewards.end, rewards.late))}"
        shown = f"noise explains a difference of {number(levels.least)}; of the reward one of {number(rewards.least)}"
        cause = "held_out_falls" if grave else "part_falls"
        found.append(
            Found(cause, "critical" if grave else "info", int(since), f"{rise} while {told}", (f"{name}: {shown}",))
        )
    return found


def _given_up(reward: Series, parts: Mapping[str, Series]) -> Result:
    """Find a part for being right that falls to half while the whole rises, row after row; three rows can show it."""
    if float(reward.values[-1]) <= float(reward.values[0]):
        return None
    for name, part in parts.items():
        if len(part) < FEWEST_ROWS or not any(word in name.lower() for word in RIGHTNESS) or part.values[0] <= 0:
            continue
        first, middle, last = (float(third.mean()) for third in np.array_split(part.values, 3))
        levels = measure(part)
        if first > middle > last and last <= HALVED * first and (levels is None or levels.fell):
            return Found(
                "rightness_falls",
                "warning",
                int(part.steps[0]),
                f"the reward rises from {number(float(reward.values[0]))} to {number(float(reward.values[-1]))} while "
                f"{name} falls from {number(float(part.values[0]))} to {number(float(part.values[-1]))}",
                (f"{name}: {number(first)}, {number(middle)}, {number(last)} in the three thirds of the log",),
            )
    return None


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


def _past_peak(name: str, series: Series, reward: Series) -> Result:
    levels = measure(series)
    if levels is None or levels.fell:
        return None
    top = int(levels.means.argmax())
    best, since = float(levels.means[top]), int(levels.steps[top])
    gain, lost = best - levels.first, best - levels.end
    if top == 0 or gain <= levels.least or lost <= max(levels.least, LOST_SHARE * gain):
        return None
    rewards = measure(within(reward, since, int(reward.steps[-1])))
    if rewards is None or rewards.fell:
        return None
    told = f"heldout/{name} was best from step {since} ({number(best)}) and fell to {number(levels.end)}, while"
    shown = f"heldout/{name}: {number(levels.first)} at first; noise explains {number(levels.least)}"
    steps = {"steps": max(since, 1)}
    return Found("past_peak", "warning", since, f"{told} the training reward did not fall", (shown,), change=steps)


HIGHEST = "Read the completions with the highest rewards and close the gap in the reward; keep the checkpoint with the "
reward_hacking = Check(
    name="reward_hacking", topic="Reward",
    title="The trained reward rises while a held-out measurement, or another part of it, falls.",
    symptom="The training reward ends clearly above its start and a measurement on held-out problems, or a part of "
    "the reward, ends clearly below its own start. The policy got better at the reward and worse at the task. A part "
    "for being right that falls to half from third to third of the log shows it in three rows. Without held-out "
    "measurements and without parts this cannot be told: a reward curve alone never shows it.",
    healthy="Held-out measurements rise with the reward.",
    causes=(
        Cause("held_out_falls", "the reward differs from the held-out measurement in something the policy has found: "
              "a judge that likes a phrase, a rule with a gap, or problems known by heart. Critical: every further "
              "step makes it worse",
              HIGHEST + "best held-out measurement.", change=times("kl_coef", 2.0)),
        Cause("rightness_falls", "a part whose name says that it pays for being right (accuracy, correct, answer, "
              "exact) falls to half, while the whole rises by parts that pay for form or length",
              HIGHEST + "best share of right answers, and pay for form only where the answer is right.",
              measured="published log of open-r1"),
        Cause("part_falls", "one part of the reward falls while the sum rises: parts compete. Told where the part "
              "falls in training as well, or the held-out reward as a whole rises, or nothing is held out. Worth "
              "knowing; which of the parts counts is yours to say",
              "Give the part that falls more weight if it counts; hold out problems and measure what you want."),
        Cause("past_peak", "a measurement on held-out problems rose, was best in the middle of the run, and lost at "
              "least a quarter of that gain again, beyond its noise, while the training reward did not fall: the "
              "policy fits the training problems or the reward's gaps more than the task",
              "Use the checkpoint at the peak; plan so many steps, or more and other problems."),
    ),
    find=_hacking, needs=("reward",), applies=learning_reward, follows=("length_collapse", "length_explosion"),
    shows=("heldout/", "reward"),
    source="Secrets of RLHF I (arXiv 2307.04964, abstract): the reward curve misleads; noise of block means as in "
    "docs/doctor/statistics.md",
)  # fmt: skip
