"""Pictures of a diagnosis: the series that decide its findings, with a mark where each begins."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from steadyrl.core.stats import window
from steadyrl.core.types import Finding
from steadyrl.doctor.deciding import deciding_series, thinned
from steadyrl.doctor.examine import BY_NAME, Diagnosis
from steadyrl.doctor.series import Series
from steadyrl.show.page.records import Picture
from steadyrl.show.report.pictures import plots

WIDTH_INCHES, HEIGHT_INCHES = 9.0, 2.6
POINTS = 2000  # drawn of a series; 900 pixels cannot show more
MOST_PICTURES = 8  # of one run; the worst chains come first


def pictures(diagnosis: Diagnosis, name: str) -> list[Picture]:
    """Draw each series that decides a finding, in the order of the findings; ``name`` begins their files."""
    by_source: dict[str, tuple[Series, list[Finding]]] = {}
    for finding in diagnosis.findings:
        series = deciding_series(diagnosis.run, finding, BY_NAME)
        if series is not None and len(series) > 1:
            by_source.setdefault(series.source or series.quantity, (series, []))[1].append(finding)
    images = []
    with plots.drawing():
        for i, (source, (series, findings)) in enumerate(list(by_source.items())[:MOST_PICTURES], 1):
            checks = ", ".join(dict.fromkeys(finding.check for finding in findings))
            label = f"{source} over the steps, with marks where findings begin"
            svg = plots.as_svg(_figure(series, findings))
            images.append(Picture(f"{name}-{i}.svg", label, f"{source} shows: {checks}", (svg,)))
    return images


def _figure(series: Series, findings: Sequence[Finding]) -> Figure:
    points = thinned(series, POINTS)
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES))
    axes = figure.subplots()
    plots.draw_line(axes, points.steps, points.values, window(len(points)), plots.BLUE)
    axes.set_title(_drawable(series.source or series.quantity))
    axes.set_xlabel("step")
    axes.set_ylabel(_drawable(series.unit) or "no unit")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    plots.choose_scale(axes, points.values)
    begun: dict[int, list[str]] = {}  # findings of one step share a mark
    for finding in findings:
        if finding.since_step is not None:
            begun.setdefault(finding.since_step, []).append(finding.check)
    for step, checks in begun.items():
        axes.axvline(step, color=plots.VERMILLION, linewidth=1.2, linestyle="--")
        axes.annotate(
            ", ".join(dict.fromkeys(checks)), (step, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -3),
            textcoords="offset points", va="top", color=plots.VERMILLION, fontsize=8,
        )  # fmt: skip
    return figure


def _drawable(text: str) -> str:
    """Return text in characters that every font has; the caption below a picture has the name as it is."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
