"""Queries that look like more than the one word in them, and find no more: what a reward for the form would pay for.

Policies wrote most of them. `steadyrl task check` scores them beside the single word, and fails rewards that pay any of
them more.
"""

from __future__ import annotations

from collections.abc import Mapping

from steadyrl.environments.search.baselines import rarest_words
from steadyrl.environments.search.index import SearchIndex

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


def honest_core(request: str, index: SearchIndex) -> str:
    """Return the rarest content word of a request, or "the" if it has none."""
    return "".join(rarest_words(request, index)[:1]) or "the"


def empty_forms(request: str, index: SearchIndex) -> Mapping[str, str]:
    """Return queries whose core is ``honest_core``, by their form."""
    words = rarest_words(request, index) or ["the"]
    word, second_word = words[0], words[min(1, len(words) - 1)]
    return {form.format(w="w", v="v"): form.format(w=word, v=second_word) for form in _FORMS}
