import pytest

from steadyrl.tasks.search.feedback import Feedback
from steadyrl.tasks.search.index import Document, EngineFailure, SearchIndex
from steadyrl.tasks.search.task import SearchTask

TEXTS = (
    "queue put blocking item 10",
    "queue get blocking items 10",
    "mailbox folder message",
    "mailbox lock folder",
    "mailbox entry",
    "blocking of signals and of threads",
    "threads wait",
    *(f"other text {'abcdefgh'[i]}z" for i in range(8)),
)


@pytest.fixture
def feedback():
    documents = [Document(f"d{i}", text) for i, text in enumerate(TEXTS)]
    with SearchIndex.build(documents) as index:
        yield Feedback(documents, index)


def words_found(texts, request):
    documents = [Document(f"d{i}", text) for i, text in enumerate(texts)]
    with SearchIndex.build(documents) as index:
        return Feedback(documents, index).words(request)


def test_words_come_from_what_a_search_of_the_request_finds(feedback):
    assert feedback.words("blocking") == ["blocking", "threads"]  # the third document is about threads
    assert feedback.words("lock") == ["folder"]  # a word of a single document, "lock", is left out


def test_the_pair_with_the_highest_expected_f1_comes_first():
    texts = ("blocking queue put", "blocking queue item put lock", "blocking lock item now then")
    texts += tuple(f"{word} {word}{c}" for word in ("queue", "put", "item", "lock") for c in "abcdefghijkl")
    # Found are the documents 0, 1 and 2, relevant with the chances 0.45, 0.27 and 0.20. put AND queue finds 0 and 1:
    # 2 (0.45 + 0.27) / (2 + 12) = 0.103; item AND lock 1 and 2: 0.067; put AND item 1: 0.041. All do better than put
    # or item alone, with 14 documents: 0.055 and 0.036, or they bring no new word. "blocking" alone is better than in
    # a pair: 2 (0.45 + 0.27 + 0.20) / (3 + 12) = 0.122.
    assert words_found(texts, "blocking") == ["put", "queue", "item", "lock", "blocking"]


def test_where_no_pair_is_better_than_a_word_the_heaviest_words_come_first():
    texts = ("queue put item", "queue get item", "queue put wait", "queue size", "mailbox put item")
    texts += ("mailbox lock", "wait lock", *(f"other text {letter}z" for letter in "abcdefgh"))
    assert words_found(texts, "queue put") == ["put", "queue", "item", "wait", "mailbox"]


def test_there_are_six_words_at_most():
    words = [f"w{letter}" for letter in "abcdefgh"]
    texts = (f"zebra {' '.join(words)}", f"zebra {' '.join(words)}", *(f"{word} {word}y" for word in words))
    assert words_found(texts, "zebra") == words[:6]


def test_a_word_that_adds_nothing_to_another_is_left_out(feedback):
    assert feedback.words("open the folder") == ["folder"]  # wherever it stands there is "mailbox"
    words = feedback.words("put one item of 10 items into a queue")
    assert len({"item", "items", "queue"} & set(words)) == 1  # each finds the first two documents
    assert "10" not in words


def test_the_end_of_a_long_document_is_not_read():
    long = " ".join(f"x{i}y" for i in range(100))
    texts = ("queue", "other late", "other early")
    assert words_found((f"queue early {long} late", *texts), "queue") == ["queue", "early"]
    assert set(words_found((f"queue early {long[:20]} late", *texts), "queue")) == {"queue", "early", "late"}


def test_a_failure_of_the_engine_is_no_empty_list(feedback):
    feedback._index.close()
    with pytest.raises(EngineFailure, match="the search engine"):
        feedback.words("folder")


def test_a_request_that_finds_nothing_gives_no_words(feedback):
    assert feedback.words("zebras") == []
    assert feedback.words("of the") == []


def test_quotes_and_operators_of_a_request_are_words(feedback):
    assert feedback.words('"blocking AND (') == feedback.words("blocking") == ["blocking", "threads"]


def write(folder, requests):
    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl").write_text("".join(f'{{"_id": "d{i}", "text": "{t}"}}\n' for i, t in enumerate(TEXTS)))
    (folder / "queries.jsonl").write_text("".join(f'{{"_id": "{i}", "text": "{t}"}}\n' for i, t in requests.items()))
    header = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "train.tsv").write_text(header + "".join(f"r1\td{i}\t1\n" for i in (0, 1)))
    (folder / "qrels" / "test.tsv").write_text(f"{header}r2\td2\t1\nr2\td3\t1\n")


def test_the_prompt_holds_the_words_found_and_the_teacher_uses_them(tmp_path):
    write(tmp_path, {"r1": "letters as items", "r2": "Show a {found} folder"})
    task = SearchTask(SearchTask.Settings(corpus=str(tmp_path), prompt="{request} | {found} |"))
    (problem,), (other,) = task.problems("train"), task.problems("heldout")
    assert problem.prompt == "letters as items | queue |"
    assert other.prompt == "show a {found} folder | folder |"
    assert task.demonstration(problem) == "queue"  # it finds both, and is no word of the request
    asked = task.ask("Blocking")
    assert asked.prompt == "blocking | blocking threads |"
    assert task.baselines()["AND of the first two words found"](asked) == "blocking AND threads"


def test_a_prompt_without_found_costs_no_feedback(tmp_path):
    write(tmp_path, {"r1": "a queue of letters", "r2": "show a message"})
    task = SearchTask(SearchTask.Settings(corpus=str(tmp_path)))
    assert task.problems("train")[0].prompt == "request: a queue of letters\nquery:"
    assert "AND of the first two words found" not in task.baselines()
    assert task.demonstration(task.problems("train")[0]) == "queue"  # the only word that the index has
