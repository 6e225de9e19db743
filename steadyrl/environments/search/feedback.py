"""Pseudo-relevance feedback: words and phrases of the documents that a ranked search of a request finds first.

A searcher looks at what comes up first and takes words from there. Nobody says which of these documents are relevant,
so the words need the index and nothing else (Rocchio, in The SMART Retrieval System, 1971, without judgements). They
are ordered by the F1 to expect of queries of them, if the first documents are relevant more often than later ones.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from steadyrl.environments.search.index import Document, SearchIndex
from steadyrl.environments.search.query import Phrase, Term, terms
from steadyrl.environments.search.tokens import words_of
from steadyrl.environments.search.words import content_words

_Leaf = Term | Phrase

# Chosen on training requests of the standard library (docs/log/2026-11.md).
_DOCUMENTS = 10
_CHANCE = 0.45 / np.arange(1, _DOCUMENTS + 1) ** 0.75  # that the document of this rank is relevant
_RELEVANT = 12  # documents to expect; fewer would favour pairs that find fewer
_CANDIDATES = 16
_PHRASES = 8  # to search for, at most: each costs a search
_PHRASE_BONUS = 0.005  # F1; most phrases find the documents of "a AND b" that are about it
_WORDS = 6  # those of phrases included
_READ_WORDS = 200  # of a document; a search for each word of a long one would take seconds
_TIME_LIMIT_S = 30.0  # for each request, once; a large corpus takes longer to rank than to search


class Feedback:
    """Finds words and phrases beyond a request's own in a corpus."""

    def __init__(self, documents: Sequence[Document], index: SearchIndex) -> None:
        """Keep what the words are taken from.

        Args:
            documents: The corpus, by document number.
            index: Of the same documents.
        """
        self._index = index
        self._documents = documents
        self._cached_words = functools.lru_cache(maxsize=10_000)(self._words_and_pairs)
        self._rarity = functools.lru_cache(maxsize=100_000)(
            lambda word: math.log(self._index.document_count / self._index.document_frequency(word))
        )

    def terms(self, request: str) -> list[str]:
        """Return words and phrases of the first ten documents, as queries, those of the best query to expect first.

        Candidates are the 16 words with the highest weight: the chance that the documents which have it are relevant,
        summed, times the logarithm of how rare it is; and eight pairs of them that follow one another in a document.
        They are taken in the order of the queries ``a AND b`` and ``"a b"`` with the highest expected F1, of those that
        should find more than one word would, up to six words together. None shares a word with another or finds only
        documents of another, so that no part of a query of them can be left out.

        Args:
            request: In plain words.

        Raises:
            EngineFailure: If the engine fails, or takes longer than 30 s.
        """
        ranked = self._index.ranked(content_words(request), _DOCUMENTS, _TIME_LIMIT_S)
        numbers = [number for number, _ in ranked]
        weights: defaultdict[str, float] = defaultdict(float)
        pair_chances: defaultdict[tuple[str, str], float] = defaultdict(float)
        for number, chance in zip(numbers, _CHANCE, strict=False):
            words, pairs = self._cached_words(number)
            for word in words:
                weights[word] += chance * self._rarity(word)
            for pair in pairs:
                pair_chances[pair] += chance
        candidates = sorted(weights, key=lambda word: (-weights[word], word))[:_CANDIDATES]
        likely = [pair for pair in pair_chances if set(pair) <= set(candidates)]
        phrases = sorted(likely, key=lambda pair: (-pair_chances[pair], pair))[:_PHRASES]
        return self._select_terms(candidates, phrases, numbers) if candidates else []

    def _words_and_pairs(self, number: int) -> tuple[list[str], set[tuple[str, str]]]:
        """Return a document's words that another one has too, and pairs of them that follow one another."""
        text = words_of(self._documents[number].text.replace("_", " "))[:_READ_WORDS]
        words = [w for w in content_words(" ".join(text)) if not w.isdigit() and self._index.document_frequency(w) > 1]
        word_set = set(words)
        return words, {(a, b) for a, b in itertools.pairwise(text) if a != b and a in word_set and b in word_set}

    def _select_terms(
        self, words: Sequence[str], phrases: Sequence[tuple[str, str]], numbers: Sequence[int]
    ) -> list[str]:
        """Return which words and phrases to keep, those of the best queries first."""
        leaves: list[_Leaf] = [*map(Term, words), *map(Phrase, phrases)]
        matches = np.zeros((len(leaves), self._index.document_count), np.float32)  # [L, documents]
        for row, leaf in zip(matches, leaves, strict=True):
            row[self._index.search(leaf)] = 1.0
        joint_counts = matches @ matches.T  # [L, L], documents that both leaves find
        counts = np.diag(joint_counts)  # [L]
        ranked_matches = matches[:, numbers]  # [L, ranked documents]
        pair_f1 = (
            2 * (ranked_matches * _CHANCE[: len(numbers)]) @ ranked_matches.T / (joint_counts + _RELEVANT)
        )  # [L, L]
        leaf_f1 = np.diag(pair_f1)  # [L]
        count = len(words)
        word_f1 = dict(zip(words, leaf_f1, strict=False))
        better = np.triu(pair_f1 > np.maximum(leaf_f1, leaf_f1[:, None]), 1)[:count, :count]
        pairs = np.argwhere(better).tolist()
        queries: list[tuple[float, tuple[int, ...]]] = [(pair_f1[i, j], (i, j)) for i, j in pairs]
        for i, phrase in enumerate(phrases, count):
            if leaf_f1[i] > max(word_f1[word] for word in phrase):
                queries.append((leaf_f1[i] + _PHRASE_BONUS, (i,)))
        queries.sort(key=lambda query: -query[0])
        selected: list[int] = []
        used_words: set[str] = set()
        for i in dict.fromkeys([*(i for _, query in queries for i in query), *range(count)]):
            leaf_words = terms(leaves[i])
            if (
                used_words.isdisjoint(leaf_words)
                and len(used_words) + len(leaf_words) <= _WORDS
                and not any(joint_counts[i, earlier] == min(counts[i], counts[earlier]) for earlier in selected)
            ):
                selected.append(i)
                used_words.update(leaf_words)
        return [words[i] if i < count else f'"{" ".join(phrases[i - count])}"' for i in selected]
