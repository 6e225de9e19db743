"""Curves of several runs on one page that works offline: hover, zoom, choose the metric and the runs.

All data is inside the page, which draws it with uPlot (see ``page.html``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steadyrl.core.metrics import describe
from steadyrl.show.report.plots import palette

MOST_POINTS = 400  # of a curve; longer ones are means of neighbouring steps
# Of all curves on a page, of six or seven characters each: the page of a study with sixty runs stays below a megabyte.
ALL_POINTS = 100_000
LEAST_POINTS = 20
DIGITS = 3  # significant, of a number in the page
LEVELS = 300  # at least, between the least and the greatest value of a curve, which would be stairs with fewer
# In the order of the founding documents' topics; what else was measured follows by name.
FIRST = (
    "reward/mean",
    "kl_ref_k1_seq",
    "algorithm/kl_coef",
    "loss/value",
    "value/explained_variance",
    "loss/policy",
    "clip_fraction",
    "kl_old_k3",
    "entropy",
    "advantage/mean",
    "advantage/std",
    "completion/length",
    "grad_norm",
)
_LEFT_OUT = (
    "time/",
    "tokens/",
    "judge/",
    "reward_share/",
    "autopilot/",
    "updates",
    "epochs",
    "data_epoch",
)
Records = Sequence[Mapping[str, Any]]


def curves(groups: Mapping[str, Sequence[Records]], shown: Sequence[str] = ()) -> str:
    """Return the data of the page as JSON.

    Args:
        groups: The metrics of each run, by the name that the runs of a group share (seeds of an arm).
        shown: Groups that are shown at first; empty for all.
    """
    measured = [(name, *_series(records)) for name, runs in groups.items() for records in runs if records]
    most = max(LEAST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, sum(len(values) for *_, values in measured))))
    runs = [{"group": name, **_drawn(steps, values, most)} for name, steps, values in measured]
    names = {name for run in runs for name in run["values"]}
    ordered = [name for name in FIRST if name in names] + sorted(names - set(FIRST))
    metrics = []
    for name in ordered:
        metric = describe(name)
        metrics.append(
            {"name": name, "unit": metric.unit if metric else "", "meaning": metric.meaning if metric else ""}
        )
    data = {
        "groups": list(groups),
        "colours": palette(len(groups)),
        "shown": list(shown or groups),
        "metrics": metrics,
        "runs": runs,
    }
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def thinned(steps: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most so many points of a curve [S]: means of neighbouring steps that were measured."""
    parts = np.array_split(np.arange(len(steps)), min(most, len(steps)))
    finite = [part[np.isfinite(values[part])] for part in parts]
    means = [float(values[part].mean()) if part.size else math.nan for part in finite]
    return np.array([float(steps[part].mean()) for part in parts]), np.array(means)


def _series(records: Records) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the steps of a run [S] and what it measured of each metric [S]; NaN where a step has none."""
    steps = np.array([record["step"] for record in records], np.float64)
    names = sorted({name for record in records for name in record} - {"step", "attempt", "time"})
    measured = {}
    for name in names:
        if name.startswith(_LEFT_OUT):
            continue
        values = (record.get(name) for record in records)
        series = np.array([v if isinstance(v, int | float) else math.nan for v in values], np.float64)
        series[~np.isfinite(series)] = math.nan
        if np.isfinite(series).any():
            measured[name] = series
    return steps, measured


def _drawn(steps: np.ndarray, measured: Mapping[str, np.ndarray], most: int) -> dict[str, Any]:
    # The curves of a run share their steps, so that the page can average over seeds: means, and not least and greatest.
    shorter = {name: _plain(thinned(steps, series, most)[1]) for name, series in measured.items()}
    return {"steps": _plain(thinned(steps, steps, most)[0]) if shorter else [], "values": shorter}


def _plain(values: np.ndarray) -> list[float | None]:
    """Round the values of a curve [S] to significant digits, or more finely where it moves by less."""
    finite = values[np.isfinite(values)]
    span = float(finite.max() - finite.min()) if finite.size else 0.0
    decimals = math.ceil(math.log10(LEVELS / span)) if span else 0

    def rounded(value: float) -> float:
        return min((float(f"{value:.{DIGITS}g}"), round(value, decimals)), key=lambda short: abs(short - value))

    return [rounded(float(value)) if math.isfinite(value) else None for value in values]
