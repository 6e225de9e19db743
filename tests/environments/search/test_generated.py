import hashlib
import itertools
import sqlite3
from contextlib import closing

import pytest

from steadyrl.core.errors import ConfigError
from steadyrl.environments.search.generated import REQUEST_TEXT, generated_corpus
from steadyrl.environments.search.index import SearchIndex
from steadyrl.environments.search.query import parse, terms
from steadyrl.environments.search.words import STOP_WORDS


@pytest.fixture(scope="module")
def corpus():
    return generated_corpus()[0]


@pytest.fixture(scope="module")
def gold():
    return generated_corpus()[1]


@pytest.fixture(scope="module")
def index(corpus):
    with SearchIndex.build(corpus.documents) as built:
        yield built


def found(index, text):
    return {index.ids[number] for number in index.search(parse(text).tree)}


def requests(corpus):
    return [*corpus.train, *corpus.heldout]


def asked_words(request):
    """Read the two words out of a request's sentence."""
    words = request.text.split()
    assert request.text == REQUEST_TEXT.format(words[2], words[4])
    return words[2], words[4]


def synonym_sets(gold):
    """Read every concept's words out of the gold queries."""
    return {frozenset(terms(parse(side).tree)) for query in gold.values() for side in query.split(" AND ")}


def content_hash(seed):
    corpus, _ = generated_corpus(seed=seed)
    return hashlib.sha256(repr((corpus.documents, corpus.train, corpus.heldout)).encode()).hexdigest()


def test_the_same_seed_gives_the_same_corpus_and_another_seed_another():
    first = content_hash(1)
    assert content_hash(1) == first
    assert content_hash(2) != first


def test_a_gold_query_finds_everything_relevant_and_nothing_else(corpus, gold, index):
    assert set(gold) == {request.id for request in requests(corpus)}
    for request in requests(corpus):
        assert found(index, gold[request.id]) == set(request.relevant)


def test_a_gold_query_is_two_brackets_of_three_words_that_begin_with_the_asked_ones(corpus, gold):
    for request in requests(corpus):
        first, second = gold[request.id].split(" AND ")
        assert (first.split()[1], second.split()[1]) == asked_words(request)
        assert [word for word in first.split() if word not in terms(parse(first).tree)] == ["(", "OR", "OR", ")"]


def test_the_naive_query_finds_about_a_ninth_of_what_is_relevant(corpus, index):
    recalls = []
    for request in requests(corpus):
        hits = found(index, " AND ".join(asked_words(request)))
        assert hits <= set(request.relevant)
        recalls.append(len(hits) / len(request.relevant))
    assert 0.08 < sum(recalls) / len(recalls) < 0.15


def test_every_concept_has_three_words_and_no_word_belongs_to_two(gold):
    concepts = synonym_sets(gold)
    assert len(concepts) == 30
    assert {len(words) for words in concepts} == {3}
    assert len(frozenset.union(*concepts)) == 90


def test_stemming_leaves_every_word_as_it_is(corpus):
    words = {word for document in corpus.documents for word in document.text.split()}
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='porter unicode61')")
        connection.execute("CREATE VIRTUAL TABLE stems USING fts5vocab(texts, 'row')")
        connection.execute("INSERT INTO texts VALUES (?)", (" ".join(words),))
        stems = {row[0] for row in connection.execute("SELECT term FROM stems")}
    assert stems == words
    assert not words & STOP_WORDS


def test_a_document_names_two_or_three_concepts_by_one_word_each(corpus, gold):
    concepts = synonym_sets(gold)
    for document in corpus.documents:
        words = document.text.split()
        named = [sum(word in concept for word in words) for concept in concepts]
        assert set(named) == {0, 1}
        assert sum(named) in (2, 3)


def test_every_request_has_at_least_three_relevant_documents(corpus):
    assert min(len(request.relevant) for request in requests(corpus)) >= 3


def test_a_fifth_is_held_out_by_pair_while_each_concept_is_trained(corpus, gold):
    def pairs(split):
        return [frozenset(frozenset(terms(parse(side).tree)) for side in gold[r.id].split(" AND ")) for r in split]

    train, heldout = pairs(corpus.train), pairs(corpus.heldout)
    assert len({*train, *heldout}) == len(train) + len(heldout)
    assert len(heldout) == pytest.approx(0.2 * (len(train) + len(heldout)), abs=0.5)
    assert set(itertools.chain(*heldout)) <= set(itertools.chain(*train))


def test_each_held_out_concept_is_trained_even_where_pairs_are_few():
    corpus, _ = generated_corpus(concepts=4, documents=100, seed=3)
    assert corpus.heldout
    trained = {concept for request in corpus.train for concept in request.id.split("-")}
    assert {concept for request in corpus.heldout for concept in request.id.split("-")} <= trained


def test_too_many_or_too_few_concepts_are_refused():
    with pytest.raises(ConfigError, match="concepts is 2; expected 3 to "):
        generated_corpus(concepts=2)
    with pytest.raises(ConfigError, match="concepts is 10000; expected 3 to "):
        generated_corpus(concepts=10_000)


def test_too_few_documents_are_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"5 documents on 30 concepts give 0 pairs .* raise documents"):
        generated_corpus(documents=5)
