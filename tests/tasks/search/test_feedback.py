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


def test_words_come_from_what_a_search_of_the_request_finds(feedback):
    assert feedback.words("open the folder") == ["folder", "mailbox"]  # what one of them alone has is left out


def test_a_word_of_one_document_found_is_left_out_if_it_was_not_asked_for(feedback):
    assert feedback.words("blocking") == ["blocking", "queue"]  # "threads" is in one of the three, and elsewhere
    assert feedback.words("blocking of threads")[0] == "threads"


def test_a_word_of_the_request_weighs_more_than_another_that_finds_the_same(feedback):
    assert feedback.words("items") == ["items", "blocking"]  # and not "queue"


def test_the_best_documents_words_come_first(feedback):
    # Three of the first five documents hold "queue" or "blocking", two "folder", and "mailbox" is not the request's.
    assert feedback.words("queue without blocking of a folder") == ["queue", "blocking", "folder", "mailbox"]


def test_no_two_words_find_the_same_documents_and_none_is_a_number(feedback):
    words = feedback.words("put one item of 10 items into a queue")
    assert len({"item", "items", "queue"} & set(words)) == 1  # each finds the first two documents
    assert "10" not in words


def test_a_word_of_a_single_document_is_left_out_although_it_was_asked_for(feedback):
    assert feedback.words("message in a folder") == ["folder", "mailbox"]


def test_a_failure_of_the_engine_is_no_empty_list(feedback):
    feedback._index.close()
    with pytest.raises(EngineFailure, match="the search engine"):
        feedback.words("folder")


def test_a_request_that_finds_nothing_gives_no_words(feedback):
    assert feedback.words("zebras") == []
    assert feedback.words("of the") == []


def test_quotes_and_operators_of_a_request_are_words(feedback):
    assert feedback.words('"folder AND (') == feedback.words("folder") == ["folder", "mailbox"]


def write(folder, requests):
    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl").write_text("".join(f'{{"_id": "d{i}", "text": "{t}"}}\n' for i, t in enumerate(TEXTS)))
    (folder / "queries.jsonl").write_text("".join(f'{{"_id": "{i}", "text": "{t}"}}\n' for i, t in requests.items()))
    header = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "train.tsv").write_text(header + "".join(f"r1\td{i}\t1\n" for i in (2, 4)))
    (folder / "qrels" / "test.tsv").write_text(f"{header}r2\td2\t1\nr2\td3\t1\n")


def test_the_prompt_holds_the_words_found_and_the_teacher_uses_them(tmp_path):
    write(tmp_path, {"r1": "letters in a folder", "r2": "Show a {found} folder"})
    task = SearchTask(SearchTask.Settings(corpus=str(tmp_path), prompt="{request} | {found} |"))
    (problem,), (other,) = task.problems("train"), task.problems("heldout")
    assert problem.prompt == "letters in a folder | folder mailbox |"
    assert other.prompt == "show a {found} folder | folder mailbox |"
    assert task.demonstration(problem) == "mailbox"  # it finds both, and is no word of the request
    assert task.baselines()["AND of the first two words found"](problem) == "folder AND mailbox"
    assert task.ask("mailbox").prompt == "mailbox | mailbox folder |"


def test_a_prompt_without_found_costs_no_feedback(tmp_path):
    write(tmp_path, {"r1": "message in letters", "r2": "show a message"})
    task = SearchTask(SearchTask.Settings(corpus=str(tmp_path)))
    assert task.problems("train")[0].prompt == "request: message in letters\nquery:"
    assert "AND of the first two words found" not in task.baselines()
    assert task.demonstration(task.problems("train")[0]) == "message"  # the only word that the index has
