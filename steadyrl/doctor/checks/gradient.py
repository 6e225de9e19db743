"""The gradient's norm: spikes, growth, zero, clipping, and how to log it."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.check import Result, Unclear, check
from steadyrl.doctor.checks.measures import setting, share_with_spike
from steadyrl.doctor.checks.readings import number
from steadyrl.doctor.checks.remedies import scaled_learning_rate
from steadyrl.doctor.levels import measure
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.signals import BURSTS_FROM, MIN_STEPS, bursts, first_lasting, head, tail
from steadyrl.types import Finding

SPIKE_FACTOR = 5.0  # times the usual norm; noise of a factor 1.6 (lognormal, 0.5) reaches it once in a thousand steps
EXPLODED = 10.0  # times the first level
ZERO = 1e-12  # of a norm: below every gradient of a model that learns
ZERO_SHARE = 0.5  # of the steps
ALWAYS_CLIPPED = 0.95
FAR_ABOVE = 10.0  # median norm over the limit: nine tenths of the length is cut away
CERTAINLY_ABOVE = 3.0  # median norm over the limit, from which few gradients can have passed unclipped
MOSTLY = 0.5
SAME_NORM = 1e-3  # relative distance to the limit at which a norm was logged after clipping
HOW_TO_LOG = {
    "steadyrl": "it logs grad_norm with every step; this log was cut or written by another version",
    "trl-ppo": "its own loop does not log it: call accelerator.clip_grad_norm_ in a subclass's step and log what it "
    "returns",
    "trl-ppo-old": "its loop does not log it: set max_grad_norm, and log what accelerator.clip_grad_norm_ returns",
    "verl": "it logs actor/grad_norm and critic/grad_norm; see that both reach this log",
    "openrlhf": "newer versions log actor_grad_norm; update, or log what the strategy's clipping returns",
}


@check()
def grad_norm(run: Run) -> Result | list[Result]:
    """Gradient norm spikes, grows, is zero, always clipped, or not logged.

    Symptom: the norm before clipping, often the earliest sign of an unstable run, does one of the things below.

    Causes and what tells them apart:
    - spikes (warning): several steps with more than 5 times the norm of the steps before. With reward spikes at those
      steps the cause is reward_outlier, with value-loss spikes value_loss, with jumps of the KL or the ratio
      large_updates, else unknown. A single spike is not reported.
    - exploding (warning): the norm's level at the end is 10 times that at the start.
    - zero: the norm is exactly 0. With groups that have no signal the cause is no_signal (all advantages are 0); with
      none of that it is detached: the loss does not reach the trained weights (a frozen model, an adapter that is
      switched off). Critical if so in every step.
    - always_clipped (worth knowing): nearly every gradient is clipped. Adam and its kin divide by the usual size of the
      gradients, which takes out any constant scale: the limit changes the length of a step little, and only evens out
      what single steps weigh. With plain SGD it is the limit, and not the learning rate, that sets the size of the
      step; then a warning if the norm is 10 times the limit and more.
    - logged_after_clipping (worth knowing): the norm is never above the limit and mostly equal to it: what is logged
      was clipped before and shows nothing.
    - not logged: it cannot be told. The answer then says how to log it with the trainer at hand.

    Remedy: for spikes and growth, half the learning rate, fewer epochs, and a checkpoint some 100 steps before the
    first spike; skipping the batches of the spike helped in large runs. Clipping every gradient needs none with Adam:
    raise max_grad_norm only if large gradients are to count for more.

    Source: PaLM, as quoted by others (restart some 100 steps before a spike, skip its batches); ZClip (arXiv
    2504.02507, abstract) on spikes of the norm; Adam (arXiv 1412.6980, section 2.1) on its steps, which do not change
    with the scale of the gradient; OPT-175B chronicles (metaseq, 56_percent_update.md): norms were watched
    and the learning rate lowered; TRL #3857 for a norm of 0 without signal.
    """
    norm = run.get("grad_norm")
    if norm is None:
        usual = "Hugging Face trainers log it as grad_norm; in your own loop, log what clip_grad_norm_ returns"
        hint = HOW_TO_LOG.get(run.trainer, usual)
        return Unclear("grad_norm", f"the gradient norm is not logged; {run.trainer}: {hint}", ("grad_norm",))
    if len(norm) < MIN_STEPS:
        return Unclear("grad_norm", f"{len(norm)} steps are too few to tell what is usual")
    zero = _zero(run, norm)
    if zero is not None:
        return zero
    if len(norm) <= BURSTS_FROM:
        return Unclear("grad_norm", f"{len(norm)} steps are too few to tell spikes from noise")
    return [_spikes(run, norm), _exploding(run, norm), _clipped(run, norm)]


def _zero(run: Run, norm: Series) -> Finding | None:
    nothing = norm.values <= ZERO
    if nothing.mean() <= ZERO_SHARE:
        return None
    share, spread = run.get("no_signal"), run.get("reward_std")
    equal = (share is not None and np.median(share.values) > 0.9) or (spread is not None and not spread.values.any())
    told = "the rewards do not differ" if equal else "the rewards differ, so the loss does not reach the weights"
    return Finding(
        check="grad_norm",
        severity="critical" if nothing.all() else "warning",
        since_step=int(norm.steps[nothing.argmax()]),
        cause="no_signal" if equal else "detached",
        message=f"the gradient is exactly 0 in {nothing.mean():.0%} of the steps: {told}",
        evidence=(f"{int(nothing.sum())} of {len(norm)} steps have a norm of 0",),
        remedy="Mend the reward or the choice of problems."
        if equal
        else "See which weights require a gradient, and that the adapter is switched on when the loss is computed.",
        source="TRL #3857",
        follows="no_signal_groups" if equal and share is not None else "",
    )


def _spikes(run: Run, norm: Series) -> Finding | None:
    far = bursts(norm, SPIKE_FACTOR)
    if not len(far):
        return None
    steps = norm.steps[far]
    candidates = (
        ("reward_outlier", "reward_max"),
        ("reward_outlier", "reward_min"),
        ("value_loss", "loss_value"),
        ("large_updates", "kl_old"),
        ("large_updates", "ratio_max"),
        ("large_updates", "kl_ref"),
    )
    shares = ((cause, name, share_with_spike(run.get(name), steps)) for cause, name in candidates)
    cause, name, share = next((c for c in shares if c[2] >= MOSTLY), ("unknown", "", 0.0))
    told = f"{name} jumps at or before {share:.0%} of them" if name else "nothing else that is logged jumps with it"
    top = far[np.argmax(norm.values[far])]
    return Finding(
        check="grad_norm",
        severity="warning",
        since_step=int(steps[0]),
        cause=cause,
        message=f"the gradient norm spikes from step {steps[0]} on, up to {number(float(norm.values[top]))}: {told}",
        evidence=(
            f"{len(far)} steps above {SPIKE_FACTOR:g} times the level before them; the median is "
            f"{number(float(np.median(norm.values)))}, the greatest is at step {norm.steps[top]}",
        ),
        remedy="Half the learning rate, and go on from a checkpoint some 100 steps before the first spike; bound the "
        "reward if it has outliers.",
        overrides=scaled_learning_rate(run, 0.5),
        source="ZClip, arXiv 2504.02507 (abstract); OPT-175B chronicles",
        follows="value_loss_spikes" if cause == "value_loss" else "",
    )


def _exploding(run: Run, norm: Series) -> Finding | None:
    levels, start, end = measure(norm), head(norm), tail(norm)
    if levels is None or not levels.rose or start <= 0 or end < EXPLODED * start:
        return None
    return Finding(
        check="grad_norm",
        severity="warning",
        since_step=first_lasting(norm, norm.values > EXPLODED * start),
        cause="exploding",
        message=f"the gradient norm grew from {number(start)} to {number(end)}",
        evidence=(f"medians of the first and the last steps: {number(start)} and {number(end)}",),
        remedy="Half the learning rate, and go on from a checkpoint before the growth; see whether entropy or the "
        "sampler's mismatch changed first.",
        overrides=scaled_learning_rate(run, 0.5),
        source="OPT-175B chronicles",
    )


def _clipped(run: Run, norm: Series) -> Finding | None:
    share, limit = run.get("grad_clipped"), setting(run, "max_grad_norm")
    typical = tail(norm, 0.5)
    over = typical / limit if limit else 0.0
    if limit and norm.values.max() <= limit * (1 + SAME_NORM) and abs(over - 1) < SAME_NORM:
        return Finding(
            check="grad_norm",
            severity="info",
            since_step=None,
            cause="logged_after_clipping",
            message=f"the gradient norm is never above the limit of {number(limit)}: it was logged after clipping",
            evidence=(f"median norm {number(typical)}, greatest {number(float(norm.values.max()))}",),
            remedy="Log the norm that the clipping function returns: the one before clipping.",
            source="arithmetic",
        )
    if not limit or not (tail(share, 0.5) >= ALWAYS_CLIPPED if share is not None else over > CERTAINLY_ABOVE):
        return None
    return _always_clipped(run, typical, limit)


def _always_clipped(run: Run, typical: float, limit: float) -> Finding:
    """Say what clipping every gradient does: with Adam, which is taken for granted where nothing is known, little."""
    over, optimizer = typical / limit, str(run.settings.get("optimizer", ""))
    plain = "sgd" in optimizer.lower()
    far = plain and over > FAR_ABOVE
    does = (
        f"with {optimizer} the limit sets the size of the steps, not the learning rate"
        if plain
        else "with Adam the limit changes the length of the steps little, and evens out what single steps weigh"
    )
    return Finding(
        check="grad_norm",
        severity="warning" if far else "info",
        since_step=None,
        cause="always_clipped",
        message=f"nearly every gradient is clipped (median norm {number(typical)}, limit {number(limit)}): {does}",
        evidence=(f"the median norm is {number(over)} times the limit",),
        remedy="Set the limit near the usual norm and lower the learning rate instead."
        if plain
        else "Nothing has to be done; raise max_grad_norm only if large gradients are to count for more.",
        overrides=(f"update.max_grad_norm={typical:.2g}",) if far else (),
        source="arithmetic of clipping" if plain else "Adam, arXiv 1412.6980, section 2.1",
    )
