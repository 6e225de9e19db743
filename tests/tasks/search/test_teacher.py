import random
from collections import Counter

import pytest

from steadyrl.tasks.search.index import Document, SearchIndex
from steadyrl.tasks.search.query import parse, terms
from steadyrl.tasks.search.task import SearchTask
from steadyrl.tasks.search.teacher import teacher_query


@pytest.fixture(scope="module")
def index():
    """Four common words, each in 40 documents, and one rare word in a single one."""
    return SearchIndex.build([Document(f"d{i}", "red blue green white" + " rare" * (i == 0)) for i in range(40)])


def requests(words, count):
    """Return requests of the same words that differ in a word which no document has."""
    return [f"{words} {random.Random(i).random():.9f}" for i in range(count)]


def test_equal_requests_get_equal_queries(index):
    assert teacher_query("red blue green", index) == teacher_query("red blue green", index)


def test_no_query_repeats_a_word_or_has_one_that_no_document_has(index):
    for request in requests("the red blue green unicorn", 200):
        words = terms(parse(teacher_query(request, index)).tree)
        assert len(set(words)) == len(words)
        assert set(words) <= {"red", "blue", "green"}


def test_forms_have_their_shares(index):
    counts = Counter(len(terms(parse(teacher_query(r, index)).tree)) for r in requests("red blue green white", 2000))
    assert counts[1] / 2000 == pytest.approx(0.2, abs=0.03)
    assert counts[2] / 2000 == pytest.approx(0.5, abs=0.04)
    assert counts[3] / 2000 == pytest.approx(0.3, abs=0.04)


def test_rare_words_are_drawn_in_proportion(index):
    """A word of 1 document against four of 40: weights 1/2 and 1/41, so it comes first in 0.5 / (0.5 + 4/41)."""
    first = [terms(parse(teacher_query(r, index)).tree)[0] for r in requests("red blue green white rare", 2000)]
    assert first.count("rare") / 2000 == pytest.approx(0.5 / (0.5 + 4 / 41), abs=0.03)


@pytest.mark.parametrize(("request_", "words"), [("of the", 0), ("the red", 1), ("red blue", 2)])
def test_short_requests_get_short_queries(index, request_, words):
    query = teacher_query(request_, index)
    assert query is None if words == 0 else len(terms(parse(query).tree)) <= words


def test_the_task_teaches_words_where_it_is_asked_to():
    task = SearchTask(SearchTask.Settings(corpus="generated", gold="words"))
    for problem in task.problems("train")[:20]:
        assert set(terms(parse(task.gold(problem)).tree)) <= set(problem.prompt.split())
