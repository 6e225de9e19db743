"""What counts as a number in a log, however it is spelled."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MAX_DIGITS = 64  # of a number written as text; longer texts are no metrics
MAX_NESTING = 16
WORDS = {"true": True, "false": False, "none": None, "null": None, "": None}

_WRAPPED = re.compile(r"(?:\w+\.)*(?:float|int|uint|bfloat|double|tensor|array)\w*\(\s*([^\s,()]+).*", re.DOTALL)
_MISSING = {"none", "null", "n/a"}


def number(value: Any, null: float | None = math.nan) -> float | None:
    """Return a logged value as a number, or None if it is none: a bool, a word, a list.

    Args:
        value: As parsed.
        null: What a null stands for; None leaves it out.
    """
    kind = type(value)
    if kind is float:
        return float(value)
    if kind is int:
        try:
            return float(value)
        except OverflowError:
            return math.copysign(math.inf, 1 if value > 0 else -1)
    if kind is str:
        return spelled(value, null)
    return null if value is None else None


def spelled(text: str, null: float | None = math.nan) -> float | None:
    """Return the number that a text spells, such as "0.1", "-inf", "np.float64(1.5)" or "tensor(2.)", or None."""
    text = text.strip()
    if len(text) > MAX_DIGITS or not text or "_" in text:  # float() reads "2024_01" as a number
        return None
    wrapped = _WRAPPED.fullmatch(text)
    try:
        return float(wrapped[1] if wrapped else text)
    except ValueError:
        return null if text.lower() in _MISSING else None


def numbers(values: Sequence[Any], null: float | None = math.nan) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the numbers among some values.

    Args:
        values: [n] as parsed.
        null: What a null stands for; None leaves it out.

    Returns:
        [m] float64, and [m] their places among the n; None for the places if all are numbers.
    """
    if set(map(type, values)) <= {float, int}:
        try:
            return np.array(values, np.float64), None
        except OverflowError:  # an int beyond float64
            pass
    found = [number(value, null) for value in values]
    places = np.array([i for i, value in enumerate(found) if value is not None], np.int64)
    return np.array([value for value in found if value is not None], np.float64), places


def flat_settings(nested: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Return settings with nested keys joined by dots."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value and depth < MAX_NESTING:
            found |= flat_settings(value, f"{prefix}{key}.", depth + 1)
        else:
            found[f"{prefix}{key}"] = value
    return found


def typed(value: Any) -> Any:
    """Return a setting that was written as text as the number or truth value that it spells, None for words of none."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if re.fullmatch(r"[-+]?\d{1,18}", text):
        return int(text)
    found = spelled(text)
    return text if found is None else found
