"""What differs between several answers to one problem: the words that not all of them have, in their order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
MOST_COMPARED = 12  # different answers of a problem; more share hardly a word


def marked(answers: Sequence[str]) -> list[list[tuple[str, bool]]]:
    """Return each answer as pieces, and of each piece whether it differs: whether another answer lacks it.

    Args:
        answers: To one problem, each at most some hundred words.
    """
    split = [_WORDS.findall(answer) for answer in answers]
    common = split[0] if split else []
    for words in split[1:MOST_COMPARED]:
        common = [common[i] for i in _shared(common, words)]
    return [_pieces(words, set(_shared(words, common))) for words in split]


def _shared(words: Sequence[str], others: Sequence[str]) -> list[int]:
    """Return the places of the words that both have in the same order."""
    blocks = SequenceMatcher(None, words, others, autojunk=False).get_matching_blocks()
    return [block.a + i for block in blocks for i in range(block.size)]


def _pieces(words: Sequence[str], shared: set[int]) -> list[tuple[str, bool]]:
    """Return neighbouring words of one kind as one piece; white space alone is never marked."""
    pieces: list[tuple[str, bool]] = []
    for i, word in enumerate(words):
        differs = i not in shared and (not word.isspace() or bool(pieces and pieces[-1][1]))
        if pieces and pieces[-1][1] == differs:
            pieces[-1] = (pieces[-1][0] + word, differs)
        else:
            pieces.append((word, differs))
    return pieces
