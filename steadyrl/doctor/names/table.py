"""What a trainer calls its metrics and settings: one file of ``trainers/`` each, and the record that is made of it.

A name is exact or has one ``*``, which stands for any text that is not empty, slashes included. Of several patterns
that fit, the one with the most fixed characters holds.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.spelling import english

TRAINERS = Path(__file__).parent / "trainers"
BRACES = re.compile(r"\{([^}]*)\}")
LISTS = ("distinctive", "prefixes", "endings", "heldout", "formats")

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Name:
    """What a trainer's name stands for."""

    quantity: str
    """A name of docs/doctor/quantities.md; ``*`` is filled with what the trainer's ``*`` stood for."""
    unit: str = ""
    """As in ``Series``."""
    estimator: str = ""
    """As in ``Series``. "... and padding" marks a mean that takes the padding in, and so is off by an amount that
    depends on the lengths."""
    transform: str = ""
    """How the logged number becomes the quantity: "sqrt" of a variance, "negate", "complement" (1 - x), or a number
    that it is multiplied with."""

    def filled(self, wildcard: str) -> Name:
        """Return the name with its ``*`` replaced."""
        return replace(self, quantity=self.quantity.replace("*", wildcard))


@dataclass(frozen=True)
class Choice:
    """A metric whose meaning a setting decides, or another metric beside it."""

    settings: str
    """The trainer's key of it, "first|second" where there are several."""
    meanings: Mapping[str, Name]
    """By the setting's value, as text in lower case."""
    beside: Mapping[str, Name] = field(default_factory=dict)
    """By another metric's name: what the metric is where the log holds that one, too."""


def names(text: str) -> dict[str, Name]:
    """Return the names of a text with one line for each: ``its name = quantity, unit, estimator, transform``.

    Several of its names for one quantity are separated by spaces. ``{a|b}`` stands for a and b, on both sides together.
    """
    by_name: dict[str, Name] = {}
    for line in filter(str.strip, text.splitlines()):
        logged_names, meanings = (_expanded(side) for side in line.split(" = "))
        for i in range(max(len(logged_names), len(meanings))):
            meaning = Name(*(part.strip() for part in meanings[i % len(meanings)].split(",")))
            by_name |= dict.fromkeys(logged_names[i % len(logged_names)].split(), meaning)
    return by_name


def keys(text: str) -> dict[str, str]:
    """Return the trainer's keys of settings from lines ``canonical = its key|another``.

    Several canonical names share a line where ``*`` stands for each of them.
    """
    their_keys: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        canonical_names, _, trainer_spelling = (part.strip() for part in line.partition(" = "))
        their_keys |= {name: trainer_spelling.replace("*", name) for name in canonical_names.split()}
    return their_keys


def _expanded(text: str) -> list[str]:
    """Return the texts that braces stand for; several braces in one text go together."""
    fixed, *choices = BRACES.split(text)[::2], *(choice.split("|") for choice in BRACES.findall(text))
    rows = list(zip(*choices, strict=True)) or [()]
    return ["".join(part for pair in zip(fixed, (*row, ""), strict=True) for part in pair) for row in rows]


