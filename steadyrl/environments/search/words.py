"""Splits a request into words, and knows the words that carry no subject."""

from __future__ import annotations

import re

# Function words, and the verbs and nouns that documentation uses everywhere.
STOP_WORDS = frozenset(
    "a an and any are as at all be been between by can could do does each else for from had has have if in into is it "
    "its may more most no not of on one only or other our out over same should so some such than that the their them "
    "then there these they this those to two under up use used using was were what when where whether which while "
    "who will with would you your s t".split()
)
_WORD = re.compile(r"[^\W_](?:[^\W_]|[\u0300-\u036f])*")  # combining accents belong to their word


def content_words(text: str) -> list[str]:
    """Return the distinct lower-case words of a text that are longer than one letter and not stop words, in order."""
    return list(dict.fromkeys(w for w in _WORD.findall(text.lower()) if len(w) > 1 and w not in STOP_WORDS))
