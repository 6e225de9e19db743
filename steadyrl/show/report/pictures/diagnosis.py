"""Pictures of a diagnosis: the series that decide its findings, with a mark where each begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from steadyrl.core.stats import rolling_median, window
from steadyrl.core.types import Finding
from steadyrl.doctor.deciding import deciding_series, thinned
from steadyrl.doctor.examine import BY_NAME, Diagnosis
from steadyrl.doctor.series import Series
from steadyrl.show.page.records import Picture
from steadyrl.show.report.pictures import plots

WIDTH_INCHES, HEIGHT_INCHES = 9.0, 2.6
POINTS = 2000  # drawn of a series; 900 pixels cannot show more
MOST_PICTURES = 8  # of one run; the worst chains come first
FOLDED = 50.0  # greatest over usual value, from which a logarithmic axis shows more


def pictures(diagnosis: Diagnosis, name: str) -> list[Picture]:
    """Draw each series that decides a finding, in the order of the findings.

    Args:
        diagnosis: Of one run.
        name: Begins the names of the files.
    """
    shown: dict[str, tuple[Series, list[Finding]]] = {}
    for finding in diagnosis.findings:
        series = deciding_series(diagnosis.run, finding, BY_NAME)
        if series is not None and len(series) > 1:
            shown.setdefault(series.source or series.quantity, (series, []))[1].append(finding)
    drawn = []
    with plots.drawing():
        for place, (source, (series, findings)) in enumerate(list(shown.items())[:MOST_PICTURES], 1):
            checks = ", ".join(dict.fromkeys(finding.check for finding in findings))
            label = f"{source} over the steps, with marks where findings begin"
            svg = plots.as_svg(_figure(series, findings))
            drawn.append(Picture(f"{name}-{place}.svg", label, f"{source} shows: {checks}", (svg,)))
    return drawn


def _figure(series: Series, findings: Sequence[Finding]) -> Figure:
    shown = thinned(series, POINTS)
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES))
    axes = figure.subplots()
    width = window(len(shown))
    axes.plot(shown.steps, shown.values, color=plots.BLUE, linewidth=0.7, alpha=0.35 if width > 1 else 1.0)
    if width > 1:
        axes.plot(shown.steps, rolling_median(shown.values, width), color=plots.BLUE, linewidth=1.8)
    axes.set_title(_drawable(series.source or series.quantity))
    axes.set_xlabel("step")
    axes.set_ylabel(_drawable(series.unit) or "no unit")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    values = shown.values
    if (values > 0).all() and float(values.max()) > FOLDED * float(np.median(values)):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylabel(f"{axes.get_ylabel()}, log scale")
    for since, text in _marks(findings):
        axes.axvline(since, color=plots.VERMILLION, linewidth=1.2, linestyle="--")
        axes.annotate(
            text, (since, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -3), textcoords="offset points",
            va="top", color=plots.VERMILLION, fontsize=8,
        )  # fmt: skip
    return figure


def _marks(findings: Sequence[Finding]) -> list[tuple[int, str]]:
    """Return (step, text) of each onset; findings of one step share a mark."""
    by_step: dict[int, list[str]] = {}
    for finding in findings:
        if finding.since_step is not None:
            by_step.setdefault(finding.since_step, []).append(finding.check)
    return [(step, ", ".join(dict.fromkeys(checks))) for step, checks in by_step.items()]


def _drawable(text: str) -> str:
    """Return text in characters that every font has; the caption below a picture has the name as it is."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
