"""A corpus from a user's folder in the layout of the BEIR benchmark.

    corpus.jsonl     {"_id": "d1", "title": "may be absent", "text": "..."}
    queries.jsonl    {"_id": "q1", "text": "..."}
    qrels/*.tsv      query-id <tab> corpus-id <tab> score     with this header; a score above 0 means relevant

With ``train.tsv`` and ``test.tsv`` (or ``dev.tsv`` if there is no test), the former is used for training and the latter
is held out. A single file is split by its queries' ids. Queries without a relevant document are left out. Everything is
checked on load: a defective corpus is refused with the file and line of its first defect.

Source: the layout is described at https://github.com/beir-cellar/beir/wiki/Load-your-custom-dataset
"""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from steadyrl.core.errors import DataError
from steadyrl.environments.search.corpus import Corpus, Request
from steadyrl.environments.search.index import Document
from steadyrl.loop.tasks.jsonl import Line, held_out_ids, read_lines, read_objects

log = logging.getLogger(__name__)

HELDOUT_SHARE = 0.2
_HEADER = ("query-id", "corpus-id", "score")

# Ids of the relevant documents by query id, both in the order of the file.
Judgements = Mapping[str, Sequence[str]]


def beir_corpus(folder: Path | str, split_seed: int = 0) -> Corpus:
    """Read a folder.

    Args:
        folder: Has corpus.jsonl, queries.jsonl and qrels/.
        split_seed: Chooses the held-out fifth of the queries if there is only one file of judgements.

    Raises:
        DataError: The folder has a defect; the error names the first one by file and line.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; expected one with corpus.jsonl, queries.jsonl and qrels/")
    training, held_out = _judgement_files(folder / "qrels")
    documents = _documents(folder / "corpus.jsonl")
    queries: dict[str, str] = {}
    lines: dict[str, int] = {}
    for line in read_objects(folder / "queries.jsonl"):
        id = _id_of(line, lines)
        queries[id] = line.filled("text")
    document_ids = {document.id for document in documents}
    train = _judgements(training, queries, document_ids)
    if held_out is not None:
        heldout = _judgements(held_out, queries, document_ids, train)
    else:
        train, heldout = _split(train, training, split_seed)
    texts = {queries[query] for query in train}
    if repeated := sum(queries[query] in texts for query in heldout):
        log.warning("%d held-out requests of '%s' have the text of one that trains", repeated, folder)
    return Corpus(folder.resolve().name, documents, _requests(train, queries), _requests(heldout, queries))


def _judgement_files(folder: Path) -> tuple[Path, Path | None]:
    files = {path.stem: path for path in sorted(folder.glob("*.tsv"))}
    if len(files) == 1:
        return next(iter(files.values())), None
    held_out = files.get("test", files.get("dev"))
    if "train" in files and held_out is not None:
        return files["train"], held_out
    names = ", ".join(path.name for path in files.values()) or "no .tsv file"
    raise DataError(f"{folder} has {names}; expected train.tsv with test.tsv or dev.tsv, or a single file")


def _documents(path: Path) -> list[Document]:
    documents: list[Document] = []
    lines: dict[str, int] = {}
    for line in read_objects(path):
        id = _id_of(line, lines)
        title = line.text("title") if "title" in line.record else ""
        text = f"{title} {line.text('text')}".strip()
        if not text:
            raise DataError(f"{line}: document '{id}' has neither title nor text; remove the line")
        documents.append(Document(id, text))
    if not documents:
        raise DataError(f"{path} has no document; expected one JSON object per line")
    return documents


def _id_of(line: Line, lines: dict[str, int]) -> str:
    """Return the id of a line; ``lines`` collects the numbers of those that were read."""
    id = line.filled("_id")
    if id in lines:
        raise DataError(f"{line}: '_id' is '{id}' like on line {lines[id]}; give each line its own")
    lines[id] = line.number
    return id


def _judgements(
    path: Path, queries: Container[str], documents: Container[str], train_queries: Container[str] = ()
) -> Judgements:
    rows = read_lines(path)
    number, header = next(rows, (1, ""))
    if tuple(header.split("\t")) != _HEADER:
        raise DataError(f"{path}, line {number}: got the header {header!r}; expected {chr(9).join(_HEADER)!r}")
    relevant: dict[str, list[str]] = {}
    lines: dict[tuple[str, str], int] = {}
    for number, row in rows:
        query, document, score = _judgement(path, number, row)
        if query not in queries:
            raise DataError(f"{path}, line {number}: no query of queries.jsonl has the id '{query}'")
        if document not in documents:
            raise DataError(f"{path}, line {number}: no document of corpus.jsonl has the id '{document}'")
        if query in train_queries:
            raise DataError(f"{path}, line {number}: query '{query}' is also in train.tsv; keep it in one file")
        if (query, document) in lines:
            first = lines[query, document]
            raise DataError(f"{path}, line {number}: '{query}' and '{document}' were judged on line {first}; keep one")
        lines[query, document] = number
        if score > 0:
            relevant.setdefault(query, []).append(document)
    if not relevant:
        raise DataError(f"{path} has no positive judgement; expected a score above 0 on at least one line")
    return relevant


def _judgement(path: Path, number: int, row: str) -> tuple[str, str, float]:
    fields = row.split("\t")
    if len(fields) != len(_HEADER):
        raise DataError(f"{path}, line {number}: got {len(fields)} columns between tabs; expected {', '.join(_HEADER)}")
    query, document, text = fields
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{path}, line {number}: the score is {text!r}; expected a number, as in 1")
    return query, document, score


def _split(judgements: Judgements, path: Path, seed: int) -> tuple[Judgements, Judgements]:
    if len(judgements) < 2:
        raise DataError(f"{path} has one query with a relevant document; expected two or more, to hold one out")
    held_out = held_out_ids(judgements, HELDOUT_SHARE, seed)
    train = {query: relevant for query, relevant in judgements.items() if query not in held_out}
    return train, {query: relevant for query, relevant in judgements.items() if query in held_out}


def _requests(judgements: Judgements, queries: Mapping[str, str]) -> list[Request]:
    return [Request(query, queries[query], tuple(relevant)) for query, relevant in judgements.items()]
