"""The KL to the reference is measured below 0, which no KL can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steadyrl.core.stats import MAD_TO_STD
from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.checks.sampler import sampling_gap, warps_by_settings
from steadyrl.doctor.remedies import go_back
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.readings import number, setting, within
from steadyrl.doctor.statistics.signals import LASTING, long_run_error, tail
from steadyrl.doctor.statistics.units import SEQUENCE, TOKEN, find

WINDOW = 10  # steps whose mean is judged: single steps go below 0 by chance
LEAST_WITH_ERRORS = 3  # steps, where the standard error of each is logged
LEAST_WITHOUT = 30  # steps, where it has to be estimated from the spread over steps
Z = 5.0  # errors below 0, of a window's mean, with logged errors: beyond chance in a million steps
Z_SPREAD = 4.0  # with errors from the spread, and two windows in a row
# Smaller means can be rounding: log-probs in bfloat16 differ by more than this, float32's by 1e-6.
FLOOR = {TOKEN: 1e-3, SEQUENCE: 1e-2, "": 1e-2}
# TRL 0.11 warns below -1 nat per sequence; -0.05 per token is the same at 20 tokens.
DEEP = {TOKEN: -0.05, SEQUENCE: -1.0, "": -1.0}
CHANCE = 1e-6  # of a sound run to look as bad as one whose single updates are judged
DEEPER = 2.0  # times as deep, where a few rows are all there is
PAD_MASS = 0.5  # E[ref/p] - 1 = k3 - k1; simulated 2.13 with padding in the mask, 0.18 at most with a mismatch
PAD_K3 = 1.5  # k3 over |k1|; simulated 2.2 with padding, 0.7 to 1.3 with a sampling mismatch or noise


@dataclass(frozen=True)
class _Below:
    """Where a KL lies below 0."""

    onset: int  # the first step
    level: float  # the median from there on
    noise: str  # what chance could do there, in words
    lasts: bool  # whether it still is at the end
    at_start: bool  # whether it holds from the first steps on, at the size that it has later


@check("negative_kl")
def negative_kl(run: Run) -> Result:
    # Only an estimate that can be negative shows it; the one with standard errors comes first.
    signed = [s.finite() for s in run.series.get("kl_ref", ()) if s.estimator in ("k1", "") and len(s.finite())]
    with_errors = (s for s in signed if run.get("kl_ref_se", s.unit) is not None)
    if not signed:
        message = "only estimators that cannot be negative are logged (k2, k3, abs or exact), and they would hide it"
        return Unknown(message, ("kl_ref (k1)",))
    kl = next(with_errors, signed[0])
    if kl.least >= 0:
        return None
    errors = run.get("kl_ref_se", kl.unit)
    short = len(kl) < (LEAST_WITHOUT if errors is None else LEAST_WITH_ERRORS)
    below = _all_below(kl) if short else _below(kl, errors) or _on_the_whole(kl)
    if below is None and errors is None:
        below = _beyond_chance(run, kl, min(LASTING, (len(kl) + 1) // 2))
    if below is None and short:
        return Unknown(f"it falls below 0, but {len(kl)} steps do not tell a fault from noise", ("kl_ref_se",))
    if below is None:
        return None
    cause, because = _cause(run, kl, below)
    unit, coefficient = kl.unit or "(unit unknown)", run.get("kl_coef")
    unused = coefficient is not None and not coefficient.values.any()
    grave = below.lasts and below.level < DEEP.get(kl.unit, DEEP[""]) and not unused
    paid = "" if unused else "; a penalty on it pays the policy for drifting"
    evidence = (
        f"{kl.source or kl.quantity}: about {number(below.level)} {unit} from step {below.onset} on, {below.noise}"
        f"{'' if below.lasts else '; later it is no longer so'}"
    )
    return Found(
        cause,
        "critical" if grave else "warning",
        below.onset,
        f"the KL to the reference is below 0 by more than its error, which no KL can be{paid}",
        (evidence, *because),
        f"{negative_kl.cause(cause).remedy} Then {go_back(below.onset)}.",
    )


def _all_below(kl: Series) -> _Below | None:
    """Find in a few rows that all lie deep below 0, and closer to each other than to it, but for a first one of 0."""
    rows = kl.select(slice(int(kl.first == 0), None))
    if len(rows) < LEAST_WITH_ERRORS or rows.greatest > DEEPER * DEEP.get(kl.unit, DEEP[""]):
        return None
    level, error = float(rows.values.mean()), float(rows.values.std(ddof=1) / np.sqrt(len(rows)))
    if -level <= Z_SPREAD * error:
        return None
    return _Below(int(rows.steps[0]), level, _error_of(error, len(rows)), True, len(rows) == len(kl))


def _on_the_whole(kl: Series) -> _Below | None:
    """Find a mean over the whole log below 0 by more than its error, where windows of ten steps are too noisy."""
    level, error = float(kl.values.mean()), long_run_error(kl.values)
    if level >= -max(FLOOR.get(kl.unit, FLOOR[""]), Z * error):
        return None
    return _Below(int(kl.steps[0]), level, _error_of(error, len(kl)), True, True)


def _error_of(error: float, steps: int) -> str:
    return f"with a standard error of {number(error)} for {steps} steps"


def _beyond_chance(run: Run, kl: Series, least: int) -> _Below | None:
    """Find single updates so far below 0, and so many, as chance does not bring about, whatever the spread.

    The mean of ref/p over the policy's own samples is 1. So the mean log-ratio of n samples is below -a with a chance
    of exp(-n a) at most (Markov), and k updates of N are with one of (e N / k)^k exp(-k n a). Where the unit is not
    known, that holds for a sum of log-ratios, and for a mean per token all the more.
    """
    if kl.unit not in (SEQUENCE, "") or run.get("staleness") is not None or run.settings.get("ahead"):
        return None
    order = np.argsort(kl.values)[: int((kl.values < DEEP[SEQUENCE]).sum())]  # the deepest first
    if len(order) < least:  # fewer are one broken batch of many
        return None
    samples, count = max(setting(run, "batch_size") or 1.0, 1.0), np.arange(1, len(order) + 1)
    surprise = count * (-samples * kl.values[order] - 1.0 - np.log(len(kl) / count))
    beyond = np.flatnonzero(surprise[least - 1 :] >= np.log(len(kl) / CHANCE))
    if not len(beyond):
        return None
    n_deep = least + int(beyond[-1])
    noise = (
        f"in {n_deep} single update{'s' * (n_deep > 1)}; it is below 0 in {(kl.values < 0).sum()} of {len(kl)} updates "
        f"and falls to {number(kl.least)}, as fewer than one of a million sound runs with {samples:.0f} or more "
        "completions an update"
    )
    deep = np.sort(order[:n_deep])
    level, last = float(np.median(kl.values[deep])), len(kl) - max(WINDOW, len(kl) // 10)
    return _Below(int(kl.steps[deep[0]]), level, noise, bool(deep[-1] >= last), False)


def _below(kl: Series, errors: Series | None) -> _Below | None:
    """Find where the mean of a window lies below 0 beyond noise and rounding."""
    width = min(WINDOW, len(kl))
    count = len(kl) // width
    means = kl.values[: count * width].reshape(count, width).mean(axis=1)
    noise = np.full(count, _spread_error(kl, means, width))
    z = Z_SPREAD
    if errors is not None and np.array_equal(errors.steps, kl.steps):
        logged = np.sqrt((errors.values[: count * width] ** 2).reshape(count, width).sum(axis=1)) / width
        noise, z = np.maximum(noise, logged), Z
    bad = means < -np.maximum(z * noise, FLOOR.get(kl.unit, FLOOR[""]))
    starts = bad[1:] & bad[:-1] if z == Z_SPREAD else bad  # of spreads two windows in a row
    if not starts.any():
        return None
    first = int(starts.argmax())
    index = first * width
    from_here = kl.values[index:]
    opening = kl.values[:3].mean()
    level = float(np.median(from_here[from_here < 0]))
    spread = _error_of(float(noise[first]), width)
    return _Below(int(kl.steps[index]), level, spread, bool(bad[-1]), bool(index == 0 and opening < 0.3 * level))


def _spread_error(kl: Series, means: np.ndarray, width: int) -> float:
    """Estimate the standard error of a window's mean: from its neighbours, and from the correlation within windows."""
    if len(means) < 3:
        return 0.0
    neighbours = MAD_TO_STD * float(np.median(np.abs(np.diff(means))) / np.sqrt(2.0))
    residuals = kl.values[: len(means) * width] - np.repeat(means, width)
    return max(neighbours, long_run_error(residuals) * float(np.sqrt(len(means))))


