"""Boolean search: the policy writes a Boolean query for a request in plain words, and a real index is searched with it.

The main reward is ``retrieval``, the F1 of the result set. Recall alone is won by an OR of common words and precision
alone by one lucky word. F1 asks for both, needs no ranking, and is between 0 and 1 for every request. Recall,
precision, result size and the share of parseable queries are always logged beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from steadyrl.core.counting.count import tell
from steadyrl.core.errors import DataError
from steadyrl.core.protocols import RewardFn
from steadyrl.core.sections import PathName, Section
from steadyrl.core.types import Problem, Rollout, Score
from steadyrl.environments.search.baselines import (
    BASELINES,
    MAX_DOCUMENTS,
    documents_query,
    empty_forms,
    honest_core,
    ranked_first,
    rarest_words,
)
from steadyrl.environments.search.beir import beir_corpus
from steadyrl.environments.search.cache import stdlib_with_index
from steadyrl.environments.search.corpus import Request
from steadyrl.environments.search.feedback import Feedback
from steadyrl.environments.search.generated import generated_corpus
from steadyrl.environments.search.index import EngineFailure, SearchIndex
from steadyrl.environments.search.query import Node, canonical, parse, terms
from steadyrl.environments.search.teacher import taught_query
from steadyrl.environments.search.worth import MALFORMED, weigh

_CACHE_SIZE = 10_000  # judgements to keep; a step needs each one once per reward part
_HITS_SHOWN = 5
_FOUND = "{found}"
_RANKED_REQUESTS = 1000  # training requests, at most, that decide how many ranked documents to take
_TAUGHT_WORDS = 7  # of a request, the rarest
_PER_SKIP = 0.15  # F1; see taught_query
_METRICS = ("recall", "precision", "bits", "worth", "joint", "structure", "parseable")  # beside retrieval


class SearchSettings(Section):
    """Settings of the search task."""

    corpus: PathName = Field("stdlib", description="'stdlib', 'generated', or a folder in BEIR format.")
    prompt: str = Field("request: {request}\nquery:")
    """Template of the prompt. {request} is replaced by the request, and {found}, if it is there, by up to six words,
    alone or in phrases, of the documents that a ranked search of the request finds first."""
    corpus_seed: int = Field(0, ge=0, lt=2**63, description="Seed of the generated corpus.")

    @field_validator("prompt")
    @classmethod
    def _has_request(cls, value: str) -> str:
        if "{request}" not in value:
            raise ValueError("expected a text with {request} in it, which is replaced by the request")
        return value


class SearchTask:
    """See Task. Rewards: retrieval (F1), recall, precision, bits, worth, joint, structure, parseable."""

    Settings = SearchSettings
    name = "search"
    metric = "retrieval"

    def __init__(self, settings: SearchSettings, seed: int = 0):
        self._gold: Mapping[str, str] = {}
        if settings.corpus == "stdlib":
            self.corpus, self.index = stdlib_with_index()
        else:
            if settings.corpus == "generated":
                self.corpus, self._gold = generated_corpus(seed=settings.corpus_seed)
            elif not settings.corpus or not Path(settings.corpus).is_dir():
                raise DataError(
                    f"task.args.corpus is '{settings.corpus}', and there is no such folder; expected 'stdlib', "
                    "'generated', or a folder in BEIR format (corpus.jsonl, queries.jsonl, qrels/)"
                )
            else:
                self.corpus = beir_corpus(settings.corpus)
            self.index = SearchIndex.build(self.corpus.documents)
        self._prompt = settings.prompt
        self._feedback = Feedback(self.corpus.documents, self.index) if _FOUND in settings.prompt else None
        self._relevant = {
            request.id: np.array(sorted(self.index.number_of(i) for i in request.relevant), np.int32)
            for request in [*self.corpus.train, *self.corpus.heldout]
        }
        self._cached_score = lru_cache(_CACHE_SIZE)(self._measure)

    def problems(self, split: Literal["train", "heldout"]) -> Sequence[Problem]:
        """See Task."""
        requests = self.corpus.train if split == "train" else self.corpus.heldout
        problems: list[Problem] = []
        for request in requests:
            problems.append(self._problem(request))
            if self._feedback:  # a search for each request takes a minute for all
                tell(f"first searches, {split}", len(problems), len(requests))
        return problems

    def rewards(self) -> Mapping[str, RewardFn]:
        """See Task."""
        return {"retrieval": self._judge, **{name: partial(self._metric_score, name) for name in _METRICS}}

    def baselines(self) -> Mapping[str, Callable[[Problem], str]]:
        """See Task: queries that rules make from the request's words, and a plain ranked search."""
        rules = {name: self._baseline(rule) for name, rule in BASELINES.items()}
        rules["ranked search (BM25)"] = self._ranked
        if self._feedback:
            rules["first phrase or pair of words found"] = lambda problem: _first_query(problem.columns["found"])
        return rules

    def gold(self, problem: Problem) -> str | None:
        """Return a known good query: by construction, or made from the relevant documents."""
        if problem.id in self._gold:
            return self._gold[problem.id]
        return documents_query([int(n) for n in self._relevant[problem.id]], self.corpus.documents, self.index)

    def demonstration(self, problem: Problem) -> str | None:
        """See Teaching: a short query of words that the prompt holds, or by construction."""
        if problem.id in self._gold:
            return self._gold[problem.id]
        rarest = rarest_words(problem.columns["request"], self.index)[:_TAUGHT_WORDS]
        found_words = problem.columns.get("found", ())  # in an order that means something
        words, per_skip = list(dict.fromkeys([*found_words, *rarest])), _PER_SKIP if found_words else 0.0
        return taught_query(problem.id, words, self._relevant[problem.id], self.index, per_skip)

    def honest_core(self, problem: Problem) -> str:
        """See Attackable: the rarest word of the request."""
        return honest_core(problem.columns["request"], self.index)

    def empty_forms(self, problem: Problem) -> Mapping[str, str]:
        """See Attackable."""
        return empty_forms(problem.columns["request"], self.index)

    def ask(self, text: str) -> Problem:
        """See Task."""
        return self._problem(Request("asked", text, ()))

    def show(self, answer: str) -> list[str]:
        """See Task: the first documents that a query finds, or why it finds none."""
        parsed = parse(answer)
        if parsed.tree is None:
            return [f"malformed: {parsed.problem}"]
        retrieved = self.index.search(parsed.tree)
        return [f"{len(retrieved)} found", *(self.index.ids[n] for n in retrieved[:_HITS_SHOWN])]

    def _problem(self, request: Request) -> Problem:
        words = " ".join(request.text.split()).lower()  # the index folds case too
        prompt, columns = self._prompt, {"request": request.text, "relevant": list(request.relevant)}
        if self._feedback:
            columns["found"] = self._feedback.terms(words)
            prompt = prompt.replace(_FOUND, " ".join(columns["found"]))
        return Problem(request.id, prompt.replace("{request}", words), columns)

    def _judge(self, problem: Problem, rollout: Rollout) -> Score:
        try:
            return self._cached_score(problem.id, rollout.text)
        except EngineFailure as error:  # no verdict, and not remembered as one
            return Score(None, unscored=str(error))

    def _measure(self, problem: str, text: str) -> Score:
        parsed = parse(text)
        if parsed.tree is None:
            return Score(0.0, dict.fromkeys(_METRICS, 0.0) | MALFORMED, note=f"malformed: {parsed.problem}")
        retrieved = self.index.search(parsed.tree)
        worth = weigh(parsed.tree, self._relevant[problem], self.index)
        metrics = measure(retrieved, self._relevant[problem], self.index.document_count)
        ids = ", ".join(self.index.ids[n] for n in retrieved[:_HITS_SHOWN])
        metrics |= worth.metrics() | {"structure": structure(parsed.tree), "parseable": 1.0}
        return Score(metrics.pop("f1"), metrics, note=f"{len(retrieved)} found: {ids}")

    def _metric_score(self, name: str, problem: Problem, rollout: Rollout) -> Score:
        score = self._judge(problem, rollout)
        return replace(score, value=score.parts.get(name), parts={}, note="")

    def _ranked(self, problem: Problem) -> str:
        """Return a query for the first documents of a ranked search, as many as suit the training requests best."""
        ranked = ranked_first(problem.columns["request"], self._ranked_count, self.index)
        return documents_query(ranked, self.corpus.documents, self.index)

    @cached_property
    def _ranked_count(self) -> int:
        requests = self.corpus.train[:: 1 + len(self.corpus.train) // _RANKED_REQUESTS]
        f1 = np.zeros((len(requests), MAX_DOCUMENTS))  # [requests, documents taken - 1]
        for row, request in zip(f1, requests, strict=True):
            numbers = np.array(ranked_first(request.text, MAX_DOCUMENTS, self.index), np.int32)
            for count in range(1, MAX_DOCUMENTS + 1):
                row[count - 1] = measure(numbers[:count], self._relevant[request.id], self.index.document_count)["f1"]
        return 1 + int(f1.mean(axis=0).argmax())

    def _baseline(self, rule: Callable[[str, SearchIndex], str]) -> Callable[[Problem], str]:
        return lambda problem: rule(problem.columns["request"], self.index)


def _first_query(words: Sequence[str]) -> str:
    return words[0] if words and words[0].startswith('"') else " AND ".join(words[:2])


def structure(tree: Node) -> float:
    """Return 0.5 for AND or NOT plus 0.5 for OR in a query, and 0 for a query that repeats a word.

    Structure with a repeated word means nothing: ``( mime OR mime ) AND ( mime OR mime )`` and
    ``( zero OR mime ) AND mime`` both find what "mime" finds. A reward for the written form would pay for exactly that.
    """
    words = terms(tree)
    if len(set(words)) < len(words):
        return 0.0
    query_text = canonical(tree)  # operators are in capitals, words in lower case
    narrows, widens = " AND " in query_text or " NOT " in query_text, " OR " in query_text
    return 0.5 * narrows + 0.5 * widens


def measure(retrieved: np.ndarray, relevant: np.ndarray, documents: int) -> dict[str, float]:
    """Compare a result set with the relevant documents.

    Args:
        retrieved: Document numbers that a query matched, distinct.
        relevant: Document numbers that answer the request, distinct, at least one.
        documents: Size of the corpus.

    Returns:
        f1, recall, precision, result_size, and bits: the share, weighted by recall, of the search's information that
        the query supplies, log(precision / share of relevant documents) / log(documents / relevant), floored at 0.
    """
    hits = len(np.intersect1d(retrieved, relevant, assume_unique=True))
    size, total = len(retrieved), len(relevant)
    precision, recall = hits / max(1, size), hits / total
    gain = math.log(precision * documents / total) / math.log(documents / total) if hits and total < documents else 0.0
    return {
        "f1": 2 * hits / (size + total),
        "recall": recall,
        "precision": precision,
        "bits": recall * max(0.0, gain),
        "result_size": float(size),
    }
