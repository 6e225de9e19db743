"""Numbers that are none: NaN and infinity, which came first, and how trainers hide them."""

from __future__ import annotations

from itertools import starmap

import numpy as np

from steadyrl.core.words import counted
from steadyrl.doctor.check import Found, Result, check
from steadyrl.doctor.series import Run
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
FIRST_GRADIENT = (
    "No step was right, so that no checkpoint helps: see that the weights and the lengths of the first batch are what "
    "they should be, and compute the backward pass in bfloat16 or float32."
)
LASTING = 3  # points in a row: a single one can be a skipped step


@check("non_finite")
def non_finite(run: Run) -> Result:
    logged = [(name, series) for name in ORDER for series in run.series.get(name, ())]
    broken = {name: bad for name, series in logged if len(bad := series.steps[~np.isfinite(series.values)])}
    if not broken:
        return None
    first = min(broken, key=lambda name: int(broken[name][0]))  # of several at one step the first of ORDER
    onset = int(broken[first][0])
    ends = {name: [series.values for series in run.series[name] if len(series)] for name in broken}
    lost = [name for name, last_rows in ends.items() if not all(np.isfinite(values[-1]) for values in last_rows)]
    stays_broken = any(not np.isfinite(values[-LASTING:]).any() for name in lost for values in ends[name])
    cause, reason = CAUSES.get(first, LOG_PROBS)
    if cause == "gradient" and run.get("loss") is None and run.get("loss_policy") is None:
        reason = "no loss is read that could tell whether it broke first"
    together = sum(int(bad[0]) == onset for bad in broken.values()) > 1
    if together and onset == run.span[0]:
        reason = "other numbers were broken in the first row, too, so that nothing tells which was first"
    elif together and cause == "values":
        reason = "other numbers broke at the same step, so that nothing tells which was first"
    if _hidden(run, broken):
        cause, reason = "hidden", "the loss in the log stands still meanwhile: its NaN was replaced by an earlier mean"
    logged_as = {name: next(s.source or name for s in run.series[name]) for name in broken}
    names = ", ".join(logged_as[name] for name in lost if name != first)
    rows, bad_rows = sum(map(len, run.series[first])), len(broken[first])
    when = "in the only row" if run.steps == 1 else f"from step {onset}"
    if first not in lost and run.steps > 1:
        when = f"at step {onset}" if bad_rows == 1 else f"in {bad_rows} of {rows} rows, the first at step {onset}"
    if first in lost:
        when += ("" if run.steps == 1 else " to the end") + (
            f", and neither {'are' if ', ' in names else 'is'} {names}" if names else ""
        )
    elif lost:
        when += f", and {names} to the end"
    later = {logged_as[name]: bad for name, bad in broken.items() if name != first and run.steps > 1}
    sentence = f"{logged_as[first]} is not finite {when}"
    scaler = list(broken) == ["grad_norm"] and not lost
    return Found(
        "skipped_steps" if scaler else cause,
        "critical" if stays_broken else "info" if scaler else "warning",
        onset,
        f"{sentence}: {'' if lost else 'finite numbers follow; '}{reason}",
        (sentence, *starmap(_broken_rows, later.items())),
        FIRST_GRADIENT if cause == "gradient" and onset == run.span[0] else "",
    )


def _broken_rows(name: str, steps: np.ndarray) -> str:
    return f"{name} is not finite in {counted(len(steps), 'row')}, first at step {steps[0]}"


def _hidden(run: Run, broken: dict[str, np.ndarray]) -> bool:
    """Return True if the loss repeats itself exactly where the gradient norm is not finite."""
    loss = run.get("loss")
    if "grad_norm" not in broken or "loss" in broken or loss is None:
        return False
    same = np.append(False, np.diff(loss.values) == 0) & np.isin(loss.steps, broken["grad_norm"])
    return first_lasting(loss, same, LASTING - 1) is not None
