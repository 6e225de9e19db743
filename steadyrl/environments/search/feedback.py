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
        self._read = functools.lru_cache(maxsize=10_000)(self._words_and_pairs)
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
        first = [number for number, _ in ranked]
        weights: defaultdict[str, float] = defaultdict(float)
        together: defaultdict[tuple[str, str], float] = defaultdict(float)
        for number, chance in zip(first, _CHANCE, strict=False):
            words, pairs = self._read(number)
            for word in words:
                weights[word] += chance * self._rarity(word)
            for pair in pairs:
                together[pair] += chance
        candidates = sorted(weights, key=lambda word: (-weights[word], word))[:_CANDIDATES]
        likely = [pair for pair in together if set(pair) <= set(candidates)]
        phrases = sorted(likely, key=lambda pair: (-together[pair], pair))[:_PHRASES]
        return self._in_order(candidates, phrases, first) if candidates else []

    def _words_and_pairs(self, number: int) -> tuple[list[str], set[tuple[str, str]]]:
        """Return a document's words that another one has too, and pairs of them that follow one another."""
        text = words_of(self._documents[number].text.replace("_", " "))[:_READ_WORDS]
        words = [w for w in content_words(" ".join(text)) if not w.isdigit() and self._index.document_frequency(w) > 1]
        word_set = set(words)
        return words, {(a, b) for a, b in itertools.pairwise(text) if a != b and a in word_set and b in word_set}

    def _in_order(self, words: Sequence[str], phrases: Sequence[tuple[str, str]], first: Sequence[int]) -> list[str]:
        """Return which words and phrases to keep, those of the best queries first."""
        has: dict[_Leaf, np.ndarray] = {Term(word): self._index.marks(Term(word)).astype(np.float32) for word in words}
        rows = np.stack(list(has.values()))  # [words, documents]
        has |= {Phrase(pair): self._index.marks(Phrase(pair)).astype(np.float32) for pair in phrases}
        joint_counts = rows @ rows.T  # documents that two words find, [words, words]
        chances = _CHANCE[: len(first)]
        expected = 2 * (rows[:, first] * chances) @ rows[:, first].T / (joint_counts + _RELEVANT)  # F1
        word_f1 = np.diag(expected)
        better = np.triu(expected > np.maximum(word_f1, word_f1[:, None]), 1)
        queries: list[tuple[float, tuple[_Leaf, ...]]] = [
            (expected[i, j], (Term(words[i]), Term(words[j]))) for i, j in np.argwhere(better)
        ]
        alone = dict(zip(words, word_f1, strict=True))
        for phrase in map(Phrase, phrases):
            f1 = 2 * has[phrase][first] @ chances / (has[phrase].sum() + _RELEVANT)
            if f1 > max(alone[word] for word in phrase.words):
                queries.append((f1 + _PHRASE_BONUS, (phrase,)))
        queries.sort(key=lambda query: -query[0])
        selected: dict[str, np.ndarray] = {}
        used_words: set[str] = set()
        for leaf in dict.fromkeys([*(leaf for _, query in queries for leaf in query), *map(Term, words)]):
            own = terms(leaf)
            if (
                used_words.isdisjoint(own)
                and len(used_words) + len(own) <= _WORDS
                and not any(has[leaf] @ other == min(has[leaf].sum(), other.sum()) for other in selected.values())
            ):
                selected[leaf.text if isinstance(leaf, Term) else f'"{" ".join(own)}"'] = has[leaf]
                used_words.update(own)
        return list(selected)
