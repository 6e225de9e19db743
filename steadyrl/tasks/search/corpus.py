"""A search corpus: documents, requests, and which documents answer which request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steadyrl.tasks.search.index import Document


@dataclass(frozen=True)
class Request:
    """One information need.

    Attributes:
        id: Unique within its corpus.
        text: What the searcher asks, in plain words.
        relevant: Ids of the documents that answer it; at least one.
    """

    id: str
    text: str
    relevant: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """Documents and the requests on them, the held-out ones apart."""

    name: str
    documents: Sequence[Document]
    train: Sequence[Request]
    heldout: Sequence[Request]
