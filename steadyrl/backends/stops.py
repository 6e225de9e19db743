"""Finds strings that end a completion in what a policy has written so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

SPARE = 4  # tokens looked at beside those of a string: a decoded text may lose something at its beginning


class StopStrings:
    """Strings that end a completion.

    Only the end of a text is decoded for every token. A token is at least one byte, so a string is no longer, in
    tokens, than its bytes.

    Args:
        texts: The strings, none of them empty.
        decode: Ids [T] to text.

    Attributes:
        reach: How many of the last tokens are looked at.
    """

    def __init__(self, texts: Sequence[str], decode: Callable[[np.ndarray], str]):
        self._texts, self._decode = texts, decode
        self.reach = max(len(text.encode()) for text in texts) + SPARE

    def ended(self, sequences: Iterable[np.ndarray]) -> list[bool]:
        """Return which texts hold one of the strings, of each text by the last ``reach`` ids so far."""
        texts = [self._decode(ids) for ids in sequences]
        return [any(stop in text for stop in self._texts) for text in texts]
