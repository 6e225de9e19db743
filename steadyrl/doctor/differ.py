"""Why two runs differ: settings by meaning, the quantity that parted first and when, and what is likely behind it.

Two runs of one config are never equal, so a quantity counts as parted only where the means of successive steps lie
further apart than their own noise explains, twice in a row.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.levels import measure, split
from steadyrl.doctor.statistics.readings import number
from steadyrl.doctor.statistics.units import together

FEWEST = 10  # shared steps
ROUNDING = 1e-3  # of the level: what printing with a few digits makes
KNOWN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ORDER: Sequence[str] = KNOWN["order"].split()
OUTSIDE = ("time_", "tokens", "data_epoch")  # of the machine and of the clock, not of the training
SET = ("learning_rate", "kl_coef", "entropy_coef", "epochs", "updates")  # what is logged of them is what was set
MOST_SHOWN = 8


@dataclass(frozen=True)
class Setting:
    """A setting of both runs, by its canonical name, with each trainer's own key and value; None where not known."""

    name: str
    keys: tuple[str, str]
    values: tuple[Any, Any]


@dataclass(frozen=True)
class Parted:
    """A quantity that parted: from which step on, and both levels in the block where it did."""

    quantity: str
    step: int
    levels: tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """Why two runs differ.

    Attributes:
        settings: Known in both and not equal.
        one_sided: Known in one of them only.
        parted: The quantities that parted, the first one first.
        together: Those that are logged by both and did not part.
        cause: One or two sentences.
    """

    settings: tuple[Setting, ...]
    one_sided: tuple[Setting, ...]
    parted: tuple[Parted, ...]
    together: tuple[str, ...]
    cause: str


def differ(first: Run, second: Run) -> Difference:
    """Compare two runs."""
    names = sorted({*first.settings, *second.settings})
    both = [
        Setting(
            name,
            (first.keys.get(name, name), second.keys.get(name, name)),
            (first.settings.get(name), second.settings.get(name)),
        )
        for name in names
    ]
    unequal = tuple(one for one in both if None not in one.values and not _equal(*one.values))
    parted, same = [], []
    for quantity in (name for name in first.series if name in second.series and not name.startswith(OUTSIDE)):
        pair = _pair(first, second, quantity)
        if pair is None:
            continue
        found = _parts(*pair)
        if found is None:
            same.append(quantity)
        else:
            parted.append(found)
    parted.sort(key=_rank)
    missing = tuple(one for one in both if None in one.values)
    return Difference(unequal, missing, tuple(parted), tuple(same), _cause(unequal, missing, parted))


def _rank(part: Parted) -> tuple[bool, int, int]:
    """Return the place of a quantity that parted: what is held out shows what training did, whenever it is measured."""
    place = ORDER.index(part.quantity) if part.quantity in ORDER else len(ORDER)
    return part.quantity.startswith("heldout/"), part.step, place


def sentences(difference: Difference) -> list[str]:
    """Return a comparison as lines: the likely cause first."""
    lines = [f"likely: {difference.cause}"]
    for one in difference.settings:
        key = one.keys[0] if one.keys[0] == one.keys[1] else f"{one.keys[0]} / {one.keys[1]}"
        lines.append(f"set differently: {one.name} ({key}): {one.values[0]} and {one.values[1]}")
    if difference.one_sided:
        lines.append(f"known of one run only: {', '.join(one.name for one in difference.one_sided)}")
    for part in difference.parted[:MOST_SHOWN]:
        lines.append(
            f"parts from step {part.step} on: {part.quantity}, {number(part.levels[0])} and {number(part.levels[1])}"
        )
    if later := [part.quantity for part in difference.parted[MOST_SHOWN:]]:
        lines.append(f"parts later, or with these: {', '.join(later[:MOST_SHOWN])}{_more(later)}")
    if same := difference.together:
        lines.append(f"does not part: {', '.join(same[:MOST_SHOWN])}{_more(same)}")
    return lines


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= 1e-9 * max(abs(one), abs(other))
    return str(one) == str(other)


def _pair(first: Run, second: Run, quantity: str) -> tuple[Series, Series] | None:
    """Return a quantity of both runs in one unit and by one estimator, at the steps that they share; or None."""
    for one in first.series[quantity]:
        other = second.get(quantity, one.unit, one.estimator)
        if other is not None and (other.unit, other.estimator) == (one.unit, one.estimator):
            a, b = together(one.finite(), other)
            if len(a) >= FEWEST:
                return a, b
    return None


def _parts(a: Series, b: Series) -> Parted | None:
    """Return where the difference of two series leaves 0 by more than its own noise, two blocks in a row; or None.

    Of quantities that are above 0 throughout it is the difference of their logarithms: noise grows with their level.
    """
    x, y = a.values, b.values
    if np.array_equal(x, y):
        return None
    positive = bool((x > 0).all() and (y > 0).all())
    gap = np.log(x) - np.log(y) if positive else x - y
    levels = measure(replace(a, values=gap))
    assert levels is not None, "there are enough shared steps"
    floor = ROUNDING if positive else ROUNDING * float(np.median(np.maximum(np.abs(x), np.abs(y))))
    far = np.abs(levels.means) > max(levels.least, floor)
    lasting = far & np.append(far[1:], far[-1])
    if not lasting.any():
        return None
    at = int(lasting.argmax())
    start = int(np.searchsorted(a.steps, levels.steps[at]))
    size = len(a) // len(levels.means)
    since = 0 if at == 0 else split(gap[start - size : start + size])[0] + start - size
    until = min(since + size, len(a))
    return Parted(a.quantity, int(a.steps[since]), (float(x[since:until].mean()), float(y[since:until].mean())))


def _cause(settings: tuple[Setting, ...], missing: tuple[Setting, ...], parted: list[Parted]) -> str:
    if not parted:
        if settings:
            return f"{_names(settings)} differ, and nothing that both log parts beyond its noise"
        return "nothing that both log parts beyond its noise: two runs of one kind"
    lead = parted[0]
    what = f"{lead.quantity} parts first, from step {lead.step} on"
    if lead.quantity in SET:
        return f"{what}: it is set differently, {number(lead.levels[0])} and {number(lead.levels[1])}"
    moved = KNOWN["moved_by"].get(lead.quantity, "").split()
    ranked = sorted(settings, key=lambda one: moved.index(one.name) if one.name in moved else len(moved))
    if ranked and ranked[0].name in moved:
        return f"{what}, and {ranked[0].name} moves it directly: {ranked[0].values[0]} and {ranked[0].values[1]}"
    if settings:
        return f"{what}; {_names(settings)} differ, none of which moves it directly"
    unknown = f"; known of one run only are {', '.join(one.name for one in missing)}" if missing else ""
    return (
        f"{what}, and no setting that is known of both differs{unknown}: look at what the logs do not hold, such as "
        "data, prompts, seeds, versions and hardware"
    )


def _names(settings: tuple[Setting, ...]) -> str:
    return ", ".join(one.name for one in settings)
