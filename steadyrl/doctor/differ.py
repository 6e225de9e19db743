"""Why two runs differ: settings by meaning, the quantity that parted first and when, and what is likely behind it.

Two runs of one config are never equal, so a quantity counts as parted only where the two lie further apart, or move
apart, than the noise within each explains. The limit aims at one mistaken pair in a hundred over all quantities. What
is further apart than the noise of its steps, and not than noise that lasts, is told as what another seed may do, too.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.gap import Gap, gap, unevenness
from steadyrl.doctor.statistics.readings import number
from steadyrl.doctor.statistics.units import together

FEWEST = 10  # shared steps
RISK = 0.01  # that any quantity of two runs which are equal but for noise is said to part
ROUNDING = 1e-3  # of the level: what printing with a few digits makes
TWICE, TENFOLD = float(np.log(2.0)), 10.0
EQUAL = 5e-3  # of the level: what no reader would call a difference
KNOWN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ORDER: Sequence[str] = KNOWN["order"]
OUTSIDE = ("time_", "tokens", "data_epoch")  # of the machine and of the clock, not of the training
SET = ("learning_rate", "kl_coef", "entropy_coef", "epochs", "updates")  # what is logged of them is what was set
# Settings that name a run or its machine, or say how often something is written, and change nothing that is learned.
OF_THE_PLACE = re.compile(
    r"((?<!model_)name|dir|path|file|id|host|port|time|date|tag|project|entity|version|device|gpu|url)s?$"
    r"|(^|[._])(log|logging|save|eval)_(every|steps|strategy)$|^(global_step|epoch|num_input_tokens_seen|total_flos)$"
    r"|^(stateful_callbacks\.|best_|is_)",  # of the state that Hugging Face's Trainer saves
    re.I,
)
IS_A_PLACE = re.compile(r"[/~.]|.*(/.*/|://|\\)")  # a file, a folder or an address, and not "Qwen/Qwen3-8B"
MOST_SHOWN, MOST_NAMED = 8, 3


@dataclass(frozen=True)
class Setting:
    """A setting of both runs, by its canonical name, with each trainer's own key and value; None where not known."""

    name: str
    keys: tuple[str, str]
    values: tuple[Any, Any]


@dataclass(frozen=True)
class Parted:
    """A quantity that parted: from which step on, both levels where that shows, and the 95 % interval of the step.

    The levels of what is set, such as a learning rate, are its greatest values.
    """

    quantity: str
    step: int
    levels: tuple[float, float]
    between: tuple[int, int]
    lasting: bool = True  # more than noise that lasts explains; else another seed may differ as much


@dataclass(frozen=True)
class Difference:
    """Why two runs differ."""

    settings: tuple[Setting, ...]
    """Known in both and not equal."""
    one_sided: tuple[Setting, ...]
    """Known in one of them only."""
    parted: tuple[Parted, ...]
    """The quantities that parted, the first one first."""
    together: tuple[str, ...]
    """Those that are logged by both and did not part."""
    cause: str
    """One or two sentences."""
    alone: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Those that only the first logs, and only the second: a part of the reward or of the loss may be new."""


def is_same(first: Run, second: Run) -> bool:
    """Return whether two runs are one log, or copies of one: all their series and settings are equal."""

    def content(run: Run) -> tuple[Any, ...]:
        rows = [(series.quantity, series.steps.tobytes(), series.values.tobytes()) for series in run.logged]
        return run.config, run.settings, rows

    return content(first) == content(second)


def differ(first: Run, second: Run) -> Difference:
    """Compare two runs."""
    names = sorted({*first.settings, *second.settings})
    settings = [
        Setting(
            name,
            (first.keys.get(name, name), second.keys.get(name, name)),
            (first.settings.get(name), second.settings.get(name)),
        )
        for name in names
    ]
    kinds = {"algorithm": (first.algorithm, second.algorithm), "trainer": (first.trainer, second.trainer)}
    unequal = [Setting(n, (n, n), v) for n, v in kinds.items() if v[0] != v[1] and not {"", "unknown"} & {*v}]
    unequal += [setting for setting in settings if None not in setting.values and not _equal(*setting.values)]
    unequal += _unmapped_settings(first, second)
    shared = [name for name in first.series if name in second.series and not name.startswith(OUTSIDE)]
    pairs = {name: pair for name in shared if (pair := _pair(first, second, name)) is not None}
    with np.errstate(over="ignore"):  # numbers of a diverged run, whose difference may be infinite
        # Equal series are no test, and one that is logged twice is one.
        unlike = [(a.values, b.values) for a, b in pairs.values() if not np.array_equal(a.values, b.values)]
        risk = RISK / max(len({(x.tobytes(), y.tobytes()) for x, y in unlike}), 1)
        results = {name: _parting(*pair, risk) for name, pair in pairs.items()}
    parted = [part for part in results.values() if part is not None]
    same = [name for name, part in results.items() if part is None]
    # What is held out shows what training did, whenever it is measured.
    place = {quantity: i for i, quantity in enumerate(ORDER)}
    parted.sort(key=lambda part: place.get(part.quantity, len(ORDER)))
    parted.sort(key=lambda part: (not part.lasting, part.quantity.startswith("heldout/"), part.step))
    missing = [setting for setting in settings if None in setting.values]
    in_config = {setting.name for setting in unequal}
    for part in parted:  # what is logged of a setting that no config tells, where its greatest values are unequal
        levels = (number(part.levels[0]), number(part.levels[1]))
        if part.quantity in SET and part.quantity not in in_config and levels[0] != levels[1]:
            unequal.append(Setting(part.quantity, (part.quantity, part.quantity), levels))
    ordered = _by_weight(unequal, parted)
    cause = _cause(ordered, missing, parted, bool(pairs) or not shared)
    alone = (_logged_alone(first, second), _logged_alone(second, first))
    return Difference(tuple(ordered), tuple(missing), tuple(parted), tuple(same), cause, alone)


def _logged_alone(run: Run, reference: Run) -> tuple[str, ...]:
    """Return the quantities that a run logs and another does not, in some unit, but for the machine's."""
    return tuple(name for name in run.series if name not in reference.series and not name.startswith(OUTSIDE))


