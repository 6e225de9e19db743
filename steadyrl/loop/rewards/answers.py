"""Reads the final number of an answer, and compares numbers exactly."""

from __future__ import annotations

import re
from fractions import Fraction

MARK = "####"  # before the final answer, as in GSM8K
_LONGEST = 40  # characters of a number: longer ones are noise, and exact arithmetic with them is slow
_MINUS = "\u2212"  # as typesetting has it, where a keyboard has a hyphen
_EXPONENT = rf"(?:e[-+{_MINUS}]?\d+)"
_NUMBER = re.compile(
    rf"(?<![\w.])[-+{_MINUS}]?\$?"
    rf"(?:0(?:x[\da-f]|[ob]\d)\w*|(?:(?:\d{{1,3}}(?:,\d{{3,}})+|\d+)(?:\.\d+)?|\.\d+){_EXPONENT}?)"
    rf"(?:\s*/\s*\d+{_EXPONENT}?(?!\.?\d|{_EXPONENT}))?",
    re.IGNORECASE,
)
# Other bases, commas elsewhere than between thousands, and exponents that make numbers of more than a thousand digits.
_UNREAD = re.compile(r"[xob]|,\d{4}|e[-+]?\d{4}", re.IGNORECASE)


def final_number(text: str) -> Fraction | None:
    """Return the number after the last ``####``, or else the last number of a text; None where there is none.

    Signs of dollars and commas between thousands do not count. ``1/2`` is one number; ``3.0`` equals ``3``,
    and ``3e2`` is 300. None also if the number is one that is not read, such as ``1/0``, ``0x10`` or ``1,2345``, and if
    a fraction is a whole number: ``72 / 6`` repeats a question, and does not answer it.
    """
    marked = text.rpartition(MARK)
    numbers = _NUMBER.findall(marked[2])
    if not numbers:
        return None
    # After a mark the first number is the answer: what follows it is a remark.
    signed = (numbers[0] if marked[1] else numbers[-1]).replace(_MINUS, "-")
    plain = re.sub(r"[$,\s]", "", signed)
    if len(plain) > _LONGEST or _UNREAD.search(signed):
        return None
    top, slash, bottom = plain.partition("/")
    if not slash:
        return Fraction(top)  # in digits of any script
    divisor = Fraction(bottom)
    quotient = Fraction(top) / divisor if divisor else None
    return None if quotient is None or quotient.denominator == 1 else quotient
