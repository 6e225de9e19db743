import signal
import sqlite3
import time

import numpy as np
import pytest

from steadyrl.core.errors import AccessError, DataError, SteadyError
from steadyrl.environments.search import index as index_module
from steadyrl.environments.search.index import Document, EngineFailure, SearchIndex, _require_fts5
from steadyrl.environments.search.query import parse

TEXTS = ("cat", "catnip dog", "fox and dog", "a directory of paths", "the path of a cat", "cat, dog, fox")


def documents(texts=TEXTS):
    return [Document(f"d{number}", text) for number, text in enumerate(texts)]


@pytest.fixture
def index():
    with SearchIndex.build(documents()) as built:
        yield built


def found(index, text, **limits):
    return index.search(parse(text).tree, **limits).tolist()


def test_results_are_ascending_numbers_that_nobody_can_change(index):
    numbers = index.search(parse("cat OR dog").tree)
    assert numbers.dtype == np.int32
    assert (np.diff(numbers) > 0).all()
    with pytest.raises(ValueError, match="read-only"):
        numbers[0] = 7


def test_numbers_and_ids_belong_together(index):
    assert index.document_count == 6
    assert index.ids == ("d0", "d1", "d2", "d3", "d4", "d5")
    assert [index.number_of(id) for id in index.ids] == [0, 1, 2, 3, 4, 5]


def test_an_unknown_id_is_named(index):
    with pytest.raises(DataError, match="no document of the index has the id 'x9'"):
        index.number_of("x9")


def test_document_frequency_counts_documents_by_stem(index):
    assert index.document_frequency("paths") == 2
    assert index.document_frequency("directory") == 1
    assert index.document_frequency("unicorn") == 0
    assert index.document_frequency('"') == 0


def test_a_ranked_search_wants_any_word_and_puts_rare_words_and_short_documents_first(index):
    numbers, scores = zip(*index.ranked(["cat", "fox"], 10), strict=True)
    assert set(numbers) == {0, 2, 4, 5}
    assert numbers[:2] == (5, 2)  # both words, then the rarer one
    assert numbers[2:] == (0, 4)  # a text of one word before one of five
    assert list(scores) == sorted(scores, reverse=True)
    assert scores[-1] > 0
    assert index.ranked(["cat", "fox"], 1) == [(5, scores[0])]


def test_a_ranked_search_reads_words_and_no_grammar(index):
    assert index.ranked([], 5) == index.ranked(["unicorn"], 5) == []
    assert [number for number, _ in index.ranked(['AND "', "fox"], 5)] == [2, 5]


def test_a_ranked_search_is_stopped_after_its_time():
    with SearchIndex.build(Document(f"d{i}", "cat dog " * 20) for i in range(2000)) as many:
        with pytest.raises(EngineFailure, match="within 0 s"):
            many.ranked(["cat", "dog"], 5, time_limit_s=0)
        assert len(many.ranked(["cat", "dog"], 5)) == 5


def test_equal_queries_share_one_array_and_count_as_hits(index):
    first = index.search(parse("cat AND dog").tree)
    assert (index.cache_hits, index.cache_misses) == (0, 1)
    assert index.search(parse("(DOG AND cat)").tree) is first
    assert (index.cache_hits, index.cache_misses) == (1, 1)
    index.search(parse("cat OR dog").tree)
    assert (index.cache_hits, index.cache_misses) == (1, 2)


def test_the_cache_forgets_the_query_that_was_not_used_for_longest(index, monkeypatch):
    monkeypatch.setattr(index_module, "CACHE_ENTRIES", 2)
    for text in ["cat", "dog", "cat", "fox", "cat", "dog"]:
        found(index, text)
    assert (index.cache_hits, index.cache_misses) == (2, 4)


def test_the_cache_is_bounded_in_numbers_of_documents_too(index, monkeypatch):
    monkeypatch.setattr(index_module, "CACHE_NUMBERS", 6)
    sizes = [len(found(index, text)) for text in ["cat", "dog", "unicorn"]]
    assert sizes == [3, 3, 0]
    found(index, "cat")
    assert (index.cache_hits, index.cache_misses) == (1, 3)
    found(index, "fox")  # two more, for which the three of "dog" have to go
    found(index, "cat")
    assert (index.cache_hits, index.cache_misses) == (2, 4)
    found(index, "dog")
    assert (index.cache_hits, index.cache_misses) == (2, 5)


