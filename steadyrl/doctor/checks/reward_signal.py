"""What the rewards can teach: groups that differ, missing scores, scale and outliers, noise."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.check import Result, Unclear, check
from steadyrl.doctor.checks.measures import reward_spread, setting
from steadyrl.doctor.checks.readings import learns, number
from steadyrl.doctor.checks.units import together
from steadyrl.doctor.levels import measure
from steadyrl.doctor.series import Run
from steadyrl.doctor.signals import MIN_STEPS, bursts, first_lasting, head, tail
from steadyrl.types import Finding

LITTLE_SIGNAL = 0.7  # share of groups that teach nothing: less than a third of every batch is of use
NO_SIGNAL_AT_ALL = 0.999
LATE = 0.2  # of the run: how it is now, rather than how it began
RIGHT, WRONG = 0.6, 0.4  # of the way from the least to the greatest reward
UNSCORED_WARN, UNSCORED_CRITICAL = 0.1, 0.5
FEW_STEPS = 5
OFFSET = 10.0  # standard deviations between the rewards' mean and 0
OUTLIER = 10.0  # standard deviations above the usual greatest reward
OUTLIER_STEPS, OUTLIER_SHARE = 3, 0.002
USUAL_BETWEEN = 0.2  # share of the steps since the first outlier that are in order
GROWN = 1.25  # spread at the end over spread at the start
GAP_SHARE = 0.5  # of the level, from which the best of N is worth a mention
# Expected greatest of N standard normal numbers.
BEST_OF = {2: 0.564, 3: 0.846, 4: 1.029, 5: 1.163, 6: 1.267, 7: 1.352, 8: 1.424, 16: 1.766, 32: 2.070, 64: 2.344}


@check(needs=("no_signal",))
def no_signal_groups(run: Run) -> Result:
    """Most groups have equal rewards and teach nothing.

    Symptom: in the last fifth of the run more than 70 % of the groups (the completions of one prompt) have rewards that
    are all the same. With a group baseline (GRPO, RLOO) their advantages are exactly 0: they cost time and give no
    gradient. Chance alone gives 43 % where nine of ten answers are right and a group has eight. Where the reward rose
    while the share grew, the policy has become sure of its answers by learning: worth knowing only.

    Causes and what tells them apart:
    - too_easy: the mean reward lies near the greatest that occurs: all completions are right.
    - too_hard: it lies near the least: all are wrong.
    - same_answers: it lies between: the policy gives the same answer to a prompt every time, some right, some wrong.
      Entropy is then low; see the checks on entropy.

    Remedy: too_easy: harder problems, or stop. too_hard: easier problems first, more completions per prompt, a reward
    with parts. same_answers: sample at temperature 1. Drawing groups anew until they differ keeps the batch full.

    Source: DAPO (arXiv 2503.14476) on dynamic sampling; TRL logs the share as frac_reward_zero_std.
    """
    share = run.get("no_signal")
    assert share is not None, "a need"
    if run.algorithm == "ppo":
        return None  # its baseline is the value head: equal rewards still teach
    if len(share) < MIN_STEPS:
        return Unclear("no_signal_groups", f"{len(share)} steps are too few")
    level = tail(share, LATE)
    if level <= LITTLE_SIGNAL:
        return None
    since = first_lasting(share, share.values > LITTLE_SIGNAL)
    nothing = bool((share.values >= NO_SIGNAL_AT_ALL).all())
    cause, told = _equal_cause(run)
    learned = head(share) <= LITTLE_SIGNAL and learns(run) and cause in ("too_easy", "same_answers")
    samples = setting(run, "samples_per_prompt")
    more = (f"rollout.samples_per_prompt={2 * int(samples)}",) if samples else ()
    remedy, overrides = {
        "too_easy": ("Take harder problems, or stop: these are learned.", ()),
        "too_hard": ("Begin with easier problems, draw more completions of each, or pay for partial success.", more),
        "same_answers": ("Sample at temperature 1 so that completions differ.", ("sampling.temperature=1.0", *more)),
        "unknown": ("Log the mean, least and greatest reward: they tell too easy from too hard.", more),
    }[cause]
    return Finding(
        check="no_signal_groups",
        severity="critical" if nothing else "info" if learned else "warning",
        since_step=since,
        cause=cause,
        message=f"{level:.0%} of the groups have equal rewards: {told}",
        evidence=(f"share of groups without signal: {number(head(share))} at the start, {number(level)} at the end",),
        remedy=remedy,
        overrides=overrides,
        source="DAPO, arXiv 2503.14476",
    )


def _equal_cause(run: Run) -> tuple[str, str]:
    reward, least, greatest = run.get("reward"), run.get("reward_min"), run.get("reward_max")
    if reward is None:
        return "unknown", "the mean reward is not logged"
    low = float(least.values.min()) if least is not None else min(0.0, float(reward.values.min()))
    high = float(greatest.values.max()) if greatest is not None else max(1.0, float(reward.values.max()))
    if high <= low:
        return "unknown", "no two rewards of the run differ"
    place = (tail(reward, LATE) - low) / (high - low)
    shown = f"the mean reward is {place:.0%} of the way from {number(low)} to {number(high)}"
    if place > RIGHT:
        return "too_easy", f"all completions are right ({shown})"
    if place < WRONG:
        return "too_hard", f"all completions are wrong ({shown})"
    return "same_answers", f"the completions of a prompt agree, some right, some wrong ({shown})"


@check(needs=("reward_unscored",))
def reward_unscored(run: Run) -> Result:
    """Many completions get no reward at all.

    Symptom: at the end more than a tenth of the completions are without a score (critical above a half). They leave the
    batch; what remains may be the easy ones.

    Causes and what tells them apart:
    - judge_or_engine: so from the first steps: the judge is not reachable, answers in a form that is not understood, or
      the tests cannot run here.
    - engine_failing: it began later: a limit on requests, a time-out, a full disk, a dead service.

    Remedy: look at the reasons recorded with the rollouts; run ``steadyrl task check``; raise the time-out or lower the
    load.

    Source: steadyrl's own rule.
    """
    share = run.get("reward_unscored")
    assert share is not None, "a need"
    level = tail(share, LATE)
    if len(share) < FEW_STEPS:
        return Unclear("reward_unscored", f"{len(share)} steps are too few")
    if level <= UNSCORED_WARN:
        return None
    early = head(share) > UNSCORED_WARN
    since = int(share.steps[0]) if early else first_lasting(share, share.values > UNSCORED_WARN)
    return Finding(
        check="reward_unscored",
        severity="critical" if level > UNSCORED_CRITICAL else "warning",
        since_step=since,
        cause="judge_or_engine" if early else "engine_failing",
        message=f"{level:.0%} of the completions have no reward, since step {since}",
        evidence=(f"unscored share {number(head(share))} at the start, {number(level)} at the end",),
        remedy="Read the reasons recorded with the rollouts and mend what scores them: the judge, its time-out, the "
        "engine, the tests.",
        source="steadyrl",
    )


@check(needs=("reward",))
def reward_scale(run: Run) -> list[Result]:
    """Rewards lie far from 0 for a value head, or have outliers.

    Symptom: the mean of the first rewards is large against their spread, or single rewards against all others.

    Causes and what tells them apart:
    - offset: with a value head, the first rewards' mean is more than 10 of their standard deviations from 0. The head
      starts near 0 and has to learn a large constant before its predictions tell anything; until then all advantages
      have one sign. A warning where the values are seen to be off by so much after 20 steps still, else worth knowing.
    - outliers: the greatest (or least) reward of single steps is more than 10 standard deviations beyond its usual
      value, several times. One such completion outweighs its whole batch. Where neither is logged: the spread of single
      steps is more than 10 times the usual one of those before, and steps between them are as usual.

    Rewards that are rarely won are no outliers: their greatest value is the usual one.

    Multiplying all rewards by a number does little: whitening, GRPO's division by the group's spread and Adam undo it;
    only the balance with the KL penalty and the value loss change.

    Remedy: take the usual level off the reward; clip it to a few standard deviations.

    Source: Secrets of RLHF I (arXiv 2307.04964, abstract) on normalising and clipping scores; the rest is arithmetic.
    """
    reward, spread = run.get("reward"), reward_spread(run)
    assert reward is not None, "a need"
    if spread is None:
        return [Unclear("reward_scale", "the log has no spread of the rewards", ("reward_std",))]
    return [_offset(run), _outliers(run, float(np.median(spread.values)))]


def _offset(run: Run) -> Result:
    reward, spread = run.get("reward"), reward_spread(run)
    assert reward is not None and spread is not None, "asked before"
    start, width = head(reward), head(spread)
    if run.get("loss_value") is None or width <= 0 or abs(start) <= OFFSET * width:
        return None
    value, returned = run.get("value_mean"), run.get("return_mean")
    lagging = False
    if value is not None and returned is not None:
        value, returned = together(value, returned)
        lagging = len(value) > MIN_STEPS and bool(
            np.median(np.abs(value.values - returned.values)[MIN_STEPS:]) > OFFSET * width
        )
    return Finding(
        check="reward_scale",
        severity="warning" if lagging else "info",
        since_step=int(reward.steps[0]),
        cause="offset",
        message=f"the rewards lie {number(abs(start) / width)} standard deviations from 0, which the value head has to "
        f"learn first{'; it has not' if lagging else ''}",
        evidence=(f"first rewards: mean {number(start)}, standard deviation {number(width)}",),
        remedy=f"Take a constant near {number(start)} off the reward.",
        source="arithmetic of a value head that starts near 0",
    )


def _outliers(run: Run, width: float) -> Result:
    if run.get("reward_max") is None and run.get("reward_min") is None:
        return _outliers_by_spread(run)
    for quantity, sign in (("reward_max", 1.0), ("reward_min", -1.0)):
        series = run.get(quantity)
        if series is None or width <= 0 or len(series) < MIN_STEPS:
            continue
        beyond = sign * (series.values - np.median(series.values))
        far = np.flatnonzero(beyond > OUTLIER * width)
        if len(far) < max(OUTLIER_STEPS, OUTLIER_SHARE * len(series)):
            continue
        top = far[np.argmax(beyond[far])]
        usual = float(np.median(series.values))
        return Finding(
            check="reward_scale",
            severity="warning",
            since_step=int(series.steps[far[0]]),
            cause="outliers",
            message=f"{len(far)} steps hold a reward far beyond the usual, up to {number(float(series.values[top]))}",
            evidence=(
                f"{quantity} is {number(usual)} usually, {number(float(series.values[top]))} at step "
                f"{series.steps[top]}; the rewards' standard deviation is {number(width)}",
            ),
            remedy=f"Read these completions; clip the reward near {number(usual + sign * 3 * width)}.",
            source="Secrets of RLHF I, arXiv 2307.04964 (abstract)",
        )
    return None


def _outliers_by_spread(run: Run) -> Result:
    """Tell outliers from the spread alone: one of n completions at a distance d makes it d over the root of n."""
    spread = reward_spread(run)
    assert spread is not None, "asked before"
    several = bursts(spread, OUTLIER)
    if len(several) < OUTLIER_STEPS:
        return None
    usual = float(np.median(spread.values[: several[0]]))
    far = spread.values > OUTLIER * usual
    at = np.flatnonzero(far)
    if usual <= 0 or len(at) < OUTLIER_SHARE * len(spread):
        return None
    between = ~far[at[0] :]
    if between.mean() < USUAL_BETWEEN:
        return None  # the spread grew and stayed: see reward_jump
    top = at[np.argmax(spread.values[at])]
    return Finding(
        check="reward_scale",
        severity="warning",
        since_step=int(spread.steps[at[0]]),
        cause="outliers",
        message=f"the rewards of {len(at)} steps scatter far more than usual, up to "
        f"{number(float(spread.values[top]))}: single ones lie far beyond the others",
        evidence=(
            f"{spread.source or 'reward_std'} is {number(usual)} usually, {number(float(spread.values[top]))} at step "
            f"{spread.steps[top]}; {between.mean():.0%} of the steps since step {spread.steps[at[0]]} are as usual",
        ),
        remedy="Log the greatest and the least reward, read these completions, and clip the reward to a few usual "
        "standard deviations.",
        source="Secrets of RLHF I, arXiv 2307.04964 (abstract)",
    )


@check(needs=("reward_std_within", "reward_std"))
def reward_noise(run: Run) -> list[Result]:
    """Where the spread of the rewards comes from, and how much room it leaves.

    Symptom: rewards differ a quarter more at the end than at the start, or the best of a prompt's completions scores
    far above their mean. Worth knowing; neither is a fault by itself.

    Causes and what tells them apart:
    - within: the variance within prompts grew: completions of one prompt differ more. With right-or-wrong rewards that
      peaks when half are right, which is healthy in the middle of a run; with a judge, score the same text twice to see
      its noise.
    - between: the variance between prompts grew: look at the mixture of problems.
    - headroom: the best of N completions scores above the mean by the spread within a prompt times a number that N
      fixes (0.56 for 2, 1.03 for 4, 1.42 for 8). That gap is what the policy could gain by always giving its own best
      answer: the signal that GRPO feeds on, not instability. If it goes to 0 while the reward is flat, answers have
      become all the same.

    Remedy: none needed; for a noisy judge, average several verdicts.

    Source: analysis of variance; expected maxima of normal samples.
    """
    within, total = run.get("reward_std_within"), run.get("reward_std")
    assert within is not None and total is not None, "needs"
    levels, inside = measure(total), measure(within)
    if levels is None or inside is None:
        return [Unclear("reward_noise", f"{len(total)} steps are too few")]
    found: list[Result] = []
    if levels.rose and levels.end > GROWN * levels.first:
        grown = inside.end**2 - inside.first**2
        share = grown / max(levels.end**2 - levels.first**2, 1e-12)
        cause = "within" if share > 0.5 else "between"
        told = "completions of one prompt differ more" if share > 0.5 else "prompts differ more from each other"
        found.append(
            Finding(
                check="reward_noise",
                severity="info",
                since_step=int(total.steps[0]),
                cause=cause,
                message=f"the spread of the rewards grew from {number(levels.first)} to {number(levels.end)}: {told}",
                evidence=(f"{share:.0%} of the growth of the variance lies within prompts",),
                remedy="Nothing, if half of the answers are right; else score the same text twice to see the noise.",
                source="analysis of variance",
            )
        )
    return found + _headroom(run, inside.end)


def _headroom(run: Run, inside: float) -> list[Result]:
    """Return what the best of a prompt's completions scores above their mean, where that is much.

    Args:
        run: What is examined.
        inside: Spread of the rewards within prompts at the end.
    """
    reward, samples = run.get("reward"), setting(run, "samples_per_prompt")
    gap = inside * BEST_OF.get(int(samples), 0.0) if samples else 0.0
    if reward is None or gap <= GAP_SHARE * abs(tail(reward)):
        return []
    return [
        Finding(
            check="reward_noise",
            severity="info",
            since_step=None,
            cause="headroom",
            message=f"the best of {int(samples or 0)} completions scores about {number(gap)} above the mean",
            evidence=(f"spread within prompts {number(inside)}, mean reward {number(tail(reward))} at the end",),
            remedy="None: this is what is left to gain without new abilities.",
            source="expected maximum of normal samples",
        )
    ]
