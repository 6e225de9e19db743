"""One quantity in another unit, and two quantities at the same steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steadyrl.doctor.series import Run, Series

TOKEN, SEQUENCE, ROOT_SEQUENCE = "nats/token", "nats/sequence", "sqrt nats/sequence"
# Of several estimates the most exact first. Of a KL, k1 comes next: it has no bias, and its sign is true.
PREFERRED = {
    "kl_ref": ("exact", "k1", "k3", "k2", "abs", ""),
    "kl_old": ("exact", "k3", "k2", "k1", ""),
    "entropy": ("exact", "sampled", ""),
}


def together(first: Series, second: Series) -> tuple[Series, Series]:
    """Return both series at the steps that they share."""
    if np.array_equal(first.steps, second.steps):
        return first, second
    _, i, j = np.intersect1d(first.steps, second.steps, assume_unique=True, return_indices=True)
    return first.select(i), second.select(j)


def convert(run: Run, series: Series, unit: str) -> Series | None:
    """Return a series per token or per sequence, by the mean length of the step's completions.

    Args:
        run: Whose length counts.
        series: In nats.
        unit: "nats/token" or "nats/sequence".

    Returns:
        None where the series has no known unit, or the lengths are not logged.
    """
    if series.unit == ROOT_SEQUENCE:
        series = replace(series, unit=SEQUENCE, values=series.values**2)
    if series.unit == unit:
        return series
    length = run.get("length")
    if series.unit not in (TOKEN, SEQUENCE) or length is None:
        return None
    series, length = together(series, length)
    if not len(series):
        return None
    tokens = np.maximum(length.values, 1.0)
    return replace(series, unit=unit, values=series.values / tokens if unit == TOKEN else series.values * tokens)


def find(run: Run, quantity: str, unit: str = TOKEN, *estimators: str) -> Series | None:
    """Return a quantity in a unit: by the best estimator that was logged, converted only where it has to be.

    Args:
        run: The run.
        quantity: What.
        unit: "nats/token" or "nats/sequence".
        estimators: The only ones wanted, the best first; without any, those of ``PREFERRED``.
    """
    for estimator in estimators or PREFERRED[quantity]:
        direct = run.get(quantity, unit, estimator)
        if direct is not None:
            return direct
        for series in run.series.get(quantity, ()):
            if estimator in ("", series.estimator) and len(series.finite()):
                converted = convert(run, series.finite(), unit)
                if converted is not None:
                    return converted
    return None
