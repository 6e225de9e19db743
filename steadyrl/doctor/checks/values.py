"""The value head and what is made of it: value loss, explained variance, advantages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steadyrl.doctor.check import Cause, Check, Found, Result, Unknown
from steadyrl.doctor.remedies import both, times, to
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.measures import kl_coef, setting, share_with_spike
from steadyrl.doctor.statistics.readings import learns, number
from steadyrl.doctor.statistics.signals import BURSTS_FROM, MIN_STEPS, block_medians, bursts, head
from steadyrl.doctor.statistics.units import SEQUENCE, find, together

SPIKE_FACTOR = 5.0  # times the usual level; the value loss of healthy runs stays within it from step to step
MOSTLY = 0.5  # share of the spikes that a cause must accompany
# Half the squared return error of a penalty of size x is x^2 / 6 (spread over the tokens) to x^2 / 2, and more where
# completions differ; a value loss without the half is twice that.
SIZE_LOW, SIZE_HIGH = 0.1, 5.0
WARM_SHARE, WARM_STEPS = 0.2, 20  # a fresh value head is allowed to be worse than a constant for so long
EV_BAD = -0.05  # below 0 by more than rounding: worse than predicting the mean
EV_HARMS = -0.5  # the advantages are noisier by a half than without a value head; above it runs learn all the same
OFFSET_SHARE = 0.8  # of the squared error that a constant offset has to explain
CONSTANT = 1e-6  # spread of returns, relative to their size, below which explaining it means nothing
ADVANTAGE_FLOOR = 0.05  # standard deviations; a mean below it shifts no update noticeably
ADVANTAGE_SE = 3.0


def has_critic(run: Run) -> bool:
    """Return False for training without a value head."""
    return run.traits.critic is not False


def _value_spikes(run: Run) -> Result:
    series = run.needed("loss_value")
    if len(series) <= BURSTS_FROM:
        return Unknown(f"{len(series)} steps are too few to tell what is usual")
    far = bursts(series, SPIKE_FACTOR)
    if not len(far):
        return None
    cause, told = _spike_cause(run, replace(series, steps=series.steps[far], values=series.values[far]))
    since, top = int(series.steps[far[0]]), far[np.argmax(series.values[far])]
    usual = float(np.median(series.values))
    length = run.get("length")
    return Found(
        cause,
        "warning",
        since,
        f"the value loss spikes from step {since} on: {told}",
        (
            f"{len(far)} steps are more than {SPIKE_FACTOR:g} times the level before them; the median of all steps is "
            f"{number(usual)}",
            f"the greatest is {number(float(series.values[top]))} at step {series.steps[top]}",
        ),
        change={"max_new_tokens": round(head(length))} if cause == "length_jump" and length is not None else None,
    )


def _spike_cause(run: Run, spiked: Series) -> tuple[str, str]:
    """Return the cause and the sentence that tells it from the others; ``spiked`` are the steps that spike."""
    sized = _penalty_explains(run, spiked)
    per_token, per_sequence = find(run, "kl_ref"), find(run, "kl_ref", SEQUENCE)
    kl = max(share_with_spike(per_sequence or run.get("kl_ref"), spiked.steps), 1.0 if sized else 0.0)
    length = share_with_spike(run.get("length"), spiked.steps)
    if length >= MOSTLY and (not kl or share_with_spike(per_token, spiked.steps) < MOSTLY):
        return "length_jump", f"the mean length jumps at {length:.0%} of these steps, the KL per token does not"
    if kl >= MOSTLY:
        return "kl", sized or f"the KL to the reference leaves its usual range at or before {kl:.0%} of these steps"
    for name in ("reward_max", "reward_min", "reward_std", "reward"):
        share = share_with_spike(run.get(name), spiked.steps)
        if share >= MOSTLY:
            return "reward_outlier", f"{name} leaves its usual range at {share:.0%} of these steps, the KL does not"
    jumped = share_with_spike(run.get("value_mean"), spiked.steps[:1])
    if jumped:
        return "value_reset", f"value_mean jumps at step {spiked.steps[0]} while reward and KL stay as they were"
    explained = run.get("explained_variance")
    if explained is not None and head(explained) < 0:
        return "value_head", (
            f"the explained variance was {number(head(explained))} in the first steps already, and neither KL nor "
            "reward jumps"
        )
    return "unknown", "neither KL, reward, length nor the mean prediction jump with it as far as they are logged"


def _penalty_explains(run: Run, spiked: Series) -> str:
    """Return a sentence if the penalty's square is about the value loss and rose with it; else ""."""
    kl = find(run, "kl_ref", SEQUENCE)
    if kl is None or run.traits.kl_place == "loss":
        return ""
    coefficient = kl_coef(run, kl)
    if coefficient is None:
        return ""
    penalty = replace(kl, values=(coefficient * kl.values) ** 2)
    loss, at = together(spiked, penalty)
    if not len(at) or not (at.values > 0).all():
        return ""
    ratio = float(np.median(loss.values / at.values))
    rose = float(np.median(at.values)) > SPIKE_FACTOR * float(np.median(penalty.values))
    if not (rose and SIZE_LOW <= ratio <= SIZE_HIGH):
        return ""
    return (
        f"at these steps the value loss is {number(ratio)} times the square of kl_coef x KL per sequence (median KL "
        f"{number(float(np.median(together(spiked, kl)[1].values)))} nats): the penalty makes it"
    )


