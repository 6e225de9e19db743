import numpy as np
import pytest

from steadyrl.backends.toy import ToyBackend
from steadyrl.environments.search.baselines import rarest_words
from steadyrl.environments.search.index import Document, SearchIndex
from steadyrl.environments.search.task import SearchTask
from steadyrl.environments.search.teacher import taught_query
from steadyrl.loop.rollout.collect import demonstrate

NOISE = [Document(f"noise{i}", f"unrelated text number {i} of read and write") for i in range(20)]
QUEUES = [Document("q1", "queue read without blocking"), Document("q2", "queue write without waiting")]
FILES = [Document("f1", "file read by line"), Document("f2", "file write by line")]


@pytest.fixture(scope="module")
def index():
    return SearchIndex.build([*QUEUES, *FILES, *NOISE])


def drawn(index, request, relevant, count=60):
    words = rarest_words(request, index)
    return {taught_query(f"request {i}", words, np.array(relevant, np.int32), index) for i in range(count)}


def test_the_best_word_is_taught_where_no_second_one_helps(index):
    assert drawn(index, "read the queue", [0, 1]) == {"queue"}


def test_the_best_pair_is_taught_in_either_order(index):
    assert drawn(index, "read a file please", [2]) == {"read AND file", "file AND read"}


def test_a_clause_is_taught_where_both_of_its_words_help(index):
    # "queue" finds one document too many, and each of the two words alone one too few.
    index = SearchIndex.build([*QUEUES, *NOISE, Document("q3", "queue of the size")])
    taught = drawn(index, "queue, blocking or waiting, at once", [0, 1])
    assert {"queue AND ( blocking OR waiting )", "queue AND ( waiting OR blocking )", "blocking OR waiting"} & taught
    assert not any("size" in query for query in taught)


def test_a_request_without_a_good_word_teaches_nothing(index):
    assert drawn(index, "read it", [0]) == {None}  # one of 23 documents with the word
    assert drawn(index, "zebras", [0]) == {None}


def test_a_query_makes_up_for_the_words_that_it_passes_over(index):
    def taught(words, per_skip):
        return {taught_query(f"request {i}", words, np.array([0, 1]), index, per_skip) for i in range(60)}

    assert taught(["queue", "without"], 0.0) == {"queue", "without"}  # they find the same
    assert taught(["queue", "without"], 0.5) == {"queue"}
    assert taught(["without", "queue"], 0.5) == {"without"}
    assert taught(["write", "queue"], 0.2) == {"queue"}  # F1 1 against 2 / 24
    alternatives = {"blocking OR waiting", "waiting OR blocking"}  # F1 1 as well, and no word is passed over
    assert taught(["blocking", "waiting", "queue"], 0.2) == alternatives


def test_a_phrase_is_taught_where_both_of_its_words_help(index):
    def taught(words, relevant, per_skip=0.0):
        return {taught_query(f"request {i}", words, np.array(relevant), index, per_skip) for i in range(60)}

    assert taught(['"queue read"', "read"], [0]) == {'"queue read"'}
    assert taught(['"file read"', '"read by"', "file"], [2, 3]) == {"file"}
    assert taught(['"queue write"'], [0, 1]) == {None}  # finds one of two, and "queue" both
    assert taught(['"without blocking"'], [0]) == {None}  # no better than "blocking"
    assert taught(['"queue read"', "waiting"], [0, 1]) == {"waiting"}  # and not joined by OR
    assert taught(['"queue read"', '"queue blocking"'], [0]) == {'"queue read"'}  # nothing has the second
    assert taught(['"read without"', '"queue read"'], [0], 0.5) == {'"read without"'}  # both find it
    assert taught(['"read without"', '"queue read"'], [0]) == {'"read without"', '"queue read"'}


def test_a_request_is_taught_the_same_query_at_every_call(index):
    assert len({taught_query("a", ["read", "file"], np.array([2]), index) for _ in range(20)}) == 1


def test_a_policy_is_shown_queries_of_the_training_requests_words(tmp_path):
    (tmp_path / "qrels").mkdir()
    documents = [*QUEUES, *FILES, *NOISE]
    (tmp_path / "corpus.jsonl").write_text("".join(f'{{"_id": "{d.id}", "text": "{d.text}"}}\n' for d in documents))
    requests = {"r1": "Read the queue!", "r2": "please read it", "r3": "file"}
    (tmp_path / "queries.jsonl").write_text("".join(f'{{"_id": "{i}", "text": "{t}"}}\n' for i, t in requests.items()))
    header = "query-id\tcorpus-id\tscore\n"
    (tmp_path / "qrels" / "train.tsv").write_text(f"{header}r1\tq1\t1\nr1\tq2\t1\nr2\tq1\t1\n")
    (tmp_path / "qrels" / "test.tsv").write_text(f"{header}r3\tf1\t1\n")
    task = SearchTask(SearchTask.Settings(corpus=str(tmp_path)))
    groups = demonstrate(ToyBackend(), task.problems("train"), task, (0, 0))
    assert {group.problem.id: group.rollouts[0].text for group in groups} == {"r1": "queue"}