def test_a_query_out_of_time_fails_and_the_index_works_on():
    with SearchIndex.build(Document(str(number), "cat dog") for number in range(2000)) as index:
        with pytest.raises(EngineFailure, match=r"no answer within 0.0 s.*interrupted"):
            found(index, "cat OR dog", time_limit_s=0.0)
        assert len(found(index, "cat OR dog")) == 2000
        assert (index.cache_hits, index.cache_misses) == (0, 2)
        # What is remembered needs no time.
        assert len(found(index, "cat OR dog", time_limit_s=0.0)) == 2000


def test_a_process_that_has_to_wait_loses_no_answer():
    """It is stopped three times for longer than the limit, a millisecond of work apart."""
    stops = []

    def stop(*_):
        stops.append(time.sleep(0.3))
        if len(stops) < 3:
            signal.setitimer(signal.ITIMER_REAL, 1e-3)

    with SearchIndex.build(Document(str(number), "cat dog") for number in range(8000)) as index:
        before = signal.signal(signal.SIGALRM, stop)
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-3)
            assert len(found(index, "cat OR dog", time_limit_s=0.25)) == 8000
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert stops


def test_a_closed_index_fails_as_an_engine():
    index = SearchIndex.build(documents())
    index.close()
    with pytest.raises(EngineFailure, match="closed database"):
        found(index, "cat")


def test_a_reopened_file_gives_the_same_results(tmp_path, index):
    path = tmp_path / "odd name #1?.sqlite"
    with SearchIndex.build(documents(), path) as built:
        first = found(built, "ca* NOT dog")
    with SearchIndex.open(path) as reopened:
        assert reopened.ids == index.ids
        assert found(reopened, "ca* NOT dog") == first == [0, 4]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_building_again_replaces_the_file(tmp_path):
    path = tmp_path / "index.sqlite"
    SearchIndex.build(documents(), path).close()
    SearchIndex.build(documents(("one fox",)), path).close()
    with SearchIndex.open(path) as index:
        assert found(index, "fox") == [0]
        assert index.document_count == 1


def cut_off(error):
    yield Document("a", "cat")
    raise error


@pytest.mark.parametrize("error", [ValueError("bad line"), KeyboardInterrupt(), OSError("gone")])
def test_a_build_that_is_cut_off_leaves_no_file(tmp_path, error):
    with pytest.raises(type(error)) as raised:
        SearchIndex.build(cut_off(error), tmp_path / "index.sqlite")
    assert raised.value is error
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_is_cut_off_leaves_the_older_file(tmp_path):
    path = tmp_path / "index.sqlite"
    SearchIndex.build(documents(), path).close()
    with pytest.raises(KeyboardInterrupt):
        SearchIndex.build(cut_off(KeyboardInterrupt()), path)
    with SearchIndex.open(path) as index:
        assert index.document_count == len(TEXTS)


@pytest.mark.parametrize("name", [None, "index.sqlite"])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "no document to index"),
        ([Document("a", "x"), Document("b", "y"), Document("a", "z")], "two documents have the id 'a'"),
        ([Document("a", "half \ud800")], "document 'a' is not valid Unicode"),
    ],
)
def test_a_bad_corpus_is_refused_by_name(tmp_path, name, bad, message):
    with pytest.raises(DataError, match=message):
        SearchIndex.build(bad, name and tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(AccessError, match=r"cannot write the search index .*missing"):
        SearchIndex.build(documents(), tmp_path / "missing" / "index.sqlite")


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path):
    with pytest.raises(AccessError, match="cannot write the search index"):
        SearchIndex.build(documents(), tmp_path)


def test_opening_a_missing_file_says_so(tmp_path):
    with pytest.raises(DataError, match="there is no search index at"):
        SearchIndex.open(tmp_path / "index.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_opening_a_file_of_another_kind_says_so(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database " * 100)
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE notes (text)")
    connection.close()
    for path in [text, other]:
        with pytest.raises(DataError, match="is not a search index"):
            SearchIndex.open(path)


class WithoutFts5(sqlite3.Connection):
    """A connection as a Python without FTS5 has it."""

    def execute(self, sql, *parameters):
        return super().execute(sql.replace("fts5(", "no_fts5("), *parameters)


def test_a_python_without_fts5_is_told_so():
    connection = sqlite3.connect(":memory:", factory=WithoutFts5)
    with pytest.raises(SteadyError, match=r"lacks FTS5.*no such module"):
        _require_fts5(connection)
    connection.close()