_THIRD = times("learning_rate", 1 / 3)
value_loss_spikes = Check(
    name="value_loss_spikes", topic="Value",
    title="The value loss jumps to many times its usual level.",
    symptom="Several steps have a value loss more than 5 times the median of the 100 steps before and more than 6 "
    "robust standard deviations away on a logarithmic scale. One single step is not reported: one odd batch is no "
    "illness. The value head has to predict the return; a jump says that the returns changed faster than it could "
    "follow.",
    healthy="The value loss falls, and stays within five times its level.",
    causes=(
        Cause("kl", "returns contain -kl_coef times the KL summed over the completion: the KL spikes at or just "
              "before the value loss, and the value loss is about (kl_coef x KL per sequence) squared, times 1/6 to "
              "1. With a coefficient of 0.2 and a KL of 300 that is 60 squared: 3600",
              "Fix the KL, the value loss follows: a third of the learning rate, one pass over a batch, an adaptive "
              "coefficient; go on from a checkpoint before the first spike.", change=both(_THIRD, to(epochs=1)),
              follows=("kl_runaway", "negative_kl", "learning_rate_too_high"), moves=("learning_rate", "epochs")),
        Cause("reward_outlier", "the greatest or least reward, or the spread of the rewards, jumps at the same steps",
              "Bound the reward (clip it to a few standard deviations) or divide it by its running standard "
              "deviation; look at the completions of these steps.", follows=("reward_jump", "reward_scale"),
              moves=("reward_limit",), measured="reward_outliers, reward_offset"),
        Cause("length_jump", "completions became longer at once, and the sum of the penalty with them; the KL per "
              "token stayed",
              "Find out why completions grew (see length_explosion and truncated) and bound them.",
              follows=("length_explosion",)),
        Cause("value_reset", "the mean prediction jumped, rewards and KL did not: the value head lost its weights",
              "Resume with the value head's weights and its optimizer state, from a checkpoint before the jump.",
              follows=("reward_jump",)),
        Cause("value_head", "none of these, and the head explained nothing from the start: it is not trained well "
              "enough",
              "Clip the change of the values (0.2), give their loss weight 0.1, and let the value head train before "
              "the policy does.", follows=("reward_jump",)),
        Cause("unknown", "neither KL, reward, length nor the mean prediction jump with it as far as they are logged",
              "Log the KL per sequence, the greatest and least reward and the mean value; then ask again. A smaller "
              "learning rate is the safest first attempt.", change=_THIRD,
              follows=("reward_jump", "learning_rate_too_high")),
    ),
    find=_value_spikes, needs=("loss_value",), applies=has_critic, follows=("value_jump",),
    source="Ziegler et al. (arXiv 1909.08593) for the penalty in the reward; TRL 0.11 docs/source/logging.mdx: the "
    "value loss spikes or becomes NaN when a run is not going well; the arithmetic of the size is steadyrl's own",
)  # fmt: skip


