"""A search corpus: documents, requests, and the documents that answer each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steadyrl.environments.search.index import Document


@dataclass(frozen=True)
class Request:
    """One information need."""

    id: str
    """Unique within its corpus."""
    text: str
    """The searcher's request, in plain words."""
    relevant: tuple[str, ...]
    """Ids of the documents that answer it; at least one."""


@dataclass(frozen=True)
class Corpus:
    """Documents and the requests for them, split into training and held-out requests."""

    name: str
    documents: Sequence[Document]
    train: Sequence[Request]
    heldout: Sequence[Request]
