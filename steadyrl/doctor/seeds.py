"""Several runs against several, such as three seeds of each of two configs: what differs by more than seeds do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steadyrl.core.stats import difference_of_means
from steadyrl.doctor.differ import MOST_SHOWN, OUTSIDE, SET, Setting, differ, listed
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.readings import number

RISK = 0.05  # that any quantity of two sets of runs which are equal but for their seeds is said to differ
LATE, LEAST = 0.2, 5  # of the steps: how a run ends, by the mean of so many at least


@dataclass(frozen=True)
class Across:
    """A quantity in two sets of runs, by how they end."""

    quantity: str
    """A name of docs/doctor/quantities.md."""
    levels: tuple[np.ndarray, np.ndarray]
    """[n] and [m], of each run."""
    differs: bool
    """Whether the sets differ by more than the runs within each do, of all quantities that were looked at."""
    alone: bool
    """Whether they would if it were the only quantity."""


def across(first: Sequence[Run], second: Sequence[Run]) -> list[Across]:
    """Compare how two sets of runs end, quantity by quantity (Welch, Bonferroni): those that differ most first.

    Args:
        first: Two runs or more, alike but for their seeds.
        second: Likewise.
    """
    runs = [*first, *second]
    shared = [n for n in runs[0].series if all(n in run.series for run in runs) and not n.startswith((*OUTSIDE, *SET))]
    levels = {name: values for name in shared if (values := _late(runs, name)) is not None and np.ptp(values)}
    looks = len({values.tobytes() for values in levels.values()})  # what is logged twice is looked at once
    results = []
    for name, values in levels.items():
        groups = values[: len(first)], values[len(first) :]
        results.append(Across(name, groups, _apart(*groups, RISK / looks), _apart(*groups, RISK)))
    return sorted(results, key=lambda result: (not result.differs, not result.alone))


def _apart(first: np.ndarray, second: np.ndarray, risk: float) -> bool:
    interval = difference_of_means(first, second, confidence=1.0 - risk)
    return interval is not None and not interval[1] <= 0.0 <= interval[2]


def _late(runs: Sequence[Run], name: str) -> np.ndarray | None:
    """Return the late level of a quantity in each run, in one unit and by one estimator; None without."""
    kind = runs[0].series[name][0]
    logged = [run.get(name, kind.unit, kind.estimator) for run in runs]
    if any(series is None or len(series) < LEAST for series in logged):
        return None
    return np.array([series.values[-max(LEAST, int(LATE * len(series))) :].mean() for series in logged if series])


def settings_across(first: Sequence[Run], second: Sequence[Run]) -> list[Setting]:
    """Return the settings that are one value in each set and another in the other one."""
    candidates = differ(first[0], second[0]).settings
    sides = [(run, 0) for run in first[1:]] + [(run, 1) for run in second[1:]]

    def holds(setting: Setting) -> bool:
        values = ((run.settings.get(setting.name, run.config.get(setting.name)), side) for run, side in sides)
        return all(value in (None, setting.values[side]) for value, side in values)

    return list(filter(holds, candidates))


def sentences(first: Sequence[Run], second: Sequence[Run]) -> list[str]:
    """Return the comparison of two sets of runs as lines."""
    results = across(first, second)
    settings = settings_across(first, second)
    causes = [f"{s.name} is set differently, {s.values[0]} and {s.values[1]}" for s in settings[:1]]
    differing = [result for result in results if result.differs]
    perhaps = [result for result in results if result.alone and not result.differs]
    same = [result for result in results if not (result.alone or result.differs)]
    ending = f"{differing[0].quantity} differs" if differing else "nothing differs"
    lines = [
        f"{len(first)} runs against {len(second)}: {'; '.join([*causes, ending])} by more than the runs of one set do"
    ]
    lines += [f"set differently: {s.name}: {s.values[0]} and {s.values[1]}" for s in settings[:MOST_SHOWN]]
    lines += [f"differs at the end: {_levels(result)}" for result in differing[:MOST_SHOWN]]
    alone = f"at 95 % taken alone, not as one of {len(results)}"
    lines += [f"may differ at the end ({alone}): {_levels(result)}" for result in perhaps[:MOST_SHOWN]]
    if same:
        lines.append(f"no difference beyond that within a set: {listed([result.quantity for result in same])}")
    return lines


def _levels(result: Across) -> str:
    ends = (f"{number(ends.mean())} ({number(ends.min())} to {number(ends.max())})" for ends in result.levels)
    return f"{result.quantity}: {' and '.join(ends)}"
