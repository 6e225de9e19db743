"""Queries that need no model: rules on the words of a request, and queries that find chosen documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from steadyrl.environments.search.index import Document, SearchIndex
from steadyrl.environments.search.tokens import MAX_TERMS, words_of
from steadyrl.environments.search.words import STOP_WORDS, content_words

# Queries that look like more than the one word in them, and find no more: what a reward for the form would pay for.
# Policies wrote most of them. `steadyrl task check` fails rewards that pay any of them more than the single word.
# {w} is the word that finds something, {v} another one of the request; the words of noise are in no document.
_FORMS = (
    "{w} OR {w}",
    "{w} AND {w}",
    "( {w} OR {w} ) AND ( {w} OR {w} )",
    "{w} AND ( {w} OR {v} )",
    "{w} OR {v}",
    "{w} OR documents",
    "{w} OR the",
    "the AND ( to OR {w} )",
    "{w} AND ( the OR of )",
    "{w} OR ( qzxvwj AND wvxqzk )",
    "( {w} AND qzxvwj ) OR {w}",
    "{w} NOT qzxvwj",
    "{w} OR {v} OR the OR to OR of OR a OR in OR is",
)
_WORDS_OF_DOCUMENT = 5  # words that single out most documents of a corpus of thousands
MAX_DOCUMENTS = MAX_TERMS // _WORDS_OF_DOCUMENT  # of one query
_RANK_TIME_LIMIT_S = 30.0  # a large corpus takes longer to rank than to search


def rarest_words(request: str, index: SearchIndex) -> list[str]:
    """Return the request's content words that occur in the index, the rarest first; if none does, the first word."""
    words = [(index.document_frequency(word), word) for word in content_words(request)]
    return [word for frequency, word in sorted(words) if frequency] or content_words(request)[:1]


def _two_by_two(words: Sequence[str]) -> str:
    return f"( {' OR '.join(words[:2])} ) AND ( {' OR '.join(words[2:])} )" if len(words) > 2 else " OR ".join(words)


BASELINES: Mapping[str, Callable[[str, SearchIndex], str]] = {
    "AND of the first two words": lambda request, _: " AND ".join(content_words(request)[:2]),
    "AND of all words": lambda request, _: " AND ".join(content_words(request)),
    "OR of all words": lambda request, _: " OR ".join(content_words(request)),
    "(a OR b) AND (c OR d) of the first four": lambda request, _: _two_by_two(content_words(request)[:4]),
    "rarest word": lambda request, index: "".join(rarest_words(request, index)[:1]),
    "OR of the two rarest words": lambda request, index: " OR ".join(rarest_words(request, index)[:2]),
    "AND of the two rarest words": lambda request, index: " AND ".join(rarest_words(request, index)[:2]),
}


def ranked_first(request: str, count: int, index: SearchIndex) -> list[int]:
    """Return the numbers of the documents that a ranked search (BM25) of a request's content words finds first.

    Raises:
        EngineFailure: If the engine fails, or takes longer than 30 s.
    """
    return [number for number, _ in index.ranked(content_words(request), count, _RANK_TIME_LIMIT_S)]


def documents_query(numbers: Sequence[int], documents: Sequence[Document], index: SearchIndex) -> str:
    """Return a query that finds chosen documents: for each the AND of its five rarest words, all joined by OR.

    The query also finds documents that have the same five words. Beyond 12 documents, the others are left out.

    Args:
        numbers: Document numbers; none gives an empty query.
        documents: The corpus, by document number.
        index: Counts the documents that contain a word.
    """
    alternatives = []
    for number in numbers[:MAX_DOCUMENTS]:
        words = dict.fromkeys(w for w in words_of(documents[number].text) if w not in STOP_WORDS)
        rarest_first = sorted((index.document_frequency(word), word) for word in words)
        alternatives.append(" AND ".join(word for _, word in rarest_first[:_WORDS_OF_DOCUMENT]))
    return " OR ".join(f"( {alternative} )" for alternative in dict.fromkeys(alternatives))


def honest_core(request: str, index: SearchIndex) -> str:
    """Return the rarest content word of a request, or "the" if it has none."""
    return "".join(rarest_words(request, index)[:1]) or "the"


def empty_forms(request: str, index: SearchIndex) -> Mapping[str, str]:
    """Return queries whose core is ``honest_core``, by their form."""
    words = rarest_words(request, index) or ["the"]
    word, second_word = words[0], words[min(1, len(words) - 1)]
    return {form.format(w="w", v="v"): form.format(w=word, v=second_word) for form in _FORMS}
