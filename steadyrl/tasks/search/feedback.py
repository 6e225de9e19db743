"""Pseudo-relevance feedback: the words of the documents that a ranked search of a request finds first.

A searcher looks at what comes up first and takes words from there. Nobody says which of these documents are relevant,
so the words need the index and nothing else (Rocchio, in The SMART Retrieval System, 1971, without judgements).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from steadyrl.tasks.search.index import Document, SearchIndex
from steadyrl.tasks.search.query import Term
from steadyrl.tasks.search.words import content_words

# Chosen on training requests of the standard library (docs/log.md).
_DOCUMENTS = 5
_WORDS = 6
_OWN = 2.0  # times the weight of another word
_TIME_LIMIT_S = 30.0  # for each request, once; a large corpus takes longer to rank than to search


class Feedback:
    """Finds words beyond a request's own in a corpus."""

    def __init__(self, documents: Sequence[Document], index: SearchIndex) -> None:
        """Keep what the words are taken from.

        Args:
            documents: The corpus, by document number.
            index: Of the same documents.
        """
        self._documents = documents
        self._index = index

    def words(self, request: str) -> list[str]:
        """Return up to six words, no two of which find the same documents, the most telling first.

        They are words that two of the five first documents share, and words of the request that one of them has. A
        word weighs the sum of the scores of the documents that have it, times the logarithm of how rare it is, and
        twice that if it is the request's. Words of a single document of the corpus are left out.

        Args:
            request: In plain words.

        Raises:
            EngineFailure: If the engine fails, or takes longer than 30 s.
        """
        own = content_words(request)
        scores: defaultdict[str, list[float]] = defaultdict(list)
        for number, score in self._index.ranked(own, _DOCUMENTS, _TIME_LIMIT_S):
            for word in content_words(self._documents[number].text):
                scores[word].append(score)
        weights = {}
        for word, found in scores.items():
            if word.isdigit() or not (len(found) > 1 or word in own):
                continue
            if (frequency := self._index.document_frequency(word)) > 1:
                rarity = math.log(self._index.document_count / frequency)
                weights[word] = sum(found) * rarity * (_OWN if word in own else 1.0)
        kept: dict[bytes, str] = {}
        for word in sorted(weights, key=lambda word: (-weights[word], word)):
            kept.setdefault(self._index.search(Term(word)).tobytes(), word)
            if len(kept) == _WORDS:
                break
        return list(kept.values())
