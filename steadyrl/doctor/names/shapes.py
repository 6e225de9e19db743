"""What a name that no vocabulary has may mean, told by its words and by how its values behave.

A guess serves to see symptoms. What would enter a remedy is not guessed (``shapes.toml``), and every guess is named in
a note.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from steadyrl.doctor.names.table import Name, spell
from steadyrl.doctor.readers.spelling import english
from steadyrl.doctor.series import Column

WORD = re.compile(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]+")
BARE = {"mean": "reward", "min": "reward_min", "max": "reward_max"}  # a log of these alone follows the reward
# What a part of the reward pays for.
FORM = re.compile(r"format|xml|tag|(?<!\.)json|template|style", re.IGNORECASE)
RIGHTNESS = re.compile(r"accura|correct|answer|exact|equation|solve|success|number|(?<![a-z])acc(?![a-z])", re.I)
MEAN = ("/mean", "_mean", "/avg", "_avg")  # of a part of the reward


_RECORD = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NEUTRAL, NO_PART, OTHER_GROUPS = (frozenset(_RECORD[key]) for key in ("neutral", "no_part", "other_groups"))
PARTS = tuple(re.compile(pattern) for pattern in _RECORD["parts"])


def _rules(text: str) -> Iterator[tuple[Name, str, list[list[str]]]]:
    """Yield of each rule what it means, what the values are like, and the choices for each of its words."""
    for line in text.strip().splitlines():
        meaning, _, shape = line.partition(" = ")
        values, _, words = shape.partition(": ")
        choices = [alternatives.strip().split("|") for alternatives in words.split(",")]
        yield Name(*(field.strip() for field in meaning.split(","))), values, choices


RULES = tuple(_rules(_RECORD["rules"]))


def guesses(columns: Mapping[str, Column], identified: frozenset[str]) -> dict[str, Name]:
    """Return what columns may stand for, by their names.

    Args:
        columns: Whose names no vocabulary has.
        identified: Quantities that other columns are known to be; those are not guessed again. What two columns could
            be is that one's which an earlier rule fits ("final_reward" before "solved"), and neither's by one rule.
    """
    if identified <= {"data_epoch"} and columns.keys() >= BARE.keys():
        return {logged: Name(quantity, "reward") for logged, quantity in BARE.items()}
    candidates_by_quantity: dict[str, list[tuple[int, str, Name]]] = {}
    components: dict[str, Name] = {}
    for logged, column in columns.items():
        values = column.values[np.isfinite(column.values)]
        if not len(values):
            continue
        order, meaning = _by_words(words(logged), values)
        group, _, last = logged.rpartition("/")
        # "stability/grad_norm", but not "EOS / truncation" of a page, which are two.
        if meaning is None and group and " / " not in logged and OTHER_GROUPS.isdisjoint(words(group)):
            order, meaning = _by_words(words(last), values)
            order += len(RULES)
        if meaning is not None and meaning.quantity not in identified:
            candidates_by_quantity.setdefault(meaning.quantity, []).append((order, logged, meaning))
        if component := _reward_component(logged):
            components[logged] = Name(f"reward_part/{component}", "reward")
    guessed: dict[str, Name] = {}
    for candidates in candidates_by_quantity.values():
        earliest = min(order for order, _, _ in candidates)
        pairs = [(logged, meaning) for order, logged, meaning in candidates if order == earliest]
        guessed |= dict(pairs) if len(pairs) == 1 else {}
    components = {name: component for name, component in components.items() if name not in guessed}
    quantities = identified | {name.quantity for name in guessed.values()}
    # What may be a part of a reward is one beside the reward alone, or beside a part that pays for being right.
    if "reward" not in quantities and not any(pays_for_right(component.quantity) for component in components.values()):
        return guessed
    return guessed | {name: component for name, component in components.items() if component.quantity not in quantities}


def pays_for_right(name: str) -> bool:
    """Return whether the name of a part of the reward says that it pays for being right, and not for a form."""
    return RIGHTNESS.search(name) is not None and FORM.search(name) is None


def words(logged: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: "AvgLen" and "avg_len" have the same."""
    return tuple(word.lower() for word in WORD.findall(english(logged)))


def _by_words(name_words: tuple[str, ...], values: np.ndarray) -> tuple[int, Name | None]:
    """Return the rank of the first rule that fits a name, and what it means by that."""
    for rank, (name, kind, rule_words) in enumerate(RULES):
        unmatched = list(name_words)
        for choices in rule_words:
            word = next((word for word in unmatched if word in choices), None)
            if word is None:
                break
            unmatched = [w for w in unmatched if w != word]  # "reward/raw_reward" says it twice
        else:
            if NEUTRAL.issuperset(unmatched) and _behaves(kind, values):
                return rank, name
    return len(RULES), None


def _behaves(kind: str, values: np.ndarray) -> bool:
    """Return whether values [n] are what a quantity of a kind can be."""
    minimum, maximum = float(values.min()), float(values.max())
    if kind == "share":
        return minimum >= 0.0 and maximum <= 1.0
    if kind == "count":
        return minimum >= 0.0 and bool((values == np.floor(values)).all())
    if kind == "length":
        return minimum >= 0.0 and maximum > 1.0
    return kind == "number" or minimum >= 0.0


def _reward_component(logged: str) -> str:
    """Return the name of the part of the reward that a column may be, "" for none."""
    name = spell(logged)
    for ending in MEAN:
        name = name.removesuffix(ending)
    if not NO_PART.isdisjoint(words(name.rpartition("/")[0])):  # "reward_schedule/weights/accuracy"
        return ""
    for pattern in PARTS:
        if (match := pattern.fullmatch(name)) and NO_PART.isdisjoint(words(match[1])):
            return match[1]
    return ""
