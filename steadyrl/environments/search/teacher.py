"""Short queries of words that the policy has read, the best of them in hindsight: what a warm start learns from.

The teacher sees the relevant documents and the policy does not, so it is taught on training requests only. Which words
of a request single out its subject holds for other requests too.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from steadyrl.environments.search.index import SearchIndex
from steadyrl.environments.search.query import Phrase, Term
from steadyrl.environments.search.tokens import words_of
from steadyrl.environments.search.worth import f1_of

# Nats of probability per F1: the best query is taught e times as often as one that is worse by this much.
_TEMPERATURE = 0.05
_WORTH_TEACHING = 0.1  # F1; in the best words of a request that has no better query there is nothing to learn

_Marks = Mapping[str, np.ndarray]  # which documents a word is in: [documents] bool
_Query = tuple[str, float]  # and its F1


def taught_query(
    id: str, words: Sequence[str], relevant: np.ndarray, index: SearchIndex, per_skip: float = 0.0
) -> str | None:
    """Return a good query of some words, the same at every call, or None where none of them is worth it.

    Of each form (a, "a b", a AND b, a OR b, a AND ( b OR c )) one query is drawn, and one of these. Draws by
    exp(F1 / temperature) keep several forms and words alive in whoever learns from them. In every query each word
    helps: without it F1 would be lower.

    Args:
        id: The draw depends on it.
        words: What a policy could write: the request's rarest words, say. Seven make 203 queries. Phrases, in double
            quotes, are taught as they are.
        relevant: Document numbers that answer the request, distinct, at least one.
        index: The corpus.
        per_skip: F1 that a query has to make up for, for each word that it passes over: that comes in ``words`` before
            one of its own. Where this order means something, luck with words far back is not taught.
    """
    relevant_mask = np.zeros(index.document_count, bool)  # [documents]
    relevant_mask[relevant] = True
    phrases = {word: words_of(word) for word in words if word.startswith('"')}
    marks = {word: index.marks(Term(word)) for word in words if word not in phrases}
    phrase_queries = [
        (phrase, f1)
        for phrase, phrase_words in phrases.items()
        if (f1 := f1_of(index.marks(Phrase(phrase_words)), relevant_mask))
        > max(f1_of(index.marks(Term(word)), relevant_mask) for word in phrase_words)
    ]
    generator = np.random.default_rng(zlib.crc32(id.encode()))
    positions = {word: position for position, word in enumerate(words)}
    forms = [phrase_queries, *_queries_by_form(marks, relevant_mask)]
    form_queries = [_draw(queries, positions, per_skip, generator) for queries in forms if queries]
    query, f1 = _draw(form_queries, positions, per_skip, generator) if form_queries else ("", 0.0)
    return query if f1 >= _WORTH_TEACHING else None


def _queries_by_form(marks: _Marks, relevant: np.ndarray) -> Iterator[list[_Query]]:
    """Yield the queries of each form of which no word could be left out."""
    word_f1 = {word: f1_of(documents, relevant) for word, documents in marks.items()}
    yield [(word, f1) for word, f1 in word_f1.items() if f1]
    and_f1, or_f1 = {}, {}
    for a, b in itertools.combinations(marks, 2):
        and_f1[a, b] = and_f1[b, a] = f1_of(marks[a] & marks[b], relevant)
        or_f1[a, b] = or_f1[b, a] = f1_of(marks[a] | marks[b], relevant)
    yield [(f"{a} AND {b}", f1) for (a, b), f1 in and_f1.items() if f1 > max(word_f1[a], word_f1[b])]
    yield [(f"{a} OR {b}", f1) for (a, b), f1 in or_f1.items() if f1 > max(word_f1[a], word_f1[b])]
    yield [
        (f"{a} AND ( {b} OR {c} )", f1)
        for a, b, c in itertools.permutations(marks, 3)
        if (f1 := f1_of(marks[a] & (marks[b] | marks[c]), relevant))
        > max(word_f1[a], and_f1[a, b], and_f1[a, c], or_f1[b, c])
    ]


def _draw(
    queries: Sequence[_Query], positions: Mapping[str, int], per_skip: float, generator: np.random.Generator
) -> _Query:
    values = np.array([f1 - per_skip * _skipped(query, positions) for query, f1 in queries])
    weights = np.exp((values - values.max()) / _TEMPERATURE)  # [queries]; less the greatest, so that none overflows
    return queries[generator.choice(len(queries), p=weights / weights.sum())]


def _skipped(query: str, positions: Mapping[str, int]) -> int:
    used = [positions[word] for word in ([query] if query in positions else query.split()) if word in positions]
    return max(used) + 1 - len(used)