def _unmapped_settings(first: Run, second: Run) -> list[Setting]:
    """Return the settings without a meaning here that both hold and that are not equal, but for names and paths."""
    meant = {*first.keys.values(), *second.keys.values(), *first.settings, *second.settings}
    shared = (key for key in first.config if key in second.config and key not in meant)
    pairs = {key: (first.config[key], second.config[key]) for key in shared if not OF_THE_PLACE.search(key)}
    unequal = {
        key: values
        for key, values in pairs.items()
        if all(isinstance(value, str | int | float) and not IS_A_PLACE.match(str(value)) for value in values)
        and not _equal(*values)
        and values != (first.algorithm, second.algorithm)  # said as the algorithm
    }
    all_settings = {**first.config, **first.settings}, {**second.config, **second.settings}
    # A config that holds a setting twice, as "train.seed" and "seed", differs in it once.
    return [
        Setting(key, (key, key), values)
        for key, values in unequal.items()
        if not any(
            tuple(settings.get(key[mark.end() :]) for settings in all_settings) == values
            for mark in re.finditer(r"[._/]", key)
        )
    ]


def _by_weight(settings: Sequence[Setting], parted: Sequence[Parted]) -> list[Setting]:
    """Return settings in order: those that move directly what parted first, then by what they commonly change."""
    first = next((part.quantity for part in parted if part.quantity not in SET), "")
    direct, weight = KNOWN["moved_by"].get(first, []), KNOWN["weight"]

    def place(setting: Setting) -> tuple[int, int]:
        name = setting.name if setting.name in weight else "*"
        if name in ("algorithm", "trainer"):  # all else may follow from another one
            return -1, weight.index(name)
        return direct.index(setting.name) if setting.name in direct else len(direct), weight.index(name)

    return sorted(settings, key=place)


def sentences(difference: Difference) -> list[str]:
    """Return a comparison as lines: the likely cause first."""
    lines = [f"likely: {difference.cause}"]
    for setting in difference.settings[:MOST_SHOWN]:
        key = " / ".join(dict.fromkeys(setting.keys))
        called = setting.name if key == setting.name else f"{setting.name} ({key})"
        lines.append(f"set differently: {called}: {setting.values[0]} and {setting.values[1]}")
    if remaining := [setting.name for setting in difference.settings[MOST_SHOWN:]]:
        lines.append(f"set differently, too: {listed(remaining)}")
    if difference.one_sided:
        lines.append(f"known of one run only: {', '.join(setting.name for setting in difference.one_sided)}")
    lasting = [part for part in difference.parted if part.lasting]
    lines += [f"differs: {_step_range(part)}: {_levels(part)}" for part in lasting[:MOST_SHOWN]]
    if later := [part.quantity for part in lasting[MOST_SHOWN:]]:
        lines.append(f"differ later, or with these: {listed(later)}")
    briefly = difference.parted[len(lasting) :]
    if brief := [f"{part.quantity} from step {part.step} ({_levels(part)})" for part in briefly]:
        lines.append(f"differ, and the noise of another seed may explain it: {listed(brief)}")
    for which, names in zip(("first", "second"), difference.alone, strict=True):
        lines += [f"logged by the {which} only: {listed(names)}"] if names else []
    if same := difference.together:
        lines.append(f"differ by noise at most: {listed(same)}")
    return lines


def _levels(part: Parted) -> str:
    first, second = map(number, part.levels)
    if part.quantity in SET and first == second:
        return f"by its schedule, {first} at most in both"
    return f"{first} and {second}"


