"""Verdicts, read strictly: exact keys, exact labels, whole numbers in range; anything else is no verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steadyrl.core.rundir import parse_json
from steadyrl.loop.rewards.judge.prompts import GRADES, GROUP_GRADES, Question

_LONGEST_REASON = 2000  # characters; of these a rollout keeps some
# What some models put around JSON whatever they are told: their thoughts before it, a code fence around it. Many chat
# templates write <think> into the prompt, so that thoughts have an end alone.
_THOUGHTS = re.compile(r"\A(?!\s*[{`]).*?</think>", re.DOTALL)
_CODE_FENCE = re.compile(r"\A```(?:json)?\s*\n(.*?)\n?```\Z", re.DOTALL)


class MalformedVerdictError(ValueError):
    """A text is no valid verdict; the message says why, for the judge to correct it."""


@dataclass(frozen=True)
class Verdict:
    """What the judge says of the texts of one request."""

    values: tuple[float, ...]
    """One for each text in order, 0 to 1."""
    by_criterion: Mapping[str, float] = field(default_factory=dict)
    """Values by criterion, 0 to 1; where one text is graded."""
    reason: str = ""
    """The judge's sentence."""


class _Spoken(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    reason: str = Field(max_length=_LONGEST_REASON)


class _Scalar(_Spoken):
    candidate: str
    scores: dict[str, Annotated[int, Field(ge=0, le=GRADES)]]


class _Pair(_Spoken):
    winner: str


class _Group(_Spoken):
    scores: dict[str, Annotated[int, Field(ge=0, le=GROUP_GRADES)]]


Spoken = TypeVar("Spoken", bound=_Spoken)


def read_scalar(text: str, question: Question, criteria: Sequence[str]) -> Verdict:
    """Read the grades of one text.

    Raises:
        MalformedVerdictError: Not of the form, not of this request, or not of these criteria.
    """
    reply = _read(_Scalar, text)
    _require_names({reply.candidate}, question.labels, "candidate")
    _require_names(set(reply.scores), criteria, "scores")
    grades = [reply.scores[name] for name in criteria]
    by_criterion = {name: grade / GRADES for name, grade in zip(criteria, grades, strict=True)}
    return Verdict((sum(grades) / (GRADES * len(grades)),), by_criterion, reply.reason)


def read_pair(text: str, question: Question, criteria: Sequence[str]) -> Verdict:
    """Read which of two texts won: 1 and 0, or a half each."""
    reply = _read(_Pair, text)
    if reply.winner == question.tie:
        return Verdict((0.5, 0.5), reason=reply.reason)
    if reply.winner not in question.labels:
        expected = ", ".join((*question.labels, question.tie))
        raise MalformedVerdictError(f"'winner' is {reply.winner[:40]!r}; expected one of {expected}")
    return Verdict(tuple(float(label == reply.winner) for label in question.labels), reason=reply.reason)


def read_group(text: str, question: Question, criteria: Sequence[str]) -> Verdict:
    """Read the grades of all texts."""
    reply = _read(_Group, text)
    _require_names(set(reply.scores), question.labels, "scores")
    return Verdict(tuple(reply.scores[label] / GROUP_GRADES for label in question.labels), reason=reply.reason)


def _require_names(actual: set[str], expected: Sequence[str], where: str) -> None:
    if actual != set(expected):
        names = ", ".join(sorted(actual))[:200]
        raise MalformedVerdictError(f"'{where}' names {names or 'nothing'}; expected exactly {', '.join(expected)}")


def _read(form: type[Spoken], text: str) -> Spoken:
    text = _THOUGHTS.sub("", text).strip()
    if fenced := _CODE_FENCE.match(text):
        text = fenced[1].strip()
    try:
        parsed = parse_json(text, strict=True)
        return form.model_validate(parsed)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"])) or "the whole"
        raise MalformedVerdictError(f"{location[:60]}: {first['msg']}") from error
    except ValueError as error:
        raise MalformedVerdictError(f"it is not one JSON object ({error})"[:200]) from error
