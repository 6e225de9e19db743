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
_NO_NUMBERS = {"nan", "inf", "infinity"}
_MISSING = {"none", "null", "n/a"}
MINUS = "\u2212"  # the sign that word processors and papers write
_EMPHASIS = "*`~"  # around a cell of a Markdown table
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")


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
    """Return the number that a text spells, or None.

    Known are the forms of floats, of wrapped numbers ("np.float64(1.5)", "tensor(2.)"), percentages, which are shares
    of 1, thousands ("1,234"), the minus of typesetters, and the emphasis of Markdown ("**0.5**").
    """
    text = text.strip()
    if len(text) > MAX_DIGITS or not text or "_" in text:  # float() reads "2024_01" as a number
        return None
    if text.isalpha() and text.lower() not in _NO_NUMBERS:  # most words; float() takes long to refuse them
        return null if text.lower() in _MISSING else None
    try:
        return float(text)  # nearly always
    except ValueError:
        pass
    text = text.strip(_EMPHASIS).strip().replace(MINUS, "-")
    if _GROUPED.fullmatch(text.removesuffix("%")):
        text = text.replace(",", "")
    wrapped = _WRAPPED.fullmatch(text)
    share = text.endswith("%")
    try:
        value = float(wrapped[1] if wrapped else text[:-1] if share else text)
    except ValueError:
        return null if text.lower() in _MISSING else None
    return value / 100.0 if share else value


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
    parsed = [number(value, null) for value in values]
    places = np.array([i for i, value in enumerate(parsed) if value is not None], np.int64)
    return np.array([value for value in parsed if value is not None], np.float64), places


def flat_settings(nested: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Return settings with nested keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value and depth < MAX_NESTING:
            flat |= flat_settings(value, f"{prefix}{key}.", depth + 1)
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def typed(value: Any) -> Any:
    """Return a setting that was written as text as the number or truth value that it spells, None for words of none."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if re.fullmatch(r"[-+]?\d{1,18}", text):
        return int(text)
    parsed = spelled(text)
    return text if parsed is None else parsed
