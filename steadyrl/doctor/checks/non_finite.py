"""Numbers that are none: NaN and infinity, which came first, and how trainers hide them."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.check import Cause, Check, Found, Result
from steadyrl.doctor.remedies import times
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.signals import first_lasting

# What enters what: of several that break at the same step, the one that stands first here broke the others.
ORDER = (
    "reward", "kl_sampler", "kl_ref", "kl_old", "ratio_mean", "ratio_max", "entropy", "value_mean", "return_mean",
    "advantage_mean", "advantage_std", "loss_value", "loss_policy", "loss_kl", "loss", "grad_norm_value", "grad_norm",
)  # fmt: skip
CAUSES = {
    "reward": ("reward", "the reward itself is not a number: whatever scores the texts gave it"),
    "grad_norm": ("gradient", "the loss was finite and its gradient was not: an overflow in the backward pass"),
    "loss_value": ("values", "the value head broke first"),
    "value_mean": ("values", "the value head broke first"),
    "return_mean": ("values", "the returns broke first"),
    "grad_norm_value": ("values", "the value head broke first"),
    "loss": ("loss", "the loss broke first of what is logged"),
}
LOG_PROBS = ("log_probs", "log-probabilities or their ratio overflowed first: a step too large, or half precision")
LASTING = 3  # points in a row: a single one can be a skipped step


def _non_finite(run: Run) -> Result:
    broken = {name: bad for name in ORDER for several in run.series.get(name, ()) if len(bad := _bad_steps(several))}
    if not broken:
        return None
    first = min(broken, key=lambda name: int(broken[name][0]))  # of several at one step the first of ORDER
    since = int(broken[first][0])
    ends = {name: [series.values for series in run.series[name] if len(series)] for name in broken}
    lost = [name for name, several in ends.items() if not all(np.isfinite(values[-1]) for values in several)]
    gone = any(not np.isfinite(values[-LASTING:]).any() for name in lost for values in ends[name])
    cause, told = CAUSES.get(first, LOG_PROBS)
    if _hidden(run, broken):
        cause, told = "hidden", "the loss in the log stands still meanwhile: its NaN was replaced by an earlier mean"
    scaler = list(broken) == ["grad_norm"] and not lost
    return Found(
        "skipped_steps" if scaler else cause,
        "critical" if gone else "info" if scaler else "warning",
        since,
        f"{first} is not finite at step {since}"
        + (f", and {', '.join(lost)} to the end: {told}" if lost else f": single steps, finite numbers follow; {told}"),
        tuple(f"{name}: first at step {bad[0]}, {len(bad)} times in all" for name, bad in broken.items()),
    )


def _bad_steps(series: Series) -> np.ndarray:
    """Return the steps [m] at which a series is not finite."""
    bad: np.ndarray = series.steps[~np.isfinite(series.values)]
    return bad


def _hidden(run: Run, broken: dict[str, np.ndarray]) -> bool:
    """Return True if the loss repeats itself exactly where the gradient norm is not finite."""
    loss = run.get("loss")
    if "grad_norm" not in broken or "loss" in broken or loss is None:
        return False
    same = np.append(False, np.diff(loss.values) == 0) & np.isin(loss.steps, broken["grad_norm"])
    return first_lasting(loss, same, LASTING - 1) is not None


BACK = "Go on from the last checkpoint before the first such step"
non_finite = Check(
    name="non_finite", topic="Sampling and numbers",
    title="NaN or infinity among the logged numbers.",
    symptom="A metric that training depends on is NaN or infinite. If its last three values are, or all that are "
    "logged, the weights are lost: everything after the first such step is worth nothing (critical). Numbers that may "
    "be undefined, such as the explained variance of equal returns, are mentioned only. The metric that broke first "
    "names the cause, and of several in one step the one that the others are computed from.",
    healthy="No metric is NaN or infinite.",
    causes=(
        Cause("reward", "the reward first: the scorer returned NaN",
              "Find the rollouts around the first such step whose reward is not a number. Let the reward function "
              "return None (unscored) for what it cannot score, and guard its divisions, logarithms and empty "
              "averages. Then go on from the last checkpoint before; the learning rate is not at fault."),
        Cause("log_probs", "KL, ratio or entropy first",
              BACK + ", with a third of the learning rate, and compute log-probabilities in bfloat16 or float32.",
              change=times("learning_rate", 1 / 3), measured="overflow_logprobs; published logs of verl and TRL"),
        Cause("values", "the value head or the returns first",
              BACK + ", with a smaller learning rate or clipping for the value head; bound the rewards that make its "
              "returns. If it is so from the first step, see that the value model was loaded and its precision is "
              "right.", measured="published log of verl"),
        Cause("gradient", "the gradient norm only, while the loss was finite: an overflow in the backward pass",
              BACK + ", with the backward pass in bfloat16 or float32, or a loss scaler that skips such steps.",
              measured="overflow_gradient"),
        Cause("loss", "the loss first",
              BACK + ", and log the parts of the loss: the one that is not a number first says whether a division by "
              "an empty mask, the KL or the value head is at fault.", measured="published log of "
              "ChatGLM-Efficient-Tuning"),
        Cause("hidden", "the loss stands still at one number while the gradient norm is NaN: Hugging Face trainers "
              "replace a NaN loss in the log by the mean of the losses before (logging_nan_inf_filter, on by default)",
              BACK + ", with logging_nan_inf_filter off, so that the log shows the loss as it is."),
        Cause("skipped_steps", "single infinite gradient norms with float16, finite ones after: the loss scaler skips "
              "such steps",
              "Nothing, if the loss scaler of float16 skipped these steps; bfloat16 needs no scaler."),
    ),
    find=_non_finite,
    follows=("value_loss_spikes", "policy_loss_spikes", "grad_norm", "ratio_off", "learning_rate_too_high"),
    source="transformers 5.23.0 training_args.py and trainer.py (logging_nan_inf_filter); TRL #6702",
)  # fmt: skip
