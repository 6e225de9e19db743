"""Settings far from what sound runs have: the suspects where a run falls short and nothing measured names the cause.

Every setting of a run of ours is compared with its default, in decades, and with the range of ``names/usual.toml``. So
a fault of a kind that no check knows has a name, too; but only a suspicion, for the log shows no effect of its own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log10
from pathlib import Path
from typing import Any, Literal

from steadyrl.doctor.check import Found, Result, check
from steadyrl.doctor.remedies import defaults
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.readings import (
    NEAR_BEST,
    entropy_lost,
    falls_short,
    learns,
    levels,
    near_best,
    reward_weights,
)

SECTIONS = ("sampling.", "rollout.", "update.", "algorithm.args.", "autopilot.")
DECADE = 10.0  # times the default, on either side: usual for a number of which nothing else is known
SWITCHED_OFF, OTHER_CHOICE = 3.0, 0.3  # decades that count for a 0 which is not usual, and for another word
COURSE_OF_RATE = ("update.warmup_steps", "update.schedule_steps")  # where all is lost, no higher rate is missed
SUM_OF_WEIGHTS = (0.1, 30.0)
ANY_TEXT = re.compile(r"\s*\w?\s*")  # a space or a letter
Side = Literal["low", "high", ""]


@dataclass(frozen=True)
class Usual:
    """Where a setting lies in sound runs, and what it does beyond; see usual.toml."""

    least: float | None = None
    most: float | None = None
    per: str = ""
    times: str = ""
    horizon: bool = False
    large: Side = ""
    small: Side = ""
    holds: Side = ""
    loose: Side = ""
    part_of: str = ""
    when: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    off: bool = False
    free: bool = False


@dataclass(frozen=True)
class Suspect:
    """A setting outside of its usual range."""

    name: str
    """Its key in a config."""
    value: Any
    default: Any
    decades: float
    """How far it lies from its range."""
    cause: str
    """Of the finding that names it."""


_TABLES = tomllib.loads((Path(__file__).parent.parent / "names" / "usual.toml").read_text(encoding="utf-8"))
USUAL: Mapping[str, Usual] = {name: Usual(**fields) for name, fields in _TABLES.items()}


def suspects(run: Run) -> list[Suspect]:
    """Return the settings of a run that are not usual, the most unusual first."""
    usual_values = defaults(str(run.config.get("algorithm.name", "")))
    judged = [
        _judged(run.config, name, value, usual_values[name])
        for name, value in run.config.items()
        if name.startswith(SECTIONS) and name in usual_values
    ]
    judged += [*_rewards(reward_weights(run)), *_short_marks(run.config)]
    unusual = sorted((suspect for suspect in judged if suspect), key=lambda suspect: -suspect.decades)
    # Another choice than the default is as a rule meant: it is suspected where no number is.
    return [suspect for suspect in unusual if suspect.decades > OTHER_CHOICE] or unusual


def _rewards(weights: Mapping[str, float]) -> list[Suspect | None]:
    """Return weights whose sum pays next to nothing, takes, or drowns all other terms: scaled, they sum to 1."""
    total = sum(weights.values())
    decades, side = _beyond(total, *SUM_OF_WEIGHTS)
    suspected = side and total
    return [Suspect(k, w, w / total, decades, "far_from_default") for k, w in weights.items() if suspected]


def _short_marks(settings: Mapping[str, Any]) -> list[Suspect | None]:
    """Return marks before the answer that is rewarded which stand in any text: its last word or less is read."""
    return [
        Suspect(name, mark, "", SWITCHED_OFF, "far_from_default")
        for name, mark in settings.items()
        if name.startswith("rewards.") and name.endswith(".answer_after") and mark and ANY_TEXT.fullmatch(mark)
    ]


def _judged(settings: Mapping[str, Any], name: str, value: Any, default: Any) -> Suspect | None:
    usual = USUAL.get(name)
    if value == default or (usual and usual.free):
        return None
    if isinstance(default, str | bool) or default == []:
        chosen = value if isinstance(value, list) else [value]
        meant = usual is not None and all(word in usual.words for word in chosen)
        marks = any(isinstance(word, str) and word and ANY_TEXT.fullmatch(word) for word in chosen)
        far = SWITCHED_OFF if marks else OTHER_CHOICE
        return None if meant else Suspect(name, value, default, far, "far_from_default")
    size, middle = (_upper(end) for end in (value, default))
    if size is None or middle is None or (usual and usual.off and not size):
        return None
    usual = usual or Usual(middle / DECADE or None, middle * DECADE or None)
    if any(settings.get(key, words[0]) not in words for key, words in usual.when.items()):
        return None
    size = 1.0 / (1.0 - size) if usual.horizon else size
    size *= (_upper(settings.get(usual.times)) or 1.0) / (_upper(settings.get(usual.per)) or 1.0)
    decades, side = _beyond(size, usual.least, usual.most)
    if not side:
        return None
    causes = {usual.large: "steps_too_large", usual.small: "steps_too_small", usual.holds: "held_back"}
    causes |= {usual.loose: "passes_unbounded"}
    return Suspect(name, value, default, decades, causes.get(side, "far_from_default"))


def _upper(value: Any) -> float | None:
    """Return a number, of a range its upper end; None for anything else."""
    number = value[-1] if isinstance(value, list) and value else value
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None


def _beyond(size: float, lower: float | None, upper: float | None) -> tuple[float, Side]:
    """Return how many decades a size lies beyond the ends of a range, and on which side; "" within it."""
    if lower is not None and size < lower:
        return (log10(lower / size) if size > 0 else SWITCHED_OFF) + OTHER_CHOICE, "low"
    if upper is not None and size > upper:
        return log10(size / upper) + OTHER_CHOICE, "high"
    return 0.0, ""


# Of our own runs all settings are known, with the defaults.
@check("unusual_setting", when=lambda run: run.trainer == "steadyrl" and "update.epochs" in run.config)
def unusual_setting(run: Run) -> Result:
    unusual = [suspect for suspect in suspects(run) if suspect.name not in COURSE_OF_RATE or not entropy_lost(run)]
    short, below = falls_short(run), near_best(run) and not near_best(run, NEAR_BEST)
    # Where a reward comes that far, another choice than the default was meant.
    if not unusual or not (short or (below and unusual[0].decades > OTHER_CHOICE)):
        return None
    choices = [f"{s.name} = {_text(s.value)}, and {_text(s.default)} is usual" for s in unusual]
    course = "the reward falls short" if short else "the reward is below the best"
    return Found(
        unusual[0].cause if short else "near_best",
        "info" if learns(run) else "warning",
        None,
        f"{course}, and {'settings lie' if unusual[1:] else 'a setting lies'} far from usual: {choices[0]}",
        (*choices[1:], levels("the reward", run.needed("reward"))),
        change=_with_dependents(run.config, {s.name: s.default for s in unusual}),
    )


def _with_dependents(settings: Mapping[str, Any], change: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a change that sets back, too, what is a part of what it switches off, and what it is a part of."""
    usual_values = defaults(str(settings.get("algorithm.name", "")))
    off = {name for name, value in change.items() if not value}
    dependents = [name for name, usual in USUAL.items() if usual.per in off]
    choices = [USUAL[name].part_of for name in change if name in USUAL]
    also = [name for name in (*dependents, *choices) if name in settings and settings[name] != usual_values[name]]
    return {**change, **{name: usual_values[name] for name in also}}


def _text(value: Any) -> str:
    blank = isinstance(value, str) and not value.strip()
    return f"{value:g}" if isinstance(value, float) else repr(value) if blank else str(value)
