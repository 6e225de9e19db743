"""Where a score will end: a saturating curve through what is known, with an interval that has been tried.

    score(step) = start + gain * (1 - exp(-step / time))

The interval begins as a bootstrap of the curve's residuals, which knows nothing of curves that are not of this form.
So it is tried on finished runs: each is cut in its middle, and its end is forecast. The interval is widened until it
holds 80 % of these ends, and how often it holds the end of a run that did not count for the widening is reported as its
coverage. Where too few runs are known, or the coverage is below 70 %, there is no forecast.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.metrics import describe
from steadyrl.core.rundir import JOBS, RunDir
from steadyrl.lab.measure import curve, heldout_mean

NOMINAL = 0.8
LEAST_COVERAGE = 0.7
LEAST_POINTS = 5  # of a curve with three numbers
LEAST_RUNS = 8  # finished runs: 70 % of fewer is told from 80 % by nothing
TIMES = np.geomspace(0.05, 20.0, 40)  # of the curve, in units of the steps that are known
RESAMPLES = 300
BLOCKS = 20  # a curve of every step is forecast from the means of so many blocks


@dataclass(frozen=True)
class Forecast:
    """The score at the last step."""

    end: float  # as the curve has it
    low: float
    high: float  # of its interval, with the noise of the evaluation
    now: float  # the curve at the last known step

    def __str__(self) -> str:
        return f"{self.now:.4f} now, {self.end:.4f} [{self.low:.4f}, {self.high:.4f}] at the last step; {self.worth}"

    @property
    def worth(self) -> str:
        """Return whether going on is worth it, in words."""
        if self.low > self.now:
            return "going on is worth it"
        return "going on will not help" if self.high < self.now else "it cannot be told whether going on helps"


@dataclass(frozen=True)
class Outlook:
    """The forecast of a run, or why there is none."""

    metric: str
    forecast: Forecast | None  # None where it abstains
    reason: str  # why it abstains; "" where it does not
    covered: int  # finished runs whose end lay in the interval
    tried: int  # finished runs that the intervals were tried on


def fit_saturating(steps: np.ndarray, values: np.ndarray, end: float) -> Forecast:
    """Fit the curve, and carry it on.

    Args:
        steps: [n], >= LEAST_POINTS of them, rising.
        values: [n].
        end: The last step of the run.
    """
    assert len(steps) >= LEAST_POINTS, f"{len(steps)} points"
    first, span = float(steps[0]), float(steps[-1] - steps[0])
    # [K, n, 2] at the known steps, and [K, 2, 2] at the last of them and at the end of the run.
    bases, ahead = _bases((steps - first) / span), _bases((np.array([steps[-1], end]) - first) / span)
    best, coefficients = _fit(bases, values)
    fitted = bases[best] @ coefficients
    # The fit of three numbers (start, gain, time) makes the residuals too small by this factor.
    residuals = (values - fitted) * math.sqrt(len(values) / (len(values) - 3))  # [n]
    now, last = (float(x) for x in ahead[best] @ coefficients)
    rng = np.random.default_rng(0)
    ends = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        refit_best, refit_coefficients = _fit(bases, fitted + rng.choice(residuals, len(values)))
        ends[i] = float(ahead[refit_best][1] @ refit_coefficients) + float(rng.choice(residuals))
    low, high = np.quantile(ends, [(1 - NOMINAL) / 2, (1 + NOMINAL) / 2])
    return Forecast(last, float(low), float(high), now)


def score_name(run: RunDir) -> str:
    """Return the metric of a run's held-out score."""
    return f"heldout/{run.info().get('metric') or 'reward'}"


def require_values(run: RunDir, metric: str) -> None:
    """Refuse (ConfigError) a metric that a run has no value of, unless its values may still come."""
    records, entry = run.metrics(), describe(metric)
    may_come = run.status != "finished" and entry is not None and (entry.name == metric or "/" in metric)
    if not records or may_come or metric == score_name(run) or _has_values(records, metric):
        return
    names = {name for record in records for name in record if describe(name)}
    candidates = sorted(name for name in names if _has_values(records, name))
    close = difflib.get_close_matches(metric, candidates, n=5, cutoff=0.0)
    raise ConfigError(
        f"'{run.path}' has no value of a metric '{metric:.120}'; expected one of its metrics.jsonl, the nearest are: "
        f"{', '.join(close) or 'none'}"
    )


def widths_on(peers: Sequence[RunDir], run: RunDir, metric: str) -> list[float | None]:
    """Try the interval on finished runs; those of another task or algorithm than the run's are left out.

    Returns:
        See ``needed_width``, one per run; None where its curve is too short.
    """

    def kind(directory: RunDir) -> list[Any]:
        return [directory.info().get(key) for key in ("task", "algorithm", "metric")]

    return [needed_width(*points(peer, metric)) for peer in peers if kind(peer) == kind(run)]


def forecast_run(run: RunDir, widths: Sequence[float | None], metric: str) -> Outlook:
    """Forecast a run's last score, if the intervals (see ``widths_on``) have held on finished runs."""
    return forecast_curve(run, widths, metric, *points(run, metric))


