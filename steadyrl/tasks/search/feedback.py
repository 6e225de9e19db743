"""Pseudo-relevance feedback: the words of the documents that a ranked search of a request finds first.

A searcher looks at what comes up first and takes words from there. Nobody says which of these documents are relevant,
so the words need the index and nothing else (Rocchio, in The SMART Retrieval System, 1971, without judgements).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from steadyrl.tasks.search.index import Document, SearchIndex
from steadyrl.tasks.search.query import Term
from steadyrl.tasks.search.words import content_words

# By the AND of the first two words on training requests of the standard library (docs/log.md).
_DOCUMENTS = 3
_WORDS = 6


class Feedback:
    """Finds words beyond a request's own in a corpus."""

    def __init__(self, documents: Sequence[Document], index: SearchIndex) -> None:
        """Read every document once.

        Args:
            documents: The corpus, by document number.
            index: Of the same documents.
        """
        self._words = [[w for w in content_words(d.text) if not w.isdigit()] for d in documents]
        self._frequencies = Counter(word for words in self._words for word in words)
        self._index = index

    def words(self, request: str) -> list[str]:
        """Return up to six words, no two of which find the same documents, the most telling first.

        A word weighs what its documents score in the ranked search, times the logarithm of how rare it is. Words of a
        single document are left out.

        Args:
            request: In plain words.
        """
        weights: defaultdict[str, float] = defaultdict(float)
        for number, score in self._index.ranked(content_words(request), _DOCUMENTS):
            for word in self._words[number]:
                if self._frequencies[word] > 1:
                    weights[word] += score * math.log(len(self._words) / self._frequencies[word])
        kept: dict[bytes, str] = {}
        for word in sorted(weights, key=lambda word: (-weights[word], word)):
            kept.setdefault(self._index.search(Term(word)).tobytes(), word)
            if len(kept) == _WORDS:
                break
        return list(kept.values())