def listed(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    remainder = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return f"{', '.join(names[:MOST_SHOWN])}{remainder}"


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return abs(left - right) <= 1e-9 * max(abs(left), abs(right))
    return str(left) == str(right)


def _pair(first_run: Run, second_run: Run, quantity: str) -> tuple[Series, Series] | None:
    """Return a quantity of both runs in one unit and by one estimator, at the steps that they share; or None."""
    for left in first_run.series[quantity]:
        right = second_run.get(quantity, left.unit, left.estimator)
        if right is not None and (right.unit, right.estimator) == (left.unit, left.estimator):
            a, b = together(left.finite(), right)
            if len(a) >= FEWEST:
                return a, b
    return None


def _parting(a: Series, b: Series, risk: float) -> Parted | None:
    """Return where two series differ by more than their noise; or None.

    Of quantities above 0 it is the difference of their logarithms, too, where one is mostly twice the other, or where
    that makes the noise more even: it often grows with the level. A collapse within a few rows, which no line fits, may
    show in one of the two only.
    """
    x, y = a.values, b.values
    floor = ROUNDING * float(np.median(np.maximum(np.abs(x), np.abs(y))))
    if a.quantity in SET and (a.quantity == "learning_rate" or not (np.ptp(x) or np.ptp(y))):
        # What is set has no noise; the first values may be a warm-up's.
        unequal = np.abs(x - y) > floor
        step = int(a.steps[unequal.argmax()])
        return Parted(a.quantity, step, (a.greatest, b.greatest), (step, step)) if unequal.any() else None
    scales = [(x, y, floor)]
    if (x > 0).all() and (y > 0).all():
        ratio = np.log(x / y)
        if np.median(np.abs(ratio)) > TWICE or unevenness(ratio) < unevenness(x - y):
            scales.insert(0, (np.log(x), np.log(y), ROUNDING))
    tests = [(scale, brief) for brief in (False, True) for scale in scales]
    gaps = ((gap(*scale[:2], risk / len(scales), scale[2], brief), not brief) for scale, brief in tests)
    last = _magnitude(x, y) or _magnitude(y, x)
    parting, lasting = next((pair for pair in gaps if pair[0] is not None), (last, True))
    if parting is None:
        return None
    levels = (float(x[parting.start : parting.stop].mean()), float(y[parting.start : parting.stop].mean()))
    if abs(levels[0] - levels[1]) <= EQUAL * max(map(abs, levels)):
        return None
    step, low, high = (int(a.steps[index]) for index in (parting.start, parting.earliest, parting.latest))
    return Parted(a.quantity, step, levels, (low, high), lasting)


def _magnitude(higher: np.ndarray, lower: np.ndarray) -> Gap | None:
    """Return from where on one series [n] is above all that the other becomes, if by ten times over half of the log."""
    lowest = np.minimum.accumulate(higher[::-1])[::-1]
    highest = np.maximum.accumulate(lower[::-1])[::-1]
    apart = lowest > np.maximum(TENFOLD * np.abs(np.median(lower[len(lower) // 2 :])), highest)
    start = int(apart.argmax())
    return Gap(start, start, start, len(higher)) if apart.any() and 2 * start <= len(higher) else None


def _cause(settings: Sequence[Setting], missing: Sequence[Setting], parted: Sequence[Parted], compared: bool) -> str:
    measured = [part for part in parted if part.quantity not in SET]
    observed = "nothing that both log differs beyond its noise"
    if not compared:
        observed = f"they share fewer than {FEWEST} rows of every quantity, too few to tell a difference from noise"
    if measured:
        doubt = "" if measured[0].lasting else ", as another seed may"
        observed = f"{_step_range(measured[0])} is the first to differ{doubt}"
    if settings:
        lead, *followers = settings[: MOST_NAMED + 1]
        also = f", and so {'is' if len(followers) == 1 else 'are'} {_names(followers)}" if followers else ""
        directly = measured and lead.name in KNOWN["moved_by"].get(measured[0].quantity, [])
        if directly and lead.name == "learning_rate":  # a higher one makes more of all that it moves
            rates, levels = map(float, lead.values), measured[0].levels
            directly = (next(rates) < next(rates)) == (levels[0] < levels[1])
        moves = f", which {lead.name} moves directly" if directly else ""
        observed = observed.replace("nothing that", "nothing else that")
        return f"{lead.name} is set differently, {lead.values[0]} and {lead.values[1]}{also}; {observed}{moves}"
    if schedules := [part for part in parted if part.quantity in SET]:
        return f"{schedules[0].quantity} is set differently, {_levels(schedules[0])}; {observed}"
    unknown = f"; known of one run only are {_names(missing)}" if missing else ""
    advice = "look at what the logs do not hold, such as data, prompts, seeds, versions and hardware"
    if not parted:
        advice = "the logs do not tell these runs apart"
    return f"{observed}, and no setting that is known of both differs{unknown}: {advice}"


def _step_range(part: Parted) -> str:
    low, high = part.between
    about = "" if low == high else f" ({low} to {high}, 95 %)"
    return f"{part.quantity} from step {part.step}{about}"


def _names(settings: Sequence[Setting]) -> str:
    return ", ".join(setting.name for setting in settings)
