"""What a trainer calls its metrics and settings: the records that the tables of this folder are made of.

A name is exact or has one ``*``, which stands for any text that is not empty, slashes included. Of several patterns
that fit, the one with the most fixed characters holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from steadyrl.doctor.series import RawLog

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Name:
    """What a trainer's name stands for.

    Attributes:
        quantity: A name of ``quantities.QUANTITIES``; ``*`` is filled with what the trainer's ``*`` stood for.
        unit: As in ``Series``.
        estimator: As in ``Series``. "... and padding" marks a mean that takes the padding in, and so is off by an
            amount that depends on the lengths.
        transform: How the logged number becomes the quantity: "sqrt" of a variance, "negate", "complement" (1 - x).
    """

    quantity: str
    unit: str = ""
    estimator: str = ""
    transform: Literal["", "sqrt", "negate", "complement"] = ""

    def filled(self, wildcard: str) -> Name:
        """Return the name with its ``*`` replaced."""
        return replace(self, quantity=self.quantity.replace("*", wildcard))


@dataclass(frozen=True)
class Choice:
    """A metric whose meaning a setting decides.

    Attributes:
        settings: The trainer's keys of it; the first that the log holds counts.
        meanings: By the setting's value, as text in lower case.
    """

    settings: tuple[str, ...]
    meanings: Mapping[str, Name]


def nothing(config: Config, log: RawLog) -> dict[str, Any]:
    """Return no settings: for a trainer of whose config nothing is known."""
    return {}


@dataclass(frozen=True)
class Table:
    """One trainer's vocabulary.

    Attributes:
        trainer: Its name in ``Run.trainer``.
        names: Its metrics; of those with the same quantity, unit and estimator the first listed comes first.
        distinctive: Patterns that hardly any other trainer logs.
        needs: How many of them it takes to be recognised.
        prefixes: What trackers put before the names.
        spell: How a logged name is written before it is compared.
        heldout: What the names of held-out measurements begin with.
        choices: Metrics that a setting decides; where the log lacks it, ``names`` holds.
        settings: (its config, the log) -> canonical settings.
        algorithm: (its config, the log) -> a name, "" where nothing tells.
        preferred: Whether this table holds where another fits as well; by what the log is like.
        formats: Formats of logs that only this trainer writes.
        caveats: What a reader of a metric should know, by the trainer's name.
        averages: Whether a row is the mean of all steps since the row before.
    """

    trainer: str
    names: Mapping[str, Name]
    distinctive: tuple[str, ...]
    algorithm: Callable[[Config, RawLog], str]
    settings: Callable[[Config, RawLog], dict[str, Any]] = nothing
    needs: int = 1
    prefixes: tuple[str, ...] = ("train/",)
    spell: Callable[[str], str] = str
    heldout: tuple[str, ...] = ("eval/", "eval_", "test/", "test_")
    choices: Mapping[str, Choice] = field(default_factory=dict)
    preferred: Callable[[Config, RawLog], bool] = lambda config, log: False
    formats: tuple[str, ...] = ()
    caveats: Mapping[str, str] = field(default_factory=dict)
    averages: bool = False

    def bare(self, logged: str) -> tuple[str, ...]:
        """Return the spellings that a logged name may have in this table: as it is, and without a tracker's prefix."""
        name = self.spell(logged)
        stripped = [name[len(prefix) :] for prefix in self.prefixes if name.startswith(prefix)]
        return (name, *(rest for rest in stripped if rest))


def wildcard(pattern: str, name: str) -> str | None:
    """Return what ``*`` stands for if ``name`` fits ``pattern`` ("" for an exact pattern), or None if it does not."""
    if "*" not in pattern:
        return "" if pattern == name else None
    start, _, end = pattern.partition("*")
    fits = name.startswith(start) and name.endswith(end) and len(name) > len(start) + len(end)
    return name[len(start) : len(name) - len(end)] if fits else None


def best_pattern(patterns: Mapping[str, Name], name: str) -> str | None:
    """Return the pattern that ``name`` fits with the most fixed characters, or None."""
    if name in patterns:
        return name
    fitting = [pattern for pattern in patterns if wildcard(pattern, name) is not None]
    return max(fitting, key=len, default=None)