def forecast_curve(
    run: RunDir, peer_widths: Sequence[float | None], metric: str, steps: np.ndarray, values: np.ndarray
) -> Outlook:
    """Forecast a run's last score as ``forecast_run`` does, from the ``points`` of its curve, [n] each."""
    widths = [width for width in peer_widths if width is not None]
    covered, tried = coverage(widths), len(widths)
    abstain = partial(Outlook, metric, None, covered=covered, tried=tried)
    if len(steps) < LEAST_POINTS:
        need = "set evaluate.every, or forecast --metric reward/mean" if metric == score_name(run) else "train on"
        return abstain(f"{metric} has {len(steps)} of the {LEAST_POINTS} values that a forecast needs; {need}")
    if tried < LEAST_RUNS:
        return abstain(
            f"the interval has to be tried on {LEAST_RUNS} finished runs of this task and algorithm, each with at "
            f"least {2 * LEAST_POINTS} values of {metric}. Of {len(peer_widths)} such runs {tried} have so many "
            "(--history names more)"
        )
    if covered < LEAST_COVERAGE * tried:
        return abstain(f"the 80 % interval held the end of only {covered} of {tried} finished runs")
    end = float(run.resolved()["run"]["steps"])
    forecast, factor = fit_saturating(steps, values, end), widened(widths)
    interval = (forecast.end + factor * (side - forecast.end) for side in (forecast.low, forecast.high))
    lowest, highest = reachable(run.metrics(), metric)
    last, low, high = (min(max(value, lowest), highest) for value in (forecast.end, *interval))
    return Outlook(metric, replace(forecast, end=last, low=low, high=high), "", covered, tried)


def reachable(records: Sequence[Mapping[str, Any]], metric: str) -> tuple[float, float]:
    """Return what a mean can lie between: of shares 0 and 1, of rewards the worst and the best single answer so far."""
    entry = describe(metric)
    if entry is not None and entry.unit == "share":
        return 0.0, 1.0
    if metric == "reward/mean":
        lowest, highest = (curve(records, name) for name in ("reward/min", "reward/max"))
        if np.isfinite(lowest).any() and np.isfinite(highest).any():
            return float(np.nanmin(lowest)), float(np.nanmax(highest))
    return -math.inf, math.inf


def coverage(widths: Sequence[float]) -> int:
    """Return how many of the ends lie in an interval that was widened by the other runs alone."""
    return sum(width <= widened([*widths[:i], *widths[i + 1 :]]) for i, width in enumerate(widths))


def widened(widths: Sequence[float]) -> float:
    """Return the factor of the interval that holds the wanted share of ends.

    Source:
        Lei et al., "Distribution-Free Predictive Inference for Regression" (arXiv 1604.04173), split conformal: the
        ceil((n + 1) * share)-th smallest of n.
    """
    rank = math.ceil((len(widths) + 1) * NOMINAL)
    return math.inf if rank > len(widths) else sorted(widths)[rank - 1]


def needed_width(steps: np.ndarray, values: np.ndarray) -> float | None:
    """Return by which factor the interval from the first half of a finished curve has to grow to hold its last value.

    Below 1 it held it anyway. None where the curve is too short.
    """
    middle = len(steps) // 2
    if middle < LEAST_POINTS:
        return None
    forecast, last = fit_saturating(steps[:middle], values[:middle], float(steps[-1])), float(values[-1])
    reach = forecast.high - forecast.end if last > forecast.end else forecast.end - forecast.low
    return abs(last - forecast.end) / reach if reach > 0 else (0.0 if last == forecast.end else math.inf)


def points(run: RunDir, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a run's steps and scores, [n] each; what was measured at every step as means of blocks."""
    records = run.metrics()
    return curve_of(run, metric, np.array([record["step"] for record in records], np.float64), curve(records, metric))


def curve_of(run: RunDir, metric: str, steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``points`` of what was recorded, steps from 0 and values [n], NaN where there is none."""
    measured = np.isfinite(values)
    steps, values = steps[measured] + 1.0, values[measured]
    if len(steps) > 2 * BLOCKS:
        blocks = np.array_split(np.arange(len(steps)), BLOCKS)
        return np.array([steps[block].mean() for block in blocks]), np.array([values[block].mean() for block in blocks])
    before = heldout_mean(run, "before", "metric") if metric.startswith("heldout/") else None
    if before is not None:
        steps, values = np.insert(steps, 0, 0.0), np.insert(values, 0, before)
    return steps, values


def finished_beside(run: RunDir, note: Callable[[str], None]) -> list[RunDir]:
    """Return the finished runs beside a run; ``note`` takes a line for each that is left out as damaged.

    In a study or a search each run has a folder of its own: there the runs of the other folders are beside it.
    """
    folder = run.path.resolve().parent
    files = folder.parent.glob("*/*/run.json") if folder.parent.name == JOBS else folder.glob("*/run.json")
    finished_runs = []
    for sibling in [RunDir(file.parent) for file in sorted(files) if file.parent != run.path.resolve()]:
        try:
            finished = sibling.status == "finished"
        except RunError as error:
            note(f"left out of the forecast: {error}")
            continue
        if finished:
            finished_runs.append(sibling)
    return finished_runs


def _has_values(records: Sequence[Mapping[str, Any]], metric: str) -> bool:
    return bool(np.isfinite(curve(records, metric)).any())


def _bases(elapsed: np.ndarray) -> np.ndarray:
    """Return the curves [K, n, 2] of all times: 1 and the part that is reached after so many known spans [n]."""
    reached = 1.0 - np.exp(-elapsed[None, :] / TIMES[:, None])  # [K, n]
    return np.stack([np.ones_like(reached), reached], axis=-1)


def _fit(bases: np.ndarray, values: np.ndarray) -> tuple[int, np.ndarray]:
    """Return which time fits best by least squares, and its start and gain."""
    constant, reached = values.mean(), bases[:, :, 1]
    centred = reached - reached.mean(axis=1, keepdims=True)  # [K, n]
    gain = centred @ (values - constant) / (centred**2).sum(axis=1)
    errors = ((values - constant - gain[:, None] * centred) ** 2).sum(axis=1)
    best = int(errors.argmin())
    return best, np.array([constant - gain[best] * reached[best].mean(), gain[best]])
