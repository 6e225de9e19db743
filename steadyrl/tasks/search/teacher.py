"""Queries for a warm start: those of a searcher who knows how common words are, and none of the documents.

Words are drawn, the rarer the likelier, and joined in one of several forms. So a policy that learns from them keeps
trying different words and forms, and rewards can decide between them.
"""

from __future__ import annotations

import random

from steadyrl.tasks.search.index import SearchIndex
from steadyrl.tasks.search.words import content_words

_FORMS = ("{0} AND {1}", "{0} AND ( {1} OR {2} )", "{0}")
_SHARES = (0.5, 0.3, 0.2)


def teacher_query(request: str, index: SearchIndex) -> str | None:
    """Return a query of one to three different words of a request, or None if it has no content word.

    Equal requests get equal queries. A form that needs more words than there are is replaced by a shorter one.
    """
    generator = random.Random(request)
    known = [(word, index.document_frequency(word)) for word in content_words(request)]
    # Drawing without replacement by weights 1 / (1 + frequency): the earliest of exponential times with these rates.
    times = sorted((generator.expovariate(1.0) * (1 + frequency), word) for word, frequency in known if frequency)
    words = [word for _, word in times]
    if not words:
        return None
    form = generator.choices(_FORMS, _SHARES)[0]
    if len(words) < 3 and "{2}" in form:
        form = _FORMS[0]
    return (form if len(words) > 1 else "{0}").format(*words)
