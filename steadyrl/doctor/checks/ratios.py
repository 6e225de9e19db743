"""The ratio of the new to the old policy, and what is clipped of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from steadyrl.doctor.check import Cause, Check, Found, Result, Unknown
from steadyrl.doctor.remedies import calmer, learning_rate, times, to
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.measures import setting
from steadyrl.doctor.statistics.readings import (
    KL_OLD_LARGE,
    clips_by_design,
    large_updates,
    moves_at_once,
    number,
    update_size,
    updates_per_step,
    within,
)
from steadyrl.doctor.statistics.signals import LASTING, MIN_STEPS, SPIKE_WINDOW, SPIKE_Z, first_lasting, tail
from steadyrl.stats import MAD_TO_STD

RATIO_MEAN = (0.9, 1.1)  # its expectation is 1, exactly so in the first minibatch
RATIO_SKIP = 10.0  # TRL 0.11 skips a batch whose mean ratio is above it
RATIO_GREATEST = 100.0  # a single token whose probability grew a hundredfold within one step
# A working PPO run was seen at 0.24 (Stable-Baselines3's logger page), which is told as a warning, not as more.
CLIP_HIGH = 0.2
# GRPO's usual 0.01 to 0.05 are those of one or two updates per batch; with more it clips as PPO does.
CLIP_HIGH_GROUPED, FEW_UPDATES = 0.1, 2.0
MANY_EPOCHS = 2.0
KL_OLD_NOTABLE = 0.02  # nats per token: usual limits that stop the epochs are 0.01 to 0.05
WARMING = 0.2  # of the final learning rate: a first step that clips much cannot be due to it
LOSS_RATIOS = (0.5, 2.0)  # mean ratio at a spike of the loss
SPIKES_THAT_COUNT = 3
ADVANTAGE_SPIKE = 3.0  # times the median
MOST_CANDIDATES = 2000  # steps whose surroundings are looked at: a tenth of a second


def _ratio(run: Run) -> Result:
    found = _ratio_out(run)
    if found is None:
        return None
    series, since, text = found
    first = float(series.values[0])
    started_off = series.quantity == "ratio_mean" and not RATIO_MEAN[0] <= first <= RATIO_MEAN[1]
    large = large_updates(run, since)
    if started_off and not moves_at_once(run):
        cause = "old_logprobs"
        because: tuple[str, ...] = (f"it is {number(first)} at the first step already",)
    else:
        cause, because = ("learning_rate", large) if large else ("unknown", ())
    return Found(
        cause,
        "warning",
        since,
        f"The ratio of new to old probabilities is far from 1: {cause.replace('_', ' ')}.",
        (text, *because),
    )


def _ratio_out(run: Run) -> tuple[Series, int, str] | None:
    mean, greatest = run.get("ratio_mean"), run.get("ratio_max")
    if mean is not None:
        off = (mean.values < RATIO_MEAN[0]) | (mean.values > RATIO_MEAN[1])
        since = first_lasting(mean, off, LASTING)
        if since is not None:
            level = float(np.median(within(mean, since, int(mean.steps[-1])).values))
            return mean, since, f"the mean ratio is {number(level)} from step {since} on (median)"
        if mean.values.max() > RATIO_SKIP:
            at = int(mean.values.argmax())
            return mean, int(mean.steps[at]), f"the mean ratio is {number(mean.values[at])} at step {mean.steps[at]}"
    if greatest is not None:
        since = first_lasting(greatest, greatest.values > RATIO_GREATEST, LASTING)
        if since is not None:
            level = float(np.median(within(greatest, since, int(greatest.steps[-1])).values))
            return greatest, since, f"the greatest ratio is {number(level)} from step {since} on (median)"
    return None


def learning_moves(run: Run) -> bool:
    """Return False where every token is "clipped" and no advantage differs from 0: that number says nothing."""
    clipped, std = run.get("clip_fraction"), run.get("advantage_std")
    return clipped is None or not (clipped.values >= 1.0).all() or std is None or bool(std.values.any())


def _warming(run: Run) -> bool:
    """Return True if the first logged step had a small part of the run's learning rate."""
    logged, most = run.get("learning_rate"), learning_rate(run)
    return logged is not None and most is not None and float(logged.values[0]) < WARMING * most


