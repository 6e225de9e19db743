"""A full-text index: it finds the documents that match a Boolean query, and counts the documents that contain a word.

The engine is SQLite's FTS5 with Porter stemming: ``files`` matches "file". A prefix is compared with stems, so it
finds "relation" (stem "relat") as ``rela*`` but not as ``relatio*``. Any fault of the engine is an
``EngineFailure``. It says nothing about the query and must never become a bad reward.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from steadyrl.core.errors import AccessError, DataError, SteadyError
from steadyrl.environments.search.query import TEXT_COLUMN, Node, Term, to_fts5

TIME_LIMIT_S = 1.0
CACHE_ENTRIES = 50_000
# Results that match half of a large corpus would fill the memory long before this many entries: 4 bytes per match.
CACHE_NUMBERS = 50_000_000
# Virtual-machine instructions between two checks of the clock; a row of a result takes about four.
_CLOCK_INTERVAL = 200


@dataclass(frozen=True)
class Document:
    """One searchable text with a unique id."""

    id: str
    text: str


class EngineFailure(SteadyError, RuntimeError):
    """The engine ran out of time or failed, and the query stays unscored."""


class SearchIndex:
    """Documents behind FTS5, numbered from 0 in the order they came in; made by ``build`` or ``open``.

    Usable from several threads, one search at a time.

    Attributes:
        ids: The id of each document number.
        cache_hits: Searches that were answered from memory.
        cache_misses: Searches that the engine had to answer.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Wrap a finished database; callers use ``build`` or ``open``."""
        rows = connection.execute("SELECT id FROM document_ids ORDER BY number")
        self.ids: tuple[str, ...] = tuple(row[0] for row in rows)
        self.cache_hits = 0
        self.cache_misses = 0
        self._numbers = {id: number for number, id in enumerate(self.ids)}
        self._connection = connection
        weakref.finalize(self, connection.close)  # an unused index closes itself
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, np.ndarray] = OrderedDict()
        self._cached_numbers = 0

    @classmethod
    def build(cls, documents: Iterable[Document], path: Path | None = None) -> SearchIndex:
        """Index documents in memory, or into a file that appears only when it is whole.

        Args:
            documents: At least one; ids are unique.
            path: Where to keep the index; an existing file is replaced.

        Raises:
            DataError: If there is no document, an id occurs twice, or a text is not valid Unicode.
            AccessError: If the file cannot be written.
        """
        if path is None:
            return cls(_filled_database(":memory:", documents))
        # Beside the file, so that the renaming stays on one disk.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        temporary.unlink(missing_ok=True)
        try:
            _filled_database(temporary, documents).close()
            temporary.replace(path)
        except (sqlite3.OperationalError, IsADirectoryError) as error:
            raise AccessError(f"cannot write the search index {path} ({error}); is its folder writable?") from error
        finally:
            temporary.unlink(missing_ok=True)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> SearchIndex:
        """Open a file that ``build`` wrote, for reading only.

        Raises:
            DataError: If the file is missing or is not a search index.
        """
        if not path.is_file():
            raise DataError(f"there is no search index at {path}; build it first")
        with contextlib.ExitStack() as on_failure:
            connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
            on_failure.callback(connection.close)
            try:
                _require_fts5(connection)
                index = cls(connection)
            except sqlite3.DatabaseError as error:
                raise DataError(f"{path} is not a search index ({error}); delete it, build it again") from error
            on_failure.pop_all()
        return index

    @property
    def document_count(self) -> int:
        """How many documents there are."""
        return len(self.ids)

    def number_of(self, id: str) -> int:
        """Return the number of a document.

        Raises:
            DataError: If no document has this id.
        """
        if id not in self._numbers:
            raise DataError(f"no document of the index has the id {id!r}; are the judgements of another corpus?")
        return self._numbers[id]

    def search(self, node: Node, time_limit_s: float = TIME_LIMIT_S) -> np.ndarray:
        """Return the numbers of all documents that a query matches.

        Args:
            node: The query.
            time_limit_s: The engine is stopped after about this many seconds of processor time, so that a busy machine
                changes no result. The clock is checked between rows and pages of the index.

        Returns:
            [matches] int32, ascending, read-only: equal queries share one array.

        Raises:
            EngineFailure: If the time runs out or the engine fails. Nothing is cached then.
        """
        expression = to_fts5(node)
        with self._lock:
            if expression in self._cache:
                self.cache_hits += 1
                self._cache.move_to_end(expression)
                return self._cache[expression]
            self.cache_misses += 1
            query = "SELECT rowid FROM documents WHERE documents MATCH ? ORDER BY rowid"
            rows = _rows(self._connection, query, (expression,), time_limit_s)
            numbers = np.array([row[0] for row in rows], dtype=np.int32)
            numbers.setflags(write=False)
            self._cache[expression] = numbers
            self._cached_numbers += numbers.size
            while len(self._cache) > CACHE_ENTRIES or self._cached_numbers > CACHE_NUMBERS:
                _, evicted = self._cache.popitem(last=False)
                self._cached_numbers -= evicted.size
            return numbers

    def marks(self, node: Node) -> np.ndarray:
        """Return whether a query matches each document: [documents] bool, a new array.

        Raises:
            EngineFailure: See ``search``.
        """
        documents = np.zeros(self.document_count, bool)
        documents[self.search(node)] = True
        return documents

    def ranked(self, words: Sequence[str], limit: int, time_limit_s: float = TIME_LIMIT_S) -> list[tuple[int, float]]:
        """Return the documents that fit some words best, by BM25 (k1 = 1.2, b = 0.75, as FTS5 has it).

        Args:
            words: Any of them may occur; none finds nothing.
            limit: How many documents at most.
            time_limit_s: As in ``search``.

        Returns:
            Document numbers and their scores above 0, the best first, equal ones by number.

        Raises:
            EngineFailure: If the time runs out or the engine fails.
        """
        if not words:
            return []
        query = "SELECT rowid, -rank FROM documents WHERE documents MATCH ? ORDER BY rank, rowid LIMIT ?"
        any_word = " OR ".join(to_fts5(Term(word)) for word in words)
        with self._lock:
            return _rows(self._connection, query, (any_word, limit), time_limit_s)

    def document_frequency(self, word: str) -> int:
        """Return how many documents contain a word in any form that shares its stem; a search like any other."""
        return self.search(Term(word)).size

    def close(self) -> None:
        """Close the database. Later searches that are not cached fail."""
        self._connection.close()

    def __enter__(self) -> SearchIndex:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _require_fts5(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("CREATE VIRTUAL TABLE temp.fts5_probe USING fts5(text)")
    except sqlite3.OperationalError as error:
        if "no such module" not in str(error):
            raise
        raise SteadyError(
            f"this Python's SQLite {sqlite3.sqlite_version} lacks FTS5, its full-text search ({error}); "
            "use a Python that has it, such as one from python.org, conda-forge or uv"
        ) from error
    connection.execute("DROP TABLE temp.fts5_probe")


def _filled_database(location: Path | Literal[":memory:"], documents: Iterable[Document]) -> sqlite3.Connection:
    with contextlib.ExitStack() as on_failure:
        connection = sqlite3.connect(location, check_same_thread=False)
        on_failure.callback(connection.close)
        _require_fts5(connection)
        # A failed build deletes its file, so there is nothing to roll back.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("CREATE TABLE document_ids (number INTEGER PRIMARY KEY, id TEXT NOT NULL)")
        # Without content the table keeps only the inverted index. The numbers lead back to the documents.
        connection.execute(
            f"CREATE VIRTUAL TABLE documents USING fts5({TEXT_COLUMN}, content='', tokenize='porter unicode61')"
        )
        seen_ids: set[str] = set()
        for number, document in enumerate(documents):
            if document.id in seen_ids:
                raise DataError(f"two documents have the id {document.id!r}; give every document its own")
            seen_ids.add(document.id)
            try:
                connection.execute("INSERT INTO document_ids VALUES (?, ?)", (number, document.id))
                connection.execute(
                    f"INSERT INTO documents (rowid, {TEXT_COLUMN}) VALUES (?, ?)", (number, document.text)
                )
            except UnicodeEncodeError as error:
                raise DataError(f"document {document.id!r} is not valid Unicode ({error}); repair its text") from error
        if not seen_ids:
            raise DataError("there is no document to index; is the corpus empty?")
        connection.execute("INSERT INTO documents (documents) VALUES ('optimize')")
        connection.commit()
        on_failure.pop_all()
    return connection


def _rows(connection: sqlite3.Connection, query: str, values: tuple[Any, ...], time_limit_s: float) -> list[Any]:
    deadline = time.thread_time() + time_limit_s
    try:
        connection.set_progress_handler(lambda: time.thread_time() > deadline, _CLOCK_INTERVAL)
        return connection.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise EngineFailure(f"the search engine gave no answer within {time_limit_s} s or failed: {error}") from error
