import os
import re
import subprocess
import sys

import pytest

from steadyrl.environments.search.cache import stdlib_with_index
from steadyrl.environments.search.index import Document
from steadyrl.environments.search.stdlib_corpus import indexed_text, is_held_out, name_words, stdlib_corpus
from steadyrl.environments.search.stdlib_docs import Entry, _extension_entries


@pytest.fixture(scope="module")
def corpus(stdlib_cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(stdlib_cache))
        corpus, index = stdlib_with_index()
    index.close()
    return corpus


@pytest.fixture(scope="module")
def documents(corpus):
    return {document.id: document.text for document in corpus.documents}


def sentence(text):
    return " ".join(re.findall(r"\w+", text.lower()))


def test_the_corpus_is_of_a_useful_size(corpus):
    assert len(corpus.documents) > 3000
    assert len(corpus.train) > 1000
    assert 200 < len(corpus.heldout) < len(corpus.train) / 2


def test_no_held_out_module_is_trained_on(corpus):
    tops = [{request.id.partition(".")[0] for request in requests} for requests in (corpus.train, corpus.heldout)]
    assert tops[0] & tops[1] == set()
    assert min(len(top) for top in tops) > 20


def test_the_split_follows_the_top_level_module():
    assert is_held_out("xml.etree.ElementTree") == is_held_out("xml") == is_held_out("xml.sax")


def test_every_relevant_id_is_a_document_and_the_request_its_own_first(corpus, documents):
    for request in [*corpus.train, *corpus.heldout]:
        assert set(request.relevant) <= set(documents)
        assert request.id in request.relevant
        assert 2 <= len(set(request.relevant)) == len(request.relevant) <= 16


def test_no_two_requests_ask_the_same(corpus):
    requests = [*corpus.train, *corpus.heldout]
    assert len({request.id for request in requests}) == len({request.text.lower() for request in requests})
    assert len({request.id for request in requests}) == len(requests)


def test_a_request_is_not_in_the_text_that_it_should_find(corpus, documents):
    requests = [*corpus.train, *corpus.heldout]
    repeated = [r.id for r in requests if sentence(r.text) in sentence(documents[r.id])]
    # Some docstrings say their first sentence again ("Put an item into the queue."); leaks would be in all.
    assert len(repeated) < len(requests) / 50, repeated


def test_the_words_of_most_requests_do_not_trivially_match(corpus, documents):
    requests = corpus.train[::10]
    matched = [r for r in requests if set(sentence(r.text).split()) <= set(sentence(documents[r.id]).split())]
    assert len(matched) < len(requests) / 5


def test_the_indexed_text_is_the_name_and_the_rest_of_the_documentation():
    entry = Entry("io.BytesIO.getvalue", "io", "function", "Return all bytes.", "A copy of the buffer.")
    text = indexed_text(entry)
    assert text == "io BytesIO getvalue io bytes io getvalue A copy of the buffer."


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("io.BytesIO", ["io", "bytes", "io"]),
        ("http.HTTPStatus", ["http", "http", "status"]),
        ("os.put_nowait2", ["os", "put", "nowait", "2"]),
    ],
)
def test_names_are_cut_into_words(name, words):
    assert name_words(name) == words


def entry(name, summary, body="", module="queues"):
    return Entry(f"{module}.{name}", module, "function", summary, body)


def test_relevance_is_read_off_shared_words_of_names_and_mentions():
    entries = [
        entry("put_nowait", "Insert one thing without waiting for room."),
        entry("get_nowait", "Remove one thing without waiting for some."),
        entry("drain", "Empty everything that somebody inserted earlier.", "Repeats get_nowait until it fails."),
        entry("close", "Refuse every later insertion with an error."),
        entry("shut", "Forget everything about waiting things here.", module="doors"),
    ]
    corpus = stdlib_corpus(entries)
    relevant = {r.id: r.relevant for r in [*corpus.train, *corpus.heldout]}
    # close has no relevant document but itself, and a subject has at least two.
    assert relevant == {
        "queues.put_nowait": ("queues.put_nowait", "queues.get_nowait"),
        "queues.get_nowait": ("queues.put_nowait", "queues.get_nowait", "queues.drain"),
        "queues.drain": ("queues.get_nowait", "queues.drain"),
    }
    assert corpus.documents[0] == Document("queues.put_nowait", "queues put_nowait queues put nowait ")


def test_the_same_sentence_is_asked_once():
    def trio(module):
        summaries = ("Find every needle inside haystacks.", "Count them.", "Hide them.")
        return [entry(f"needle_{i}", text, module=module) for i, text in enumerate(summaries)]

    corpus = stdlib_corpus([*trio("barns"), *trio("fields")])
    assert [r.id for r in [*corpus.train, *corpus.heldout]] == ["barns.needle_0"]


def test_extraction_imports_no_source_module():
    """Importing some of them opens a browser, prints a poem or starts a window."""
    code = (
        "import sys\n"
        "from steadyrl.environments.search.stdlib_docs import read_entries\n"
        "entries = read_entries()\n"
        "print(len(entries), *(m for m in ('antigravity', 'this', 'turtle', 'tkinter', 'idlelib', 'doctest', 'smtplib')"
        " if m in sys.modules))"
    )
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) > 3000
    assert done.stderr == ""


def test_documents_are_public_entries_sorted_by_name(corpus, documents):
    names = [document.id for document in corpus.documents]
    assert names == sorted(set(names))
    assert documents["os.path.join"].startswith("os path join os path join ")
    assert not [name for name in names if name.startswith(("test.", "idlelib", "this", "antigravity"))]
    assert not [name for name in names if any(part.startswith("_") for part in name.split("."))]


def test_replaced_hooks_of_the_interpreter_change_nothing(documents, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", lambda *error: None)
    entries = [entry for entry in _extension_entries() if entry.module == "sys"]  # all others are read from files
    assert "sys.excepthook" in {entry.name for entry in entries}
    assert all(documents[entry.name] == indexed_text(entry) for entry in entries)
