"""What a policy's answers look like: their most frequent forms before and after training, and some drawn at random.

A mean hides an answer that is always the same, and chosen examples hide what is usual.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from steadyrl.core.types import DECODINGS
from steadyrl.show.page import markup
from steadyrl.show.report.evidence import Answer, Evidence

SAMPLES = 10  # problems whose answers are shown
FORMS = 8  # forms shown
# Answers have forms to speak of if this share of them has one of the forms shown. Free text has none.
_COVERED = 0.5
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORD = re.compile(r"\w+")
_COLUMNS = tuple((when, decoding) for when in ("before", "after") for decoding in DECODINGS)


def form(text: str) -> str:
    """Return a text with a letter for each different word: ``Read AND (read OR file)`` is ``a AND (a OR b)``.

    Words in capitals, such as operators, and punctuation stay.
    """
    names: dict[str, str] = {}

    def letter(match: re.Match[str]) -> str:
        word = match[0]
        if len(word) > 1 and word.isalpha() and word.isupper():
            return word
        return names.setdefault(word.lower(), _LETTERS[min(len(names), len(_LETTERS) - 1)])

    return " ".join(_WORD.sub(letter, text).split()) or "(empty)"


def form_rows(evidence: Evidence) -> dict[str, Any]:
    """Return the headings and the rows of the table of forms; no rows if the answers have no form in common."""
    shares = {}
    for when, decoding in _COLUMNS:
        answers = (evidence.before if when == "before" else evidence.after).of(decoding)
        if answers:
            shares[f"{when}, {decoding}"] = _shares(answer.text for answer in answers.values())
    most: dict[str, float] = {}
    for form_shares in shares.values():
        most |= {name: max(share, most.get(name, 0.0)) for name, share in form_shares.items()}
    shown = sorted(most, key=lambda name: (-most[name], name))[:FORMS]
    covered = max((sum(form_shares.get(name, 0.0) for name in shown) for form_shares in shares.values()), default=0.0)
    rows = [(markup.shorten(name), [form_shares.get(name, 0.0) for form_shares in shares.values()]) for name in shown]
    return {"headings": list(shares), "rows": rows if covered >= _COVERED else []}


def _shares(texts: Iterable[str]) -> Mapping[str, float]:
    counts = Counter(form(text) for text in texts)
    return {name: count / counts.total() for name, count in counts.items()}


def random_samples(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the answers to problems drawn at random; a run with the same problems shows the same ones."""
    before, after = evidence.before.of(evidence.deploy), evidence.after.of(evidence.deploy)
    problems = list(before)
    drawn = np.random.default_rng(0).permutation(len(problems))[:SAMPLES]
    return [
        {
            "problem": problem,
            "prompt": markup.shorten(evidence.before.prompts[problem]),
            "answers": [
                (when, _shown(answers[problem]))
                for when, answers in (("before", before), ("after", after))
                if problem in answers
            ],
        }
        for problem in (problems[i] for i in drawn)
    ]


def _shown(answer: Answer) -> dict[str, Any]:
    return {
        "text": markup.shorten(answer.text),
        "metric": answer.metric,
        "truncated": answer.truncated,
        "unscored": answer.unscored,
        "note": markup.shorten(answer.note),
    }
