"""The value head and what is made of it: value loss, explained variance, advantages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steadyrl.doctor.check import Cause, Check, Found, Result, Unknown
from steadyrl.doctor.remedies import both, times, to
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.readings import goes_with, learns, number, setting, share_with_spike
from steadyrl.doctor.statistics.signals import BURSTS_FROM, MIN_STEPS, block_medians, bursts
from steadyrl.doctor.statistics.units import together

SPIKE_FACTOR = 5.0  # times the usual level; the value loss of healthy runs stays within it from step to step
SPIKES_WITH = {
    "length_jump": ("length",),
    "kl": ("kl_ref",),
    "reward_outlier": ("reward_max", "reward_min", "reward_std", "reward"),
}
WARM_SHARE = 0.2  # a fresh value head may be worse than a constant for so long, and for 20 steps
FEWEST_BLOCKS = 3  # that a lasting fault shows in
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
    cause, told = goes_with(run, series.steps[far], SPIKES_WITH)
    since, top = int(series.steps[far[0]]), far[np.argmax(series.values[far])]
    if cause == "unknown" and share_with_spike(run.get("value_mean"), series.steps[far[:1]]):
        cause, told = "value_reset", f"value_mean jumps at step {since} while reward and KL stay as they were"
    shown = (
        f"{len(far)} steps are more than {SPIKE_FACTOR:g} times the level before them; the median of all steps is "
        f"{number(float(np.median(series.values)))}, the greatest {number(float(series.values[top]))} at step "
        f"{series.steps[top]}"
    )
    return Found(cause, "warning", since, f"the value loss spikes from step {since} on: {told}", (shown,))


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
              "before the value loss, which is then about its square. With a coefficient of 0.2 and a KL of 300 that "
              "is 60 squared: 3600",
              "Fix the KL, the value loss follows: a third of the learning rate, one pass over a batch, an adaptive "
              "coefficient; go on from a checkpoint before the first spike.", change=both(_THIRD, to(epochs=1)),
              follows=("kl_runaway", "negative_kl", "learning_rate_too_high"), moves=("learning_rate", "epochs")),
        Cause("reward_outlier", "the greatest or least reward, or the spread of the rewards, jumps at the same steps",
              "Bound the reward (clip it to a few standard deviations) or divide it by its running standard "
              "deviation; look at the completions of these steps.", follows=("reward_jump", "reward_scale"),
              moves=("reward_limit",), measured="reward_outliers, reward_offset"),
        Cause("length_jump", "completions became longer at once, and the sum of the penalty with them",
              "Find out why completions grew (see length_explosion and truncated) and bound them.",
              follows=("length_explosion",)),
        Cause("value_reset", "the mean prediction jumped, rewards and KL did not: the value head lost its weights",
              "Resume with the value head's weights and its optimizer state, from a checkpoint before the jump.",
              follows=("reward_jump",)),
        Cause("unknown", "neither length, KL, reward nor the mean prediction jump with it as far as they are logged",
              "Log the KL per sequence, the greatest and least reward, the mean value and the explained variance; "
              "then ask again. A smaller learning rate is the safest first attempt; where the head never explained "
              "the returns, clip the change of the values (0.2) and let the head train before the policy does.",
              change=_THIRD, follows=("reward_jump", "learning_rate_too_high")),
    ),
    find=_value_spikes, needs=("loss_value",), applies=has_critic, follows=("value_jump",),
    source="Ziegler et al. (arXiv 1909.08593) for the penalty in the reward; TRL 0.11 docs/source/logging.mdx: the "
    "value loss spikes or becomes NaN when a run is not going well; the arithmetic of the size is steadyrl's own",
)  # fmt: skip


def _explains_little(run: Run) -> Result:
    series = run.needed("explained_variance")
    warm = max(MIN_STEPS, int(WARM_SHARE * len(series)))
    if len(series) < warm + MIN_STEPS:
        return Unknown(f"the value head is given {warm} steps to settle; few follow")
    steps, medians = block_medians(replace(series, steps=series.steps[warm:], values=series.values[warm:]))
    start = _lasting_from(medians < EV_BAD)
    if start is None:
        return None
    low = float(np.median(medians[start:]))
    cause, told = _low_cause(run, low)
    return Found(
        cause,
        "info" if low > EV_HARMS or (cause == "untrained_head" and learns(run)) else "warning",
        int(steps[start]),
        f"the value head explains returns worse than a constant: {told}",
        (f"the explained variance is {number(low)} (median of the last blocks, {series.source})",),
    )


def _lasting_from(bad: np.ndarray) -> int | None:
    """Return the index from which blocks are bad [k] to the end; None if those are fewer than three."""
    good = np.flatnonzero(~bad)
    start = int(good[-1]) + 1 if len(good) else 0
    return start if len(bad) - start >= FEWEST_BLOCKS else None


def _low_cause(run: Run, low: float) -> tuple[str, str]:
    spread, mean, value = run.get("return_std"), run.get("return_mean"), run.get("value_mean")
    level = abs(float(np.median(mean.values))) if mean is not None else 1.0
    if spread is not None and np.median(spread.values) <= CONSTANT * max(level, CONSTANT):
        return "constant_returns", "the returns do not vary, so there is nothing to explain"
    if mean is not None and value is not None and spread is not None:
        predicted, returned = together(value, mean)
        bias = float(np.median(np.abs(predicted.values - returned.values))) if len(predicted) else 0.0
        if bias >= np.sqrt(OFFSET_SHARE * (1.0 - low)) * float(np.median(spread.values)):
            return "offset", f"the mean prediction is off the mean return by {number(bias)}, most of the whole error"
    return "untrained_head", "the error is wider than the returns themselves, not merely shifted"


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
    series, spread, completions = run.needed("advantage_mean"), run.get("advantage_std"), setting(run, "batch_size")
    grouped = run.traits.grouped is True
    if run.trainer == "steadyrl" and not grouped:
        return None
    std = float(np.median(spread.values)) if spread is not None else 1.0 if run.settings.get("whitened") else None
    if std is None:
        return Unknown("the spread of the advantages is not known", ("advantage_std", "whitened"))
    # The error of a step's mean goes by completions, which whole advantages belong to; else by its scatter.
    scatter = float(np.std(np.diff(series.values)) / np.sqrt(2.0))
    error = std / float(np.sqrt(completions)) if completions else scatter
    limit = max(ADVANTAGE_FLOOR * std, ADVANTAGE_SE * error)
    steps, medians = block_medians(series)
    start = _lasting_from(np.abs(medians) > limit)
    if start is None or len(set(np.sign(medians[start:]))) > 1:
        return None
    level = float(np.median(medians[start:]))
    longer = f"long completions score {'better' if level > 0 else 'worse'} than short ones of the same prompt"
    return Found(
        "length_correlation" if grouped else "not_whitened",
        "info" if grouped or not run.traits.critic else "warning",
        int(steps[start]),
        f"the mean advantage stays at {number(level)} from step {steps[start]} on: "
        + (longer if grouped else "they are not centred over the tokens that train"),
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
        Cause("not_whitened", "the algorithm does not centre its advantages and the values lag behind the returns; or "
              "they are whitened over other tokens than those that train (padding counted in, or one part of the "
              "machines only)",
              "Whiten the advantages of each batch over its completion tokens.", change=to(whitened=True),
              follows=("advantage_baseline",)),
        Cause("length_correlation", "with a group baseline the mean over completions is 0 by construction; the mean "
              "over tokens is not if long completions score differently from short ones. No fault, but a pull on the "
              "length",
              "No fault by itself: watch the length, and divide the loss by all tokens of the batch."),
    ),
    find=_advantage, needs=("advantage_mean",), min_steps=MIN_STEPS,
    applies=lambda run: run.traits.trains_on == "sampled",
    source="N Implementation Details of RLHF (advantages are whitened, the mean taken out); Dr. GRPO for the length",
)  # fmt: skip