def _cause(run: Run, kl: Series, below: _Below) -> tuple[str, tuple[str, ...]]:
    """Name the cause with the measurements that told it from the others."""
    gap, stated, mass = sampling_gap(run), warps_by_settings(run), _mass(run, below)
    if (gap is not None and gap.sure) or (gap is None and stated):
        return "warped_sampling", tuple(text for text in (gap.sentence if gap else "", stated) if text)
    if mass is not None and mass[0] > PAD_MASS and mass[1] > PAD_K3:
        text = f"the mean of ref/p is {number(1 + mass[0])} instead of 1, and k3 is {number(mass[1])} times |k1|"
        return "pad_leak", (text,)
    if below.at_start:
        text = f"it was there at the first steps ({number(float(kl.values[:3].mean()))}), before any update could do it"
        return "policy_noise", (text,)
    exact = find(run, "kl_ref", TOKEN, "exact")
    if exact is not None and gap is not None and tail(exact) >= 0 and mass is None:
        text = f"the exact KL is {number(tail(exact))} nats/token, and sampling is in order: {gap.sentence}"
        return "pad_leak", (text,)
    return "unknown", ()


def _mass(run: Run, below: _Below) -> tuple[float, float] | None:
    """Return (mean of ref/p less 1, k3 over |k1|) from where the KL is negative, or None without both estimators."""
    k1, k3 = find(run, "kl_ref", TOKEN, "k1"), find(run, "kl_ref", TOKEN, "k3")
    if k1 is None or k3 is None:
        return None
    last = int(max(k1.steps[-1], k3.steps[-1]))
    k1, k3 = within(k1, below.onset, last), within(k3, below.onset, last)
    if not len(k1) or not len(k3):
        return None
    median_k1, median_k3 = k1.median, k3.median
    return median_k3 - median_k1, median_k3 / max(abs(median_k1), 1e-12)
