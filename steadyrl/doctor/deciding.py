"""Which series decides a finding, and how to show a long one with few points."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from steadyrl.core.types import Finding
from steadyrl.doctor.check import Check
from steadyrl.doctor.series import Run, Series

ONLY_SIGNED = ("negative_kl",)  # estimators that cannot be negative would show nothing of it
NAME = re.compile(r"[\w/.-]*\w")


def deciding_series(run: Run, finding: Finding, checks: Mapping[str, Check[Run]]) -> Series | None:
    """Return the finite entries of the series that shows a finding best, or None where none is logged.

    Of several that could, the one that the finding's own evidence names.
    """
    check = checks.get(finding.check)
    quantities = () if check is None else check.shows or tuple(name for need in check.needs for name in need.split("|"))
    named = set(NAME.findall(" ".join((finding.message, *finding.evidence))))
    if not quantities:  # a check of whatever is logged
        quantities = tuple(quantity for quantity in run.series if quantity in named)
    candidates = [series for quantity in quantities for series in _logged(run, quantity)]
    if finding.check in ONLY_SIGNED:
        candidates = [series for series in candidates if series.estimator in ("k1", "")] or candidates
    return next((series for series in candidates if series.source in named), candidates[0] if candidates else None)


def _logged(run: Run, quantity: str) -> list[Series]:
    """Return the series of a quantity, or of a family of quantities, that have finite entries."""
    names = [name for name in run.series if name == quantity or (quantity.endswith("/") and name.startswith(quantity))]
    return [finite for name in names for series in run.series[name] if len(finite := series.finite())]


def envelope(series: Series, n_bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a series in bins of equal numbers of points: (first step, least, greatest value of each), [k <= n_bins].

    Nothing that stands out is lost, unlike in a mean or in every tenth point.
    """
    bin_rows = np.array_split(np.arange(len(series)), min(n_bins, len(series)))
    starts = np.array([rows[0] for rows in bin_rows])
    low, high = np.minimum.reduceat(series.values, starts), np.maximum.reduceat(series.values, starts)
    return series.steps[starts], low, high


def thinned(series: Series, points: int) -> Series:
    """Return a series with about so many points at most: the least and the greatest of each bin, in their order."""
    if len(series) <= points:
        return series
    bin_rows = np.array_split(np.arange(len(series)), points // 2)
    extremes = [(rows[series.values[rows].argmin()], rows[series.values[rows].argmax()]) for rows in bin_rows]
    return series.select(np.unique(np.array(extremes).ravel()))
