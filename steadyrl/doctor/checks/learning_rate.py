"""The learning rate: too high or too low, told by several signs together."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor import remedies
from steadyrl.doctor.check import Found, Result, check
from steadyrl.doctor.checks.kl import BF16_RATE, ZERO, apart_at_start
from steadyrl.doctor.checks.kl_penalty import RESTS, STRONG, penalty_balance, penalty_gradient, penalty_pays
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.levels import measure
from steadyrl.doctor.statistics.readings import (
    KL_OLD_LARGE,
    LOST_ENTROPY,
    LOST_UPDATE,
    MOST_OF_IT,
    at_top,
    direction,
    entropy_lost,
    falls_short,
    highest_start,
    large_signs,
    levels,
    nothing_to_learn,
    number,
    setting,
    update_size,
    updates_per_step,
    within,
    worth_having,
)
from steadyrl.doctor.statistics.signals import LASTING, first_lasting, head, tail
from steadyrl.doctor.statistics.units import SEQUENCE, TOKEN, find

ENTROPY_JUMP = 2.0  # times up or down within a tenth of the run after the onset
KL_REF_JUMP, KL_REF_MUCH = 10.0, 1.0  # times, likewise, and to so many nats per token
GONE = 0.1  # of its start: an entropy below is not coming back by itself
TURNED_BACK = -0.2  # cosine of a gradient and those before; 0.04 at a sound rate, -0.03 at 10 times, -0.32 at 100 times
LEAP_FROM = 0.1  # of the KL after the step: so near the reference, a step's own KL is that to the reference
UPDATE_LEAST = 1e-3  # nats per token: the lower end of what a step of a healthy run comes to
STILL_THERE = 0.8  # of its start: an entropy above is that of a policy that has hardly changed
UPDATE_NONE = 5e-5  # nats per token; healthy steps have 1e-3 to 0.05, at a hundredth of their rate 1e-6 to 3e-5
KL_REF_NONE = 1e-3  # nats per token at the end; healthy runs with a penalty have 1e-3 to 1
KL_REF_LITTLE = 0.3  # nats per token where the steps themselves are known to be small; per sequence with no length
CLIP_NONE = 1e-5
DRIFTING, DRIFT_NONE, KL_REF_NEAR = 30, 3e-4, 0.01  # steps; nats per token a step, and at the end
ENTROPY_STILL = 0.02  # relative change that counts as none
LORA_RATE = 1e-5  # adapters need 10 to 128 times the rate of full weights, which is some 1e-6
LONG = 300  # steps, in which a policy that moves at all leaves its reference
KL_OLD_SOME = 0.02  # nats per token: the upper end of what a step of a healthy run comes to
SLOW = 4.0  # times the least gain that matters, within a log: the spread of the completions
SHOWN = 2  # signs that have to agree
PLUNGE, HALF = 12, 0.5  # steps; of the entropy at the start, which is left where it begins


@check("learning_rate_too_high")
def learning_rate_too_high(run: Run) -> Result:
    direct, size = large_signs(run), update_size(run)
    alone = None if size is None else first_lasting(size, size.values > LOST_UPDATE, 1)
    if alone is not None:
        direct.append((alone, f"the KL of one step's updates is above {LOST_UPDATE:g} at step {alone}"))
    direct += [sign for sign in (_leap(run), _plunge(run)) if sign is not None]
    # Where the first gradient is not finite, no step was taken that could have been too large.
    norms = [norm for norm in run.series.get("grad_norm", ()) if len(norm)]
    broken = any(norm.steps[0] == run.span[0] and not np.isfinite(norm.first) for norm in norms)
    if not direct or broken:
        return None
    onset = min(start for start, _ in direct)
    later, worse = _consequences(run, onset)
    signs = (*(sentence for _, sentence in direct), *later)
    if len(signs) < SHOWN:
        return None
    large = np.zeros(0) if size is None else size.values[size.values > KL_OLD_LARGE]
    lost = len(large) > 0 and float(np.median(large)) > LOST_UPDATE
    passes = setting(run, "epochs") or 0.0
    cut = remedies.movement_cut(run, remedies.USUAL_CUT * max(passes, 1.0))
    movement = "passes over a batch times the learning rate" if passes > 1 else "the learning rate"
    return Found(
        "epochs" if passes > 2 else "learning_rate",
        "critical" if worse and lost else "warning",
        onset,
        f"from step {onset} on single steps move the policy too far, as {len(signs)} signs agree",
        (*signs, *_rate(run)),
        f"Divide {movement} by about {cut:.0f}, and {remedies.go_back(onset)}.",
        remedies.calmer(run) if passes > 1 else remedies.slower(run),
    )


def _rate(run: Run) -> tuple[str, ...]:
    rate = remedies.learning_rate(run)
    return () if rate is None else (f"the learning rate is {rate:g}",)


def _leap(run: Run) -> tuple[int, str] | None:
    """Return the step that took the policy away from its reference, and a sentence; None where no single one did.

    A policy that was near its reference and is far from it a step later was moved so far by that step's updates, which
    tells their size where it is not logged.
    """
    kl = find(run, "kl_ref")
    if kl is None or len(kl) <= LASTING or apart_at_start(run, kl):
        return None
    near, far = kl.values[:-3] < LEAP_FROM * kl.values[1:-2], kl.values[1:-2] > LOST_UPDATE
    stays = np.minimum(kl.values[2:-1], kl.values[3:]) > LOST_UPDATE / 2.0  # an estimate of one step may be one token's
    leaps = np.flatnonzero(near & far & stays & (np.diff(kl.steps)[:-2] == 1))
    if not len(leaps):
        return None
    index, size = int(leaps[0]), update_size(run)
    if size is not None and updates_per_step(run) != 1 and np.isin(size.steps, kl.steps[index]).any():
        return None  # the step's own KL is measured: if it is large, it is a sign by itself
    old, new = number(float(kl.values[index])), number(float(kl.values[index + 1]))
    onset = int(kl.steps[index])  # measured before the step's updates: those of this step did it
    return onset, f"the KL to the reference went from {old} to {new} nats/token in the one step {onset}"


def _plunge(run: Run) -> tuple[int, str] | None:
    """Return the step from which a policy became sure within a few steps, of worse than it drew then, and a sentence.

    A policy that has found the best of what it draws may become sure of that at once; one that becomes sure of
    anything less was taken there by steps that were too large.
    """
    entropy, reward, reward_max, size = find(run, "entropy"), run.get("reward"), run.get("reward_max"), update_size(run)
    if entropy is None or reward is None or reward_max is None or len(entropy) <= PLUNGE or not entropy_lost(run):
        return None
    before, after = entropy.values[:-PLUNGE], entropy.values[PLUNGE:]
    sure = (after < LOST_ENTROPY * before) & (before > HALF * highest_start(entropy))
    fast = np.flatnonzero(sure & (entropy.steps[PLUNGE:] - entropy.steps[:-PLUNGE] == PLUNGE))
    if not len(fast) or penalty_pays(run):
        return None
    onset = int(entropy.steps[fast[0]])
    best_rewards = within(reward_max, onset - PLUNGE, onset + PLUNGE)
    moved = None if size is None else within(size, onset, onset + PLUNGE)
    if not best_rewards or (moved and moved.greatest < KL_OLD_SOME):
        return None
    start, best = head(reward), best_rewards.greatest
    if tail(reward) - start >= MOST_OF_IT * (best - start) and not falls_short(run):
        return None
    return onset, (
        f"within {PLUNGE} steps from step {onset} on the entropy fell to {number(float(after[fast[0]]))} nats/token, "
        f"and the reward came to {number(tail(reward))} where single completions earned {number(best)}"
    )


def _consequences(run: Run, onset: int) -> tuple[list[str], bool]:
    """Return what changed at once from ``onset`` on, a sentence each, and whether reward or entropy are lost."""
    last = run.span[1]
    entropy, kl, reward = find(run, "entropy"), find(run, "kl_ref"), run.get("reward")
    signs = []
    if (jump := _jump(entropy, onset, last)) and not 1 / ENTROPY_JUMP <= jump[1] / max(jump[0], 1e-9) <= ENTROPY_JUMP:
        signs.append(f"the entropy went from {number(jump[0])} to {number(jump[1])} nats/token soon after step {onset}")
    if (jump := _jump(kl, onset, last)) and jump[1] > max(KL_REF_JUMP * jump[0], KL_REF_MUCH):
        signs.append(f"the KL to the reference went from {number(jump[0])} to {number(jump[1])} soon after it")
    cosine = None if (cosine := run.get("grad_cosine")) is None else within(cosine, onset, last)
    if cosine is not None and len(cosine) >= LASTING and (level := cosine.median) < TURNED_BACK:
        signs.append(f"each gradient points back against those before it (cosine {number(level)}): updates overshoot")
    fell = reward is not None and direction(reward) < 0
    if reward is not None and fell:
        signs.append(levels("the reward", reward))
    return signs, fell or (entropy is not None and tail(entropy) < GONE * head(entropy))


def _jump(series: Series | None, onset: int, last: int) -> tuple[float, float] | None:
    """Return the level of the ten steps until ``onset`` and that a tenth of the remaining steps later, or None."""
    if series is None:
        return None
    before, after = within(series, onset - 10, onset), within(series, onset, onset + 10 + (last - onset) // 10)
    if not len(before) or len(after) < LASTING:
        return None
    # A KL to the reference begins at 0: what large steps made of it within the window is no level to compare with.
    old = before.least if series.quantity == "kl_ref" else before.median
    return float(old), float(np.median(after.values[-LASTING:]))


@check("learning_rate_too_low")
def learning_rate_too_low(run: Run) -> Result:
    reward = run.needed("reward")
    course, blocks = direction(reward), measure(reward)
    gain = 0.0 if blocks is None else max(blocks.end, blocks.late) - blocks.first
    much = gain > SLOW * worth_having(run, reward.median)
    steps, large = _small_steps(run)
    if nothing_to_learn(run) or course < 0:
        return None
    if much and not (len(steps) >= SHOWN and falls_short(run)):
        return _still_rising(run)
    if ((balance := penalty_balance(run)) is not None and balance.holds) or (penalty_gradient(run) or 0.0) >= STRONG:
        return None  # the penalty holds the policy, at any rate
    signs, far = _nearness(run, len(steps) >= SHOWN)
    signs = (*steps, *signs)
    if large or far or len(signs) < SHOWN:
        return _still_rising(run)
    cause, because = _low_cause(run)
    slow = "rises slowly" if course else "is flat"
    # A slow rise does not tell a low rate from a hard task; the size of the steps, where it is measured, does.
    return Found(
        cause,
        "info" if cause == "warm_up" or (course and len(steps) < SHOWN) else "warning",
        None,
        f"the policy hardly moves and the reward {slow} ({len(signs)} signs)",
        (levels("the reward", reward), *signs, *because),
    )


def _still_rising(run: Run) -> Result:
    """Find a run that ends while its reward rises, far from what can be earned and near where its policy began."""
    reward, entropy, size = run.needed("reward"), find(run, "entropy"), update_size(run)
    moves = size is not None and size.median > UPDATE_LEAST
    if moves or entropy is None or tail(entropy) < STILL_THERE * highest_start(entropy) or not falls_short(run):
        return None
    balance, later = penalty_balance(run), reward.second_half
    balanced = balance is not None and balance.share >= RESTS
    if balanced or (penalty_gradient(run) or 0.0) >= STRONG or direction(reward) <= 0 or direction(later) <= 0:
        return None
    change = remedies.multiple(run, "learning_rate", remedies.LEAST_RAISE)
    evidence = (levels("the reward", reward), levels("the entropy", entropy, "nats/token"))
    message = "the reward still rises where the run ends, and has far to go"
    return Found("slow", "info", None, message, evidence, change=change)


def _small_steps(run: Run) -> tuple[tuple[str, ...], bool]:
    """Return the signs that a step's updates are small, and whether another sign says that they are not."""
    signs, large = [], False
    updates, size = updates_per_step(run), update_size(run)
    # With one update per batch both are measured before it, and are 0 by construction.
    measured = size is not None and updates != 1 and bool(size.values.any())
    if size is not None and measured:
        level = size.median
        large |= level > UPDATE_NONE
        if level <= UPDATE_NONE:
            signs.append(f"the KL of one step's updates is {number(level)} nats/token (median)")
    clipped = None if run.traits.clips_by_design else run.get("clip_fraction")
    if clipped is not None and (measured if updates is None else updates > 1):
        share = float(clipped.values.mean())
        large |= share > 100 * CLIP_NONE
        if share < CLIP_NONE:
            signs.append("nothing is clipped although there are several updates per batch")
    return tuple(signs), large


