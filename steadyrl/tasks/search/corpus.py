"""A search corpus: documents, requests, and the documents that answer each request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steadyrl.tasks.search.index import Document


@dataclass(frozen=True)
class Request:
    """One information need.

    Attributes:
        id: Unique within its corpus.
        text: The searcher's request, in plain words.
        relevant: Ids of the documents that answer it; at least one.
    """

    id: str
    text: str
    relevant: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """Documents and the requests for them, split into training and held-out requests."""

    name: str
    documents: Sequence[Document]
    train: Sequence[Request]
    heldout: Sequence[Request]


def halves(requests: Sequence[Request]) -> Mapping[str, list[Request]]:
    """Return two halves, "a" and "b", of about the same size; requests whose ids share all before a dot stay together.

    For the standard library this is the top-level module. The largest modules are dealt out first, each to the half
    that has fewer requests so far.
    """
    modules: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        modules[request.id.partition(".")[0]].append(request)
    chosen: dict[str, str] = {}
    sizes = {"a": 0, "b": 0}
    for module in sorted(modules, key=lambda module: (-len(modules[module]), module)):
        chosen[module] = min(sizes, key=lambda half: (sizes[half], half))
        sizes[chosen[module]] += len(modules[module])
    return {half: [r for r in requests if chosen[r.id.partition(".")[0]] == half] for half in sizes}
