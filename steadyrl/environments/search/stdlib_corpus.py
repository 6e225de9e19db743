"""The default corpus: the standard library's documentation, searched by the summaries of its entries.

A request is the summary line of an entry; the text indexed for that entry is the *rest* of its documentation and
its qualified name, so the words of a request do not trivially match the document that they came from.

A request asks for a subject, not for one page. The relevant documents follow from the library's own
structure: entries of the same module that mention one another by name, or whose names share a word that is
characteristic of that module (``put_nowait``, ``get_nowait``). Requests are split by top-level module: no training
request and no text of the base model comes from a held-out module.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from steadyrl.environments.search.corpus import Corpus, Request
from steadyrl.environments.search.index import Document
from steadyrl.environments.search.stdlib_docs import Entry, read_entries
from steadyrl.environments.search.words import content_words

HELDOUT_SHARE = 0.2
# Chosen once so that the held-out fifth is spread over many modules (on CPython 3.11: 37, the largest with a tenth).
_SPLIT_SALT = 989
MIN_RELEVANT, MAX_RELEVANT = 2, 16
MIN_CONTENT_WORDS, MAX_WORDS = 3, 24
# If more of a module's entries than this share a word of their names, it is no subject ("get" in a large module).
MAX_NAME_SHARERS = 8
_NAME_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


def is_held_out(module: str) -> bool:
    """Return whether a module's requests are held out. The answer is the same on every machine."""
    top = module.partition(".")[0]
    return int(hashlib.sha256(f"{top}/{_SPLIT_SALT}".encode()).hexdigest()[:8], 16) / 2**32 < HELDOUT_SHARE


def stdlib_corpus(entries: Sequence[Entry] | None = None) -> Corpus:
    """Build the corpus of some entries, by default of the running interpreter's documentation."""
    entries = read_entries() if entries is None else entries
    by_module: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_module[entry.module].append(entry)
    train: list[Request] = []
    heldout: list[Request] = []
    seen_texts: set[str] = set()
    for module in sorted(by_module):
        for request in _module_requests(by_module[module]):
            # A sentence that stands for two sets of documents has no right answer.
            if request.text.lower() not in seen_texts:
                seen_texts.add(request.text.lower())
                (heldout if is_held_out(module) else train).append(request)
    documents = [Document(entry.name, indexed_text(entry)) for entry in entries]
    return Corpus("stdlib", documents, train, heldout)


def indexed_text(entry: Entry) -> str:
    """Return the searchable text of an entry: its qualified name, whole and in words, and its body."""
    return f"{entry.name.replace('.', ' ')} {' '.join(name_words(entry.name))} {entry.body}"


def name_words(name: str) -> list[str]:
    """Split a qualified name into lower-case words: "io.BytesIO" -> ["io", "bytes", "io"]."""
    return [part.lower() for part in _NAME_PARTS.findall(name)]


def _module_requests(entries: Sequence[Entry]) -> list[Request]:
    last_names = [entry.name.rpartition(".")[2] for entry in entries]
    words_of_names = [set(name_words(name)) for name in last_names]
    sharers = Counter(word for words in words_of_names for word in words)
    subject_words = [{w for w in words if len(w) > 2 and sharers[w] <= MAX_NAME_SHARERS} for words in words_of_names]
    mentioned = [set(re.findall(r"\w+", f"{entry.summary} {entry.body}")) for entry in entries]
    requests = []
    for i, entry in enumerate(entries):
        if len(content_words(entry.summary)) < MIN_CONTENT_WORDS or len(entry.summary.split()) > MAX_WORDS:
            continue
        relevant = tuple(
            candidate.name
            for j, candidate in enumerate(entries)
            if i == j
            or subject_words[i] & subject_words[j]
            or (len(last_names[j]) > 3 and last_names[j] in mentioned[i])
            or (len(last_names[i]) > 3 and last_names[i] in mentioned[j])
        )
        if MIN_RELEVANT <= len(relevant) <= MAX_RELEVANT:
            requests.append(Request(entry.name, entry.summary, relevant))
    return requests
