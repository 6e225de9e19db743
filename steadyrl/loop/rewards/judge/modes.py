"""The ways to ask a judge: which texts go into which request, and what the verdicts make of each text.

- scalar: one request for each text.
- pairwise: each text against a few others of its problem, every pair in both orders, for judges favour a place. A text
  scores the share of its pairs that it won. A pair of which one order has no verdict counts for neither.
- group: all texts of a problem in one request, in an order that the texts do not determine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from steadyrl.loop.rewards.judge import prompts, verdicts
from steadyrl.loop.rewards.judge.prompts import Question
from steadyrl.loop.rewards.judge.settings import JudgeSettings
from steadyrl.loop.rewards.judge.verdicts import Verdict


@dataclass(frozen=True)
class Contest:
    """The different texts that a step has for one problem."""

    problem: str
    """Its id."""
    request: str
    """Its prompt."""
    texts: tuple[str, ...]
    """Without repetitions, at least one."""
    known_good: str | None
    """The task's own answer, which a lone text is compared with; None where there is none."""


@dataclass(frozen=True)
class Opinion:
    """What is known of one text."""

    value: float | None
    """0 to 1, or None."""
    measurements: Mapping[str, float] = field(default_factory=dict)
    """Further measurements."""
    reason: str = ""
    """The judge's sentence, or why there is no value."""


# What is asked at once: a contest with some of its texts, in the order in which the judge sees them.
Ballot = Contest
# A verdict, or why there is none.
Answer = Verdict | str
Votes = Sequence[tuple[Ballot, Answer]]


@dataclass(frozen=True)
class Mode:
    """How to ask."""

    ballots: Callable[[JudgeSettings, Contest], list[Ballot]]
    """What to ask for a contest."""
    question: Callable[[Mapping[str, str], str, Sequence[str]], Question]
    """The messages of a ballot."""
    read: Callable[[str, Question, Sequence[str]], Verdict]
    """The verdict in a text."""
    settle: Callable[[Contest, Votes], dict[str, Opinion]]
    """Opinions by text, of a contest and all that was told of it."""


def _one_each(section: JudgeSettings, contest: Contest) -> list[Ballot]:
    return [replace(contest, texts=(text,)) for text in contest.texts]


def _all_at_once(section: JudgeSettings, contest: Contest) -> list[Ballot]:
    order = sorted(contest.texts)
    # From the content, so that a resumed run asks the same; a text cannot choose its place, since all texts decide.
    content = "\0".join([contest.request, *order])
    random.Random(content.encode("utf-8", "surrogatepass")).shuffle(order)
    return [replace(contest, texts=tuple(order))]


def _pairs(section: JudgeSettings, contest: Contest) -> list[Ballot]:
    pairs = ring(contest.texts, section.opponents)
    if len(contest.texts) == 1 and contest.known_good not in (None, contest.texts[0]):
        pairs = [(contest.texts[0], str(contest.known_good))]
    orders = [order for first, second in pairs for order in ((first, second), (second, first))]
    return [replace(contest, texts=order) for order in orders]


def ring(texts: Sequence[str], reach: int) -> list[tuple[str, str]]:
    """Return each text with the next ``reach`` ones, around the end, each pair once.

    Every text then meets twice ``reach`` others, or all; the cost grows with the texts and not with their square.
    """
    count = len(texts)
    pairs = {
        tuple(sorted((i, (i + step) % count))) for i in range(count) for step in range(1, min(reach, count - 1) + 1)
    }
    return [(texts[a], texts[b]) for a, b in sorted(pairs)]


def _opinion_by_text(contest: Contest, votes: Votes) -> dict[str, Opinion]:
    opinions: dict[str, Opinion] = {}
    for ballot, answer in votes:
        for i, text in enumerate(ballot.texts):
            if isinstance(answer, str):
                opinions[text] = Opinion(None, reason=answer)
            else:
                opinions[text] = Opinion(answer.values[i], answer.by_criterion, answer.reason)
    return opinions


def _opinions_by_wins(contest: Contest, votes: Votes) -> dict[str, Opinion]:
    by_texts = {ballot.texts: answer for ballot, answer in votes}
    return {text: _opinion_by_wins(text, contest, by_texts) for text in contest.texts}


def _opinion_by_wins(text: str, contest: Contest, by_texts: Mapping[tuple[str, ...], Answer]) -> Opinion:
    judged: list[tuple[Verdict, Verdict]] = []  # in the order in which the text stands first, and in the other
    failures: list[str] = []
    for texts, answer in by_texts.items():
        if texts[0] != text:
            continue
        swapped = by_texts[texts[1], texts[0]]
        if isinstance(answer, str) or isinstance(swapped, str):
            failures.append(answer if isinstance(answer, str) else str(swapped))
        else:
            judged.append((answer, swapped))
    if judged:
        value = fmean((first.values[0] + second.values[1]) / 2 for first, second in judged)
        agreeing = fmean(first.values[0] == second.values[1] for first, second in judged)
        first_place = fmean((first.values[0] + second.values[0]) / 2 for first, second in judged)
        reason = next((first.reason for first, _ in judged if first.reason), "")
        return Opinion(value, {"orders_agree": agreeing, "first_place": first_place}, reason)
    if failures:
        return Opinion(None, reason=failures[0])
    if text == contest.known_good:
        return Opinion(0.5, reason="it is the task's own answer")
    return Opinion(None, reason="there is no other answer to compare it with")


MODES: Mapping[str, Mode] = {
    "scalar": Mode(_one_each, prompts.scalar_question, verdicts.read_scalar, _opinion_by_text),
    "pairwise": Mode(_pairs, prompts.pairwise_question, verdicts.read_pair, _opinions_by_wins),
    "group": Mode(_all_at_once, prompts.group_question, verdicts.read_group, _opinion_by_text),
}