def _explains_little(run: Run) -> Result:
    centred = run.get("explained_variance", estimator="centred")
    series = centred or run.get("explained_variance")
    uncentred = run.get("explained_variance", estimator="uncentred")
    assert series is not None, "a need"
    warm = max(WARM_STEPS, int(WARM_SHARE * len(series)))
    if len(series) < warm + MIN_STEPS:
        return Unknown(f"the value head is given {warm} steps to settle; few follow")
    since, low = _bad_blocks(series, warm)
    since_raw, low_raw = _bad_blocks(uncentred, warm) if uncentred is not None else (None, 0.0)
    if since is None and since_raw is None:
        return None
    cause, told = _low_cause(run, since is not None, uncentred is series or since_raw is not None)
    shown = low if since is not None else low_raw
    return Found(
        cause,
        "info" if shown > EV_HARMS or (cause == "untrained_head" and learns(run)) else "warning",
        since if since is not None else since_raw,
        f"the value head explains returns worse than a constant: {told}",
        (f"the explained variance is {number(shown)} (median of the last blocks, {series.source})",),
    )


def _bad_blocks(series: Series, warm: int) -> tuple[int | None, float]:
    """Return the first step of the blocks below 0 that last to the end (None if fewer than 3) and their median."""
    rest = replace(series, steps=series.steps[warm:], values=series.values[warm:])
    if len(rest) < 3:
        return None, 0.0
    steps, medians = block_medians(rest)
    good = np.flatnonzero(medians >= EV_BAD)
    start = int(good[-1]) + 1 if len(good) else 0
    if len(medians) - start < 3:
        return None, 0.0
    return int(steps[start]), float(np.median(medians[start:]))


def _low_cause(run: Run, centred_low: bool, uncentred_low: bool) -> tuple[str, str]:
    spread, mean, value = run.get("return_std"), run.get("return_mean"), run.get("value_mean")
    level = abs(float(np.median(mean.values))) if mean is not None else 1.0
    if spread is not None and np.median(spread.values) <= CONSTANT * max(level, CONSTANT):
        return "constant_returns", "the returns do not vary, so there is nothing to explain"
    if not centred_low:
        return (
            "offset",
            "without the mean of the error (centred formula) it is fine: all predictions are off by a constant",
        )
    if uncentred_low and mean is not None and value is not None and spread is not None:
        predicted, returned = together(value, mean)
        bias = float(np.median(np.abs(predicted.values - returned.values))) if len(predicted) else 0.0
        variance = float(np.median(spread.values)) ** 2
        error = (1.0 - float(np.median(_uncentred(run).values))) * variance
        if bias**2 >= OFFSET_SHARE * error:
            return "offset", f"the mean prediction is off the mean return by {number(bias)}, most of the whole error"
    return "untrained_head", "the error is wider than the returns themselves, not merely shifted"


def _uncentred(run: Run) -> Series:
    found = run.get("explained_variance", estimator="uncentred") or run.get("explained_variance")
    assert found is not None, "a need of the check"
    return found


explained_variance_low = Check(
    name="explained_variance_low", topic="Value",
    title="The value head predicts returns worse than a constant would.",
    symptom="After the first fifth of the run (20 steps at least) the explained variance is still below 0, in three "
    "blocks of steps one after the other, the last ones among them. 1 is a perfect prediction, 0 is as good as always "
    "predicting the mean return, -6 means errors 2.6 times as wide as the returns themselves.",
    healthy="The explained variance is above 0 after the first fifth of the run.",
    causes=(
        Cause("constant_returns", "returns hardly vary (return_std near 0), so there is nothing to explain and the "
              "number means nothing",
              "Nothing is wrong with the value head: fix the reward, which does not vary.",
              follows=("reward_constant",)),
        Cause("offset", "the predictions are all off by the same amount. 1 - MSE / Var counts a constant offset as "
              "error (TRL 0.11), 1 - Var(error) / Var does not (verl, steadyrl): the first very negative and the "
              "second fine, or a mean prediction far from the mean return, is an offset",
              "Centre the reward by taking its usual level off, or start the value head at that level.",
              follows=("value_jump", "reward_jump", "reward_scale"), measured="reward_offset"),
        Cause("untrained_head", "both formulas are negative: the head does not follow the returns",
              "Raise the weight of the value loss or its learning rate, let the value head train some steps before "
              "the policy, or use an algorithm without a critic.",
              follows=("value_jump", "reward_jump", "value_loss_spikes")),
    ),
    find=_explains_little, needs=("explained_variance",), applies=has_critic,
    source="TRL v0.11.4 ppo_trainer.py (1 - val/error / returns/var); Stable-Baselines3's logger page: 1 is perfect, "
    "below 0 is worse than predicting nothing; that the two formulas differ by the offset is arithmetic",
)  # fmt: skip


