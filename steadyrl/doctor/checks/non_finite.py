"""Numbers that are none: NaN and infinity, which came first, and how trainers hide them."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.check import Result, check
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.signals import first_lasting
from steadyrl.types import Finding

# What enters what: of several that break at the same step, the one that stands first here broke the others.
ORDER = (
    "reward",
    "kl_sampler",
    "kl_ref",
    "kl_old",
    "ratio_mean",
    "ratio_max",
    "entropy",
    "value_mean",
    "return_mean",
    "advantage_mean",
    "advantage_std",
    "loss_value",
    "loss_policy",
    "loss_kl",
    "loss",
    "grad_norm",
)
CAUSES = {
    "reward": ("reward", "the reward itself is not a number: whatever scores the texts gave it"),
    "grad_norm": ("gradient", "the loss was finite and its gradient was not: an overflow in the backward pass"),
    "loss_value": ("values", "the value head broke first"),
    "value_mean": ("values", "the value head broke first"),
    "return_mean": ("values", "the returns broke first"),
    "loss": ("loss", "the loss broke first of what is logged"),
}
LOG_PROBS = ("log_probs", "log-probabilities or their ratio overflowed first: a step too large, or half precision")
BACK = "Go on from the last checkpoint before step {since}"
REMEDIES = {
    "reward": "Find the rollouts around step {since} whose reward is not a number. Let the reward function return None "
    "(unscored) for what it cannot score, and guard its divisions, logarithms and empty averages. Then go on from the "
    "last checkpoint before; the learning rate is not at fault.",
    "log_probs": BACK + ", with a third of the learning rate, and compute log-probabilities in bfloat16 or float32.",
    "values": BACK + ", with a smaller learning rate or clipping for the value head; bound the rewards that make its "
    "returns.",
    "gradient": BACK + ", with the backward pass in bfloat16 or float32, or a loss scaler that skips such steps.",
    "loss": BACK + ", and log the parts of the loss: the one that is not a number first says whether a division by an "
    "empty mask, the KL or the value head is at fault.",
    "hidden": BACK + ", with logging_nan_inf_filter off, so that the log shows the loss as it is.",
    "skipped_steps": "Nothing, if the loss scaler of float16 skipped these steps; bfloat16 needs no scaler.",
}
LASTING = 3  # points in a row: a single one can be a skipped step


@check()
def non_finite(run: Run) -> Result:
    """NaN or infinity among the logged numbers.

    Symptom: a metric that training depends on is NaN or infinite. If that lasts to the end, the weights are lost:
    everything after the first such step is worth nothing (critical). Numbers that may be undefined, such as the
    explained variance of equal returns or the mean of a reward part that no completion has, are mentioned only.

    Causes and what tells them apart:
    The metric that broke first, and of several in one step the one that the others are computed from.
    - reward: the scorer returned NaN. log_probs: KL, ratio or entropy first. values: the value head first.
    - gradient: only the gradient norm, while the loss was finite: an overflow in the backward pass. With float16 single
      infinite norms are normal: the loss scaler skips such steps (worth knowing only).
    - loss: the loss first.
    - hidden: the loss stands still at one number while the gradient norm is NaN. Hugging Face trainers replace a NaN
      loss in the log by the mean of the losses before (logging_nan_inf_filter, on by default).

    Remedy: for reward, mend the reward function: it returns None (unscored) for what it cannot score, never NaN, and
    guards its divisions. For log_probs, go on from the last checkpoint before the first such step with a third of the
    learning rate, in bfloat16 or float32; for values, a smaller learning rate of the value head and bounded rewards;
    for gradient, a wider number format in the backward pass. For loss and hidden, log the parts of the loss and switch
    the filter off, to see what breaks first.

    Source: transformers 5.23.0 training_args.py and trainer.py (logging_nan_inf_filter); TRL #6702.
    """
    broken = {name: bad for name, several in run.series.items() if (bad := _broken(several)) is not None}
    core = [name for name in ORDER if name in broken]
    if not core:
        return _undefined(broken)
    first = min(core, key=lambda name: (int(broken[name].steps[0]), ORDER.index(name)))
    since = int(broken[first].steps[0])
    lost = [name for name in core if _to_the_end(run, name)]
    cause, told = CAUSES.get(first, LOG_PROBS)
    if _hidden(run, broken):
        cause, told = "hidden", "the loss in the log stands still meanwhile: its NaN was replaced by an earlier mean"
    scaler = core == ["grad_norm"] and not lost
    cause = "skipped_steps" if scaler else cause
    order = sorted(core, key=lambda name: (int(broken[name].steps[0]), ORDER.index(name)))
    return Finding(
        check="non_finite",
        severity="critical" if lost else "info" if scaler else "warning",
        since_step=since,
        cause=cause,
        message=f"{first} is not finite at step {since}"
        + (f", and {', '.join(lost)} to the end: {told}" if lost else ": single steps, the run recovered"),
        evidence=tuple(
            f"{name}: first at step {broken[name].steps[0]}, {len(broken[name])} times in all" for name in order
        ),
        remedy=REMEDIES[cause].format(since=since),
        source="transformers 5.23.0, trainer.py (logging_nan_inf_filter)",
    )


def _broken(several: tuple[Series, ...]) -> Series | None:
    """Return the non-finite entries of a quantity, of the first series that has any."""
    for series in several:
        bad = ~np.isfinite(series.values)
        if bad.any():
            at = np.flatnonzero(bad)
            return Series(
                series.quantity, series.unit, series.estimator, series.source, series.steps[at], series.values[at]
            )
    return None


def _to_the_end(run: Run, name: str) -> bool:
    """Return True if a quantity's last values are all non-finite, three or more of them."""
    return any(
        len(series) >= LASTING and not np.isfinite(series.values[-LASTING:]).any() for series in run.series[name]
    )


def _hidden(run: Run, broken: dict[str, Series]) -> bool:
    """Return True if the loss repeats itself exactly where the gradient norm is not finite."""
    loss = run.get("loss")
    if "grad_norm" not in broken or "loss" in broken or loss is None:
        return False
    inside = np.isin(loss.steps, broken["grad_norm"].steps)
    same = np.append(False, np.diff(loss.values) == 0) & inside
    return first_lasting(loss, same, LASTING - 1) is not None


def _undefined(broken: dict[str, Series]) -> Finding | None:
    """Return what is worth knowing of quantities that may be undefined; None where there are none."""
    if not broken:
        return None
    names = sorted(broken)
    return Finding(
        check="non_finite",
        severity="info",
        since_step=min(int(bad.steps[0]) for bad in broken.values()),
        cause="undefined",
        message=f"{', '.join(names)}: not a number at some steps; training does not depend on "
        f"{'it' if len(names) == 1 else 'them'}",
        evidence=tuple(f"{name}: {len(broken[name])} times, first at step {broken[name].steps[0]}" for name in names),
        remedy="Nothing, if the measurement has no meaning there (equal returns, no completion with that part).",
        source="definition of these measurements",
    )
