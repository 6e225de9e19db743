"""The standard library's corpus and its index, built at the first use and kept in the user's cache folder."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from steadyrl.core.errors import SteadyError
from steadyrl.core.rundir import write_text
from steadyrl.environments.search.corpus import Corpus
from steadyrl.environments.search.index import SearchIndex
from steadyrl.environments.search.stdlib_corpus import stdlib_corpus
from steadyrl.environments.search.stdlib_docs import interpreter_tag

log = logging.getLogger(__name__)

# Increase it when extraction, relevance or indexed text change, so that no old file is read.
CORPUS_VERSION = 3


def stdlib_with_index() -> tuple[Corpus, SearchIndex]:
    """Return the corpus of the running interpreter and its index, from the cache if it holds valid ones."""
    stem = cache_folder() / f"stdlib-{interpreter_tag()}-v{CORPUS_VERSION}"
    corpus_file, index_file = stem.with_name(stem.name + ".json"), stem.with_name(stem.name + ".sqlite")
    try:
        corpus = TypeAdapter(Corpus).validate_json(corpus_file.read_bytes())
        index = SearchIndex.open(index_file)
        if index.document_count == len(corpus.documents):
            return corpus, index
    except (SteadyError, OSError, ValueError, sqlite3.Error) as error:
        log.info("building the search corpus (%s)", error)
    corpus = stdlib_corpus()
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        index = SearchIndex.build(corpus.documents, index_file)
        write_text(corpus_file, json.dumps(asdict(corpus), ensure_ascii=False))
    except (SteadyError, OSError) as error:
        log.warning("the search corpus is not cached: %s", error)
        index = SearchIndex.build(corpus.documents)
    return corpus, index


def cache_folder() -> Path:
    """Return the folder for files that steadyrl can build again: $XDG_CACHE_HOME/steadyrl or ~/.cache/steadyrl."""
    home = os.path.expanduser("~")  # "~" itself where the user has none: then nothing can be written there
    root = os.environ.get("XDG_CACHE_HOME") or (Path(home) / ".cache" if home != "~" else os.devnull)
    return Path(root) / "steadyrl"
