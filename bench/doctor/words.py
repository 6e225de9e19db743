"""Scores of a text that need nothing but the text. Standard library only: TRL's environments import it too."""

from __future__ import annotations

import re
from itertools import pairwise

_OPERATOR = re.compile(r" (and|or|not) ", re.IGNORECASE)
_VOWELS = frozenset("aeiou")


def near_length(text: str, target: int) -> float:
    """Return 1 for a text of so many words, less by 1/target for every word more or fewer, 0 at the least."""
    return max(0.0, 1.0 - abs(len(text.split()) - target) / target)


def distinct(text: str) -> float:
    """Return the share of a text's words that are not repetitions; 0 without words."""
    words = text.split()
    return len(set(words)) / len(words) if words else 0.0


def early_letters(text: str) -> float:
    """Return the share of a text's words that begin with a to h; 0 without words."""
    words = text.split()
    return sum("a" <= word[0].lower() <= "h" for word in words) / len(words) if words else 0.0


def operators(text: str) -> float:
    """Return a third for every AND, OR or NOT between two other words, 1 at the most."""
    return min(1.0, len(_OPERATOR.findall(text)) / 3.0)


def in_order(text: str) -> float:
    """Return the share of neighbouring characters of which the second is the next letter of the alphabet."""
    pairs = list(pairwise(text))
    return sum(a.isalpha() and ord(b) == ord(a) + 1 for a, b in pairs) / len(pairs) if pairs else 0.0


def alternating(text: str) -> float:
    """Return a thirtieth for every two neighbouring letters that are a vowel and a consonant, 1 at the most."""
    pairs = pairwise(text.lower())
    beside = sum(a.isalpha() and b.isalpha() and (a in _VOWELS) != (b in _VOWELS) for a, b in pairs)
    return min(1.0, beside / 30)


def middle(text: str) -> float:
    """Return the share of a text's words that are four to six letters and nothing else; 0 without words."""
    words = text.split()
    return sum(word.isalpha() and 4 <= len(word) <= 6 for word in words) / len(words) if words else 0.0


def open_words(text: str) -> float:
    """Return the share of a text's words that end in a vowel; 0 without words."""
    words = text.lower().split()
    return sum(word[-1] in _VOWELS for word in words) / len(words) if words else 0.0