def _clips(run: Run) -> Result:
    clipped = run.needed("clip_fraction")
    updates = updates_per_step(run)
    grouped = run.traits.critic is False and (updates is None or updates <= FEW_UPDATES)
    limit = CLIP_HIGH_GROUPED if grouped else CLIP_HIGH
    since = _level_above(clipped, limit)
    if since is None:
        return None
    cause, because = _clip_cause(run, clipped, limit, updates)
    level = float(np.median(within(clipped, since, int(clipped.steps[-1])).values))
    over = tail(clipped) <= limit / 2.0 and cause not in ("old_logprobs", "epochs")
    return Found(
        cause,
        "info" if over else "warning",
        since,
        f"{level:.0%} of the tokens are clipped: {cause.replace('_', ' ')}.",
        (f"the clip fraction is {number(level)} from step {since} on (median; limit {limit})", *because),
    )


def _level_above(series: Series, limit: float) -> int | None:
    """Return the first step of the first tenth of a run (10 points or more) whose median lies above a limit."""
    width = max(10, len(series) // 10)
    if len(series) < width:
        return None
    count = len(series) // width
    medians = np.median(series.values[len(series) - count * width :].reshape(count, width), axis=1)
    high = np.flatnonzero(medians > limit)
    return None if not len(high) else int(series.steps[len(series) - count * width + int(high[0]) * width])


def _clip_cause(run: Run, clipped: Series, limit: float, updates: float | None) -> tuple[str, tuple[str, ...]]:
    if updates is not None and updates <= 1:
        return "old_logprobs", ("there is one update per batch, whose ratio has to be exactly 1",)
    opening = float(np.median(clipped.values[:3]))
    if opening > limit and _warming(run) and not moves_at_once(run):
        text = f"it is {number(opening)} in the first steps, whose learning rate is a small part of the later one"
        return "old_logprobs", (text,)
    size, passes = update_size(run), _epochs(run)
    moved = None if size is None else float(np.median(size.values))
    much = () if moved is None else (f"KL of one step's updates: {number(moved)} nats/token (median)",)
    if passes is not None and passes > MANY_EPOCHS and (moved is None or moved > KL_OLD_NOTABLE):
        return "epochs", (f"{passes:g} passes over each batch", *much)
    if moved is not None and moved > KL_OLD_NOTABLE:
        return "learning_rate", much
    return "unknown", much


def _epochs(run: Run) -> float | None:
    logged = run.get("epochs")
    return setting(run, "epochs") if logged is None else float(np.median(logged.values))


def _policy_spikes(run: Run) -> Result:
    loss, ratio, greatest, size = (run.get(name) for name in ("loss_policy", "ratio_mean", "ratio_max", "kl_old"))
    size = update_size(run) if size is not None else None
    assert loss is not None, "needs says so"
    if ratio is None and greatest is None and size is None:
        why = "the loss alone says nothing: neither ratios nor the KL of a step's updates are logged"
        return Unknown(why, ("ratio_mean", "ratio_max", "kl_old"))
    suspects = [
        _steps_where(ratio, lambda x: (x < LOSS_RATIOS[0]) | (x > LOSS_RATIOS[1])),
        _steps_where(greatest, lambda x: x > RATIO_SKIP),
        _steps_where(size, lambda x: x > KL_OLD_LARGE),
    ]
    steps = _spiking(loss, np.unique(np.concatenate(suspects)))
    if not len(steps):
        return None
    cause, because = _spike_cause(run, steps, ratio, greatest)
    return Found(
        cause,
        "warning" if len(steps) >= SPIKES_THAT_COUNT else "info",
        int(steps[0]),
        f"The policy loss jumps at {len(steps)} steps together with the ratios: {cause.replace('_', ' ')}.",
        (f"steps {', '.join(str(step) for step in steps[:5])}{' ...' if len(steps) > 5 else ''}", *because),
    )


def _steps_where(series: Series | None, bad: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.zeros(0, np.int64) if series is None else series.steps[bad(series.values)]


def _spiking(loss: Series, suspects: np.ndarray) -> np.ndarray:
    """Return those of the suspect steps at which the loss lies far from the 100 points before."""
    at = np.searchsorted(loss.steps, suspects[:MOST_CANDIDATES])
    at = at[at < len(loss)]
    at = at[np.isin(loss.steps[at], suspects) & (at >= MIN_STEPS // 2)]
    if not len(at):
        return np.zeros(0, np.int64)
    # Where fewer than 100 points lie before, they are taken round and round: their median stays theirs.
    back = np.arange(SPIKE_WINDOW) % np.minimum(at, SPIKE_WINDOW)[:, None]
    earlier = loss.values[at[:, None] - 1 - back]  # [suspects, window]
    centre = np.median(earlier, axis=1)
    scale = MAD_TO_STD * np.median(np.abs(earlier - centre[:, None]), axis=1)
    far = np.abs(loss.values[at] - centre) > SPIKE_Z * np.maximum(scale, np.maximum(1e-3 * np.abs(centre), 1e-12))
    spiking: np.ndarray = loss.steps[at[far]]
    return spiking


def _spike_cause(
    run: Run, steps: np.ndarray, ratio: Series | None, greatest: Series | None
) -> tuple[str, tuple[str, ...]]:
    for name in ("advantage_max", "advantage_std"):
        series = run.get(name)
        if series is None:
            continue
        there = series.values[np.isin(series.steps, steps)]
        usual = float(np.median(series.values))
        if len(there) and float(np.median(there)) > ADVANTAGE_SPIKE * usual:
            return "advantages", (f"{name} is {number(float(np.median(there)))} there, usually {number(usual)}",)
    if ratio is not None and not RATIO_MEAN[0] <= ratio.values[0] <= RATIO_MEAN[1]:
        return "old_logprobs", (f"the mean ratio is {number(ratio.values[0])} at the first step",)
    for name, series in (("greatest", greatest), ("mean", ratio)):
        there = np.zeros(0) if series is None else series.values[np.isin(series.steps, steps)]
        if len(there) and there.max() > (RATIO_SKIP if name == "greatest" else LOSS_RATIOS[1]):
            return "ratio_blow_up", (f"the {name} ratio is up to {number(there.max())} there",)
    return "learning_rate", (f"the KL of one step's updates is above {KL_OLD_LARGE} nats/token there",)


SCORE_OLD = (
    "Compute the old log-probs with the trainer itself, in its precision and at the sampling temperature, before the "
    "first update; the first minibatch has to give a ratio of exactly 1, and nothing may be clipped there."
)
ratio_off = Check(
    name="ratio_off", topic="Policy",
    title="The new policy's probabilities are not near the old one's.",
    symptom="The mean of the ratio new to old probability is 1 in expectation, and exactly 1 in the first minibatch "
    "of a step. Here it stays outside 0.9 to 1.1, or exceeds 10 in a step, or single tokens stay above 100.",
    healthy="The mean ratio of new to old probabilities is 1, and no ratio is far above 10.",
    causes=(
        Cause("old_logprobs", "it is off from the first step, though the policy hardly moves there: the old log-probs "
              "come from another model, precision, temperature or mask than the new ones",
              SCORE_OLD, follows=("sampler_mismatch",), measured="policy_dropout"),
        Cause("learning_rate", "it went off later, with large updates (KL to the old policy, clip fraction)",
              "Lower the learning rate, make one epoch, skip batches with a mean ratio above 10.", change=calmer,
              follows=("learning_rate_too_high",), moves=("learning_rate",)),
        Cause("unknown", "neither",
              "Log the ratio of the first minibatch (it has to be 1) and the KL of one step's updates.",
              follows=("learning_rate_too_high", "sampler_mismatch")),
    ),
    find=_ratio, needs=("ratio_mean|ratio_max",),
    source="TRL 0.11 ppo_trainer.py (ratio_threshold 10) and its logging page (2.0, 1000 or 0.1 is too drastic); N "
    "Implementation Details of RLHF (ratio exactly 1 in the first minibatch)",
)  # fmt: skip
clip_fraction_high = Check(
    name="clip_fraction_high", topic="Policy",
    title="Much of the policy's update is clipped away.",
    symptom="The share of tokens whose ratio is clipped stays above 0.2 (above 0.1 without a critic and with one or "
    "two updates per batch). Clipped tokens give no gradient: the batch is used up before its passes end. Algorithms "
    "that clip most by design (GSPO, CISPO) are not judged. Where it has fallen to half of that by the end it is told "
    "as information.",
    healthy="Fewer than a fifth of the tokens are clipped.",
    causes=(
        Cause("old_logprobs", "it clips although there is one update per batch, or already at the first steps of a "
              "warm-up that hardly move the policy: before any update the ratio has to be 1",
              SCORE_OLD, follows=("ratio_off", "sampler_mismatch"), measured="policy_dropout"),
        Cause("epochs", "more than two passes over each batch, and a KL to the old policy that shows it",
              "Make one or two passes over a batch.", change=to(epochs=1), follows=("learning_rate_too_high",),
              moves=("epochs", "learning_rate"), measured="epochs_8"),
        Cause("learning_rate", "few passes, and a large KL to the old policy",
              "Halve the learning rate, or make minibatches larger.", change=times("learning_rate", 0.5),
              follows=("learning_rate_too_high",), moves=("learning_rate",)),
        Cause("unknown", "the KL to the old policy is not logged, or small",
              "Log the KL of one step's updates per epoch: if it grows with the epochs make fewer, else lower the "
              "learning rate. A wider clip range comes last.", follows=("learning_rate_too_high", "sampler_mismatch")),
    ),
    find=_clips, needs=("clip_fraction",), applies=lambda run: not clips_by_design(run) and learning_moves(run),
    source="Stable-Baselines3's logger page (0.243 in a working run); GSPO (arXiv 2507.18071: a range of 3e-4, a "
    "thousandth of the usual one)",
)  # fmt: skip
policy_loss_spikes = Check(
    name="policy_loss_spikes", topic="Policy",
    title="The policy loss jumps, and the ratios say that the updates did it.",
    symptom="Steps whose policy loss lies 6 or more usual deviations from the 100 steps before, and whose ratio or KL "
    "to the old policy is out of bounds too. The loss alone says little: it is near 0 by construction and its sign "
    "and size carry no meaning. Three such steps make a warning.",
    healthy="The policy loss stays near 0, without repeated spikes.",
    causes=(
        Cause("advantages", "the greatest advantage or the spread of the advantages jumps at the same steps",
              "Clip rewards and put a floor under the standard deviation that advantages are divided by.",
              follows=("reward_jump", "reward_scale", "value_loss_spikes"), moves=("reward_limit", "learning_rate")),
        Cause("ratio_blow_up", "a ratio above 10 and no such jump: the clip bounds the loss from one side only, and "
              "tokens with a negative advantage and a large ratio are not bounded at all",
              "Skip batches whose mean ratio is above 10, bound the loss of negative advantages as well (dual clip, "
              "3.0), and lower the learning rate.", change=calmer, follows=("ratio_off", "learning_rate_too_high")),
        Cause("old_logprobs", "the mean ratio is off from the first step",
              SCORE_OLD, follows=("ratio_off",)),
        Cause("learning_rate", "the KL to the old policy is large at these steps",
              "Lower the learning rate, and stop the epochs at a limit of KL to the old policy.", change=calmer,
              follows=("learning_rate_too_high",), moves=("learning_rate",), measured="lr_x100"),
    ),
    find=_policy_spikes, needs=("loss_policy",), min_steps=MIN_STEPS,
    source="TRL 0.11 ppo_trainer.py (ratio_threshold 10, PR #488); verl core_algos.py (dual clip 3.0)",
)  # fmt: skip
