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
    wanted = () if check is None else check.shows or tuple(name for need in check.needs for name in need.split("|"))
    named = set(NAME.findall(" ".join((finding.message, *finding.evidence))))
    if not wanted:  # a check of whatever is logged
        wanted = tuple(quantity for quantity in run.series if quantity in named)
    several = [series for quantity in wanted for series in _logged(run, quantity)]
    if finding.check in ONLY_SIGNED:
        several = [series for series in several if series.estimator in ("k1", "")] or several
    return next((series for series in several if series.source in named), several[0] if several else None)


def _logged(run: Run, quantity: str) -> list[Series]:
    """Return the series of a quantity, or of a family of quantities, that have finite entries."""
    names = [name for name in run.series if name == quantity or (quantity.endswith("/") and name.startswith(quantity))]
    return [finite for name in names for series in run.series[name] if len(finite := series.finite())]


def envelope(series: Series, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a series in bins of equal numbers of points: (first step, least, greatest value of each), [k <= bins].

    Nothing that stands out is lost, unlike in a mean or in every tenth point.
    """
    parts = np.array_split(np.arange(len(series)), min(bins, len(series)))
    starts = np.array([part[0] for part in parts])
    low, high = np.minimum.reduceat(series.values, starts), np.maximum.reduceat(series.values, starts)
    return series.steps[starts], low, high


def thinned(series: Series, points: int) -> Series:
    """Return a series with about so many points at most: the least and the greatest of each bin, in their order."""
    if len(series) <= points:
        return series
    parts = np.array_split(np.arange(len(series)), points // 2)
    extremes = [(part[series.values[part].argmin()], part[series.values[part].argmax()]) for part in parts]
    return series.at(np.unique(np.array(extremes).ravel()))