def _nearness(run: Run, small_steps: bool) -> tuple[tuple[str, ...], bool]:
    """Return the signs that the policy is where it began, and whether another sign says that it is not."""
    signs, far = [], False
    kl = find(run, "kl_ref") or find(run, "kl_ref", SEQUENCE)
    last, entropy = run.span[1], find(run, "entropy")
    if kl is not None:
        level, top = abs(tail(kl)), at_top(run.needed("reward"))
        # With one update per batch no KL of a step is measured; steps that do not undo one another add up to this one.
        single = updates_per_step(run) == 1 and kl.unit == TOKEN and not top
        drift = level / last if single and last >= DRIFTING else np.inf
        limit = KL_REF_LITTLE if small_steps or kl.unit == SEQUENCE else KL_REF_NONE
        limit = max(limit, KL_REF_NEAR) if drift <= DRIFT_NONE else limit
        far |= level > limit or bool((np.abs(kl.values[1:]) <= ZERO).mean() > 0.5)  # the latter is kl_zero's
        signs.append(f"the KL to the reference ends at {number(level)} {kl.unit}")
        signs += [f"that is {number(drift)} nats/token a step"] if drift <= DRIFT_NONE else []
        if kl.unit != SEQUENCE and last >= LONG and not top:
            signs.append(f"so near it are {last} steps from where they began")
    still = entropy is not None and abs(tail(entropy) - head(entropy)) < ENTROPY_STILL * head(entropy)
    if entropy is not None and still and direction(entropy) == 0:
        signs.append(levels("the entropy", entropy, "nats/token"))
    return tuple(signs), far


def _low_cause(run: Run) -> tuple[str, list[str]]:
    logged, warm_up = run.get("learning_rate"), setting(run, "warmup_steps")
    if logged is not None and warm_up and logged.steps[-1] < warm_up:
        return "warm_up", [f"the learning rate is {logged.last:g} at the end of the log"]
    rate, reasons = remedies.learning_rate(run), []
    if rate is not None and rate <= LORA_RATE and run.settings.get("lora"):
        reasons.append("an adapter is trained")
    if rate is not None and rate <= BF16_RATE and run.settings.get("dtype") == "bfloat16":
        reasons.append("the weights are bfloat16")
    return "learning_rate", [*reasons, *_rate(run)]
