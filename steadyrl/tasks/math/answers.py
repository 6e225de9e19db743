"""Reads the final number of an answer, and compares numbers exactly."""

from __future__ import annotations

import re
from fractions import Fraction

MARK = "####"  # before the final answer, as in GSM8K
_LONGEST = 40  # characters of a number: longer ones are noise, and exact arithmetic with them is slow
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s*/\s*\d+(?![\d.]))?|(?<![\w.])[-+]?\.\d+"
)


def final_number(text: str) -> Fraction | None:
    """Return the number after the last ``####``, or else the last number of a text; None where there is none.

    Signs of dollars and commas between thousands do not count. ``1/2`` is one number; ``3.0`` equals ``3``.
    """
    marked = text.rpartition(MARK)
    found = _NUMBER.findall(marked[2])
    if not found:
        return None
    # After a mark the first number is the answer: what follows it is a remark.
    return _value(found[0] if marked[1] else found[-1])


def _value(text: str) -> Fraction | None:
    plain = re.sub(r"[$,\s]", "", text)
    if len(plain) > _LONGEST:
        return None
    top, slash, bottom = plain.partition("/")
    divisor = int(bottom) if slash else 1  # in digits of any script, as int reads them
    return Fraction(top) / divisor if divisor else None
