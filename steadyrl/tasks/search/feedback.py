"""Pseudo-relevance feedback: the words of the documents that a ranked search of a request finds first.

A searcher looks at what comes up first and takes words from there. Nobody says which of these documents are relevant,
so the words need the index and nothing else (Rocchio, in The SMART Retrieval System, 1971, without judgements). The
words are ordered by the F1 to expect of their pairs, if the first documents are relevant more often than later ones.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from steadyrl.tasks.search.index import Document, SearchIndex
from steadyrl.tasks.search.query import Term
from steadyrl.tasks.search.words import content_words

# Chosen on training requests of the standard library (docs/log.md).
_DOCUMENTS = 10
_CHANCE = 0.45 / np.arange(1, _DOCUMENTS + 1) ** 0.75  # that the document of this rank is relevant
_RELEVANT = 12  # documents to expect; fewer would favour pairs that find fewer
_CANDIDATES = 16
_WORDS = 6
_READ_WORDS = 100  # of a document; a search for each word of a long one would take seconds
_TIME_LIMIT_S = 30.0  # for each request, once; a large corpus takes longer to rank than to search


class Feedback:
    """Finds words beyond a request's own in a corpus."""

    def __init__(self, documents: Sequence[Document], index: SearchIndex) -> None:
        """Keep what the words are taken from.

        Args:
            documents: The corpus, by document number.
            index: Of the same documents.
        """
        self._index = index
        self._documents = documents
        self._words_of = functools.lru_cache(maxsize=10_000)(self._rare_words)
        self._rarity = functools.lru_cache(maxsize=100_000)(self._logarithm)

    def words(self, request: str) -> list[str]:
        """Return up to six words of the first ten documents, the pair to expect most of first.

        Candidates are the 16 words with the highest weight: the chance that the documents which have it are relevant,
        summed, times the logarithm of how rare it is. They are taken in the order of the pairs ``a AND b`` with the
        highest expected F1, of those that should find more than one word would. No word finds only documents of
        another one, so that no part of a pair can be left out.

        Args:
            request: In plain words.

        Raises:
            EngineFailure: If the engine fails, or takes longer than 30 s.
        """
        ranked = self._index.ranked(content_words(request), _DOCUMENTS, _TIME_LIMIT_S)
        first = [number for number, _ in ranked]
        weights: defaultdict[str, float] = defaultdict(float)
        for number, chance in zip(first, _CHANCE, strict=False):
            for word in self._words_of(number):
                weights[word] += chance * self._rarity(word)
        candidates = sorted(weights, key=lambda word: (-weights[word], word))[:_CANDIDATES]
        return [candidates[i] for i in self._in_order(candidates, first)] if candidates else []

    def _rare_words(self, number: int) -> list[str]:
        words = content_words(self._documents[number].text)[:_READ_WORDS]
        return [word for word in words if not word.isdigit() and self._index.document_frequency(word) > 1]

    def _logarithm(self, word: str) -> float:
        return math.log(self._index.document_count / self._index.document_frequency(word))

    def _in_order(self, words: Sequence[str], first: Sequence[int]) -> list[int]:
        """Return which words to keep, those of the best pairs first."""
        has = np.zeros((len(words), self._index.document_count), np.float32)  # [words, documents]
        for row, word in zip(has, words, strict=True):
            row[self._index.search(Term(word))] = 1.0
        both = has @ has.T  # documents that two words find, [words, words]
        expected = 2 * (has[:, first] * _CHANCE[: len(first)]) @ has[:, first].T / (both + _RELEVANT)  # F1
        one, found = np.diag(expected), np.diag(both)
        nested = (both == found) | (both == found[:, None])
        pairs = np.argwhere(np.triu(expected > np.maximum(one, one[:, None]), 1))
        best = pairs[np.argsort(-expected[tuple(pairs.T)], kind="stable")]
        kept: list[int] = []
        for i in dict.fromkeys([*best.ravel().tolist(), *range(len(words))]):
            if len(kept) < _WORDS and not nested[i, kept].any():
                kept.append(i)
        return kept