def _advantage(run: Run) -> Result:
    series = run.needed("advantage_mean")
    grouped = run.traits.grouped is True
    if run.trainer == "steadyrl" and not grouped:
        return None
    spread = run.get("advantage_std")
    std = float(np.median(spread.values)) if spread is not None else 1.0 if run.settings.get("whitened") else None
    if std is None:
        return Unknown("the spread of the advantages is not known", ("advantage_std", "whitened"))
    limit = max(ADVANTAGE_FLOOR * std, ADVANTAGE_SE * _standard_error(run, series, std))
    steps, medians = block_medians(series)
    far = np.abs(medians) > limit
    start = 0 if far.all() else int(np.flatnonzero(~far)[-1]) + 1
    if len(medians) - start < 3 or len(set(np.sign(medians[start:]))) > 1:
        return None
    return _off_finding(run, int(steps[start]), float(np.median(medians[start:])), limit, grouped)


def _standard_error(run: Run, series: Series, std: float) -> float:
    """Return the error of one step's mean by completions, which whole advantages belong to; else from its scatter."""
    completions = setting(run, "batch_size")
    if completions:
        return std / float(np.sqrt(completions))
    return float(np.std(np.diff(series.values)) / np.sqrt(2.0))


def _off_finding(run: Run, since: int, level: float, limit: float, grouped: bool) -> Found:
    cause = (
        "length_correlation" if grouped else "whitened_elsewhere" if run.settings.get("whitened") else "not_whitened"
    )
    told = {
        "length_correlation": f"long completions score {'better' if level > 0 else 'worse'} than short ones of the "
        "same prompt",
        "whitened_elsewhere": "they are whitened, so the mean was taken over other tokens than are logged or trained",
        "not_whitened": "they are not centred, and the values lag behind",
    }[cause]
    return Found(
        cause,
        "info" if grouped or not run.traits.critic else "warning",
        since,
        f"the mean advantage stays at {number(level)} from step {since} on: {told}",
        (f"block medians beyond {number(limit)} with one sign, their median {number(level)}",),
    )


advantage_off = Check(
    name="advantage_off", topic="Value",
    title="The mean of the advantages stays away from 0.",
    symptom="Over three blocks of steps or more the mean advantage keeps one sign and is beyond 3 standard errors. An "
    "advantage with a positive mean makes every sampled token likelier, one with a negative mean makes every token "
    "less likely, whatever was good or bad about them. Advantages that steadyrl logs before whitening may well have a "
    "mean and are not judged; without a critic it is worth knowing only.",
    healthy="The mean advantage is 0, within its error.",
    causes=(
        Cause("not_whitened", "the algorithm does not centre its advantages, and the values lag behind the returns",
              "Whiten the advantages of each batch over its completion tokens.", change=to(whitened=True),
              follows=("advantage_baseline",)),
        Cause("whitened_elsewhere", "advantages are said to be whitened and their mean is not 0 nevertheless: it was "
              "taken over other tokens than those that train (padding counted in, or one part of the machines only)",
              "Whiten over the completion mask of the whole batch."),
        Cause("length_correlation", "with a group baseline the mean over completions is 0 by construction; the mean "
              "over tokens is not if long completions score differently from short ones. No fault, but a pull on the "
              "length",
              "No fault by itself: watch the length, and divide the loss by all tokens of the batch."),
    ),
    find=_advantage, needs=("advantage_mean",), min_steps=MIN_STEPS,
    applies=lambda run: run.traits.trains_on == "sampled",
    source="N Implementation Details of RLHF (advantages are whitened, the mean taken out); Dr. GRPO for the length",
)  # fmt: skip