@dataclass(frozen=True)
class Table:
    """One trainer's vocabulary, as a file of ``trainers/`` holds it."""

    trainer: str
    """Its name in ``Run.trainer``; that of its file."""
    names: Mapping[str, Name]
    """Its metrics; of those with the same quantity, unit and estimator the first listed comes first."""
    distinctive: tuple[str, ...] = ()
    """Patterns that hardly any other trainer logs."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Its keys of canonical settings, "first|second" where it has had several."""
    rare_keys: Sequence[str] = ()
    """Those of some of its loops, which no advice names unless the config has them."""
    place_keys: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further keys, by the place of the KL that the settings say."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Canonical settings that always hold with this trainer, unless its config says otherwise."""
    algorithm: Sequence[Mapping[str, Any]] = ()
    """Rules, of which the first that fits tells it: the "key" of a setting and the "words" that it may have, each with
    the algorithm's name ("*" is any word, and the word itself as the name); or a "name", and the "column" that is only
    logged by it, if there is one."""
    kl: Mapping[str, Any] = field(default_factory=dict)
    """How the place of the KL is told: "switches" by place, the columns in which it is "shown", and what holds
    "otherwise", or "by_algorithm"; "facts" by place; the key of the "target" without which the coefficient does not
    adapt, or of the "kind" of its control."""
    products: Mapping[str, Sequence[str]] = field(default_factory=dict)
    quotients: Mapping[str, Sequence[str]] = field(default_factory=dict)
    positive: Mapping[str, str] = field(default_factory=dict)
    """What follows from several settings; see ``derive.settings``."""
    tempered: str = ""
    """The column whose presence says that logits are divided by the temperature, "*" for always; whether they are
    truncated, too, is not known."""
    whitened_ppo: bool = False
    """Whether its PPO whitens advantages."""
    schedule: bool = False
    """Whether its steps and its warm-up are those of transformers' Trainer."""
    needs: int = 1
    """How many distinctive patterns it takes to be recognised."""
    prefixes: tuple[str, ...] = ("train/",)
    """What trackers put before the names."""
    endings: tuple[str, ...] = ()
    """What may stand behind the names, as "_mean"."""
    heldout: tuple[str, ...] = ("eval/", "eval_", "test/", "test_")
    """What the names of held-out measurements begin with."""
    choices: Mapping[str, Choice] = field(default_factory=dict)
    """Metrics that a setting decides; where the log lacks it, ``names`` holds."""
    formats: tuple[str, ...] = ()
    """Formats of logs that only this trainer writes."""
    caveats: Mapping[str, str] = field(default_factory=dict)
    """What a reader of a metric should know, by the trainer's name."""
    logs_critic: bool = False
    """Whether it logs values wherever it learns them, so that a log without any has no critic."""
    averages: bool = False
    """Whether a row is the mean of all steps since the row before."""
    wrapper: str = ""
    """What its config may be wrapped in."""
    of_many: bool = False
    """Whether it is no trainer's own."""

    def own_keys(self, config: Config, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return the trainer's own key of each canonical setting: the one that its config holds, else the first usual.

        Of a vocabulary that many share, the first would be another trainer's.
        """
        trainer_keys: dict[str, str] = {}
        for name, alternatives in {**self.keys, **self.place_keys.get(str(settings.get("kl_place")), {})}.items():
            spellings = alternatives.split("|")
            usual = "" if self.of_many else next(key for key in spellings if key not in self.rare_keys)
            trainer_key = next((key for key in spellings if key in config), usual)
            trainer_keys |= {name: trainer_key} if trainer_key else {}
        return trainer_keys

    def meanings(self) -> Iterator[tuple[str, Name]]:
        """Yield what each of its names means, and what a setting makes of it: "name with setting=value"."""
        for pattern, name in self.names.items():
            yield pattern, name
            if choice := self.choices.get(pattern):
                setting = choice.settings.partition("|")[0]
                yield from (
                    (f"{pattern} with {setting}={value}", meaning) for value, meaning in choice.meanings.items()
                )

    def bare(self, logged: str) -> tuple[str, ...]:
        """Return the spellings that a logged name may have in this table: as it is, spelled as most are, no prefix."""
        spellings = [logged] if (spelled := spell(logged)) == logged else [logged, spelled]
        stripped = [name[len(prefix) :] for name in spellings for prefix in self.prefixes if name.startswith(prefix)]
        ended = [(name, ending) for name in (*spellings, *stripped) for ending in self.endings]
        stripped += [name.removesuffix(ending) for name, ending in ended if name.endswith(ending)]
        bare_names = (*spellings, *(bare_name for bare_name in stripped if bare_name))
        return (*bare_names, *(unfolded for name in bare_names for unfolded in self._unfolded(flatten(name))))

    def _unfolded(self, flat: str) -> Iterator[str]:
        """Yield the name with slashes of a name that an export without any has underscores in."""
        if flat in self.flat:
            yield self.flat[flat]
        elif "_" in flat:
            matches = ((name, wildcard(pattern, flat)) for pattern, name in self.flat.items() if "*" in pattern)
            yield from (name.replace("*", match) for name, match in matches if match)

    @cached_property
    def flat(self) -> Mapping[str, str]:
        """Its names by what becomes of them where slashes are not allowed, as in some exports.

        A pattern that is open at an end could be anything there.
        """
        slashed = (name for name in self.names if "/" in name and name.strip("*") == name)
        return {flatten(name): name for name in slashed}


@cache
def load(trainer: str) -> Table:
    """Return the table of a trainer, from its file and those that it extends; they are read once."""
    record, choices = _read(trainer), {}
    for name, choice in record.get("choices", {}).items():
        meanings = record["choices"][choice["as"]]["meanings"] if "as" in choice else choice["meanings"]
        choices[name] = Choice(choice["settings"], names(meanings), names(choice.get("beside", "")))
    parsed = {
        "names": names(record["names"]),
        "keys": keys(record.get("keys", "")),
        "place_keys": {place: keys(text) for place, text in record.get("place_keys", {}).items()},
        "choices": choices,
        **{name: tuple(record[name]) for name in LISTS if name in record},
    }
    return Table(trainer, **{**record, **parsed})


def _read(trainer: str) -> dict[str, Any]:
    record = tomllib.loads((TRAINERS / f"{trainer}.toml").read_text(encoding="utf-8"))
    base = _read(record.pop("extends")) if "extends" in record else {}
    # Names and keys add to those of the base; everything else takes its place.
    joined: dict[str, Any] = {n: f"{base[n]}\n{record[n]}" for n in ("names", "keys") if n in base and n in record}
    return {**base, **record, **joined}


def spell(name: str) -> str:
    """Return a name in lower case with underscores, as most are written; notebooks show "rewards / fmt"."""
    return english(name).lower().replace(" / ", "/").replace(" ", "_").replace("-", "_")


def flatten(name: str) -> str:
    """Return a name with underscores for slashes."""
    return name.lower().replace("/", "_")


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
