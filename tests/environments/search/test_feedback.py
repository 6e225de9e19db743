from dataclasses import replace

import pytest

import steadyrl.environments.search.feedback as feedback_module
from steadyrl.environments.search.feedback import Feedback
from steadyrl.environments.search.index import Document, EngineFailure, SearchIndex
from steadyrl.environments.search.task import SearchTask

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


def terms_found(texts, request):
    documents = [Document(f"d{i}", text) for i, text in enumerate(texts)]
    with SearchIndex.build(documents) as index:
        return Feedback(documents, index).terms(request)


def test_words_come_from_what_a_search_of_the_request_finds(feedback):
    assert feedback.terms("blocking") == ["blocking", "threads"]  # the third document is about threads
    assert feedback.terms("lock") == ["folder"]  # a word of a single document, "lock", is left out


def test_the_pair_with_the_highest_expected_f1_comes_first():
    texts = ("blocking queue put", "blocking queue item put lock", "blocking lock item now then")
    texts += tuple(f"{word} {word}{c}" for word in ("queue", "put", "item", "lock") for c in "abcdefghijkl")
    # Found are the documents 0, 1 and 2, relevant with the chances 0.45, 0.27 and 0.20. put AND queue finds 0 and 1:
    # 2 (0.45 + 0.27) / (2 + 12) = 0.103; item AND lock 1 and 2: 0.067; put AND item 1: 0.041. All do better than put
    # or item alone, with 14 documents: 0.055 and 0.036, or they bring no new word. "blocking" alone is better than in
    # a pair: 2 (0.45 + 0.27 + 0.20) / (3 + 12) = 0.122.
    assert terms_found(texts, "blocking") == ["put", "queue", "item", "lock", "blocking"]


def test_where_no_pair_is_better_than_a_word_the_heaviest_words_come_first():
    texts = ("queue put item", "queue get item", "queue put wait", "queue size", "mailbox put item")
    texts += ("mailbox lock", "wait lock", *(f"other text {letter}z" for letter in "abcdefgh"))
    assert terms_found(texts, "queue put") == ["put", "queue", "item", "wait", "mailbox"]


def with_words_alone(*texts):
    return [*texts, *(f"{word} {letter}z" for word in ("lock", "file") for letter in "abcdef")]


def test_a_phrase_comes_first_where_its_words_occur_together_elsewhere_too():
    texts = with_words_alone("zebra lock file", "zebra lock file then", *(f"file {c} lock" for c in "bcdefg"))
    # "lock file" finds the documents 0 and 1: 2 (0.45 + 0.27) / (2 + 12) = 0.103; lock AND file six more: 0.072. So
    # does "zebra", whose documents are those of the phrase, and "lock" and "file" are in it.
    assert terms_found(texts, "zebra") == ['"lock file"']
    assert terms_found([text.replace("lock file", "lock_file") for text in texts], "zebra") == ['"lock file"']


def test_a_phrase_comes_before_the_pair_of_its_words_that_finds_the_same():
    assert terms_found(with_words_alone("zebra lock file", "zebra lock file then"), "zebra") == ['"lock file"']


def test_a_pair_comes_before_a_phrase_that_finds_less():
    texts = with_words_alone("zebra lock file", "zebra file of lock")  # 0.103 against 0.9 / (1 + 12) = 0.069
    assert terms_found(texts, "zebra") == ["file", "lock"]


def test_a_phrase_that_is_no_better_than_its_best_word_is_none():
    texts = ("zebra lock file", "zebra file of lock", "lock az", "file bz", "cz", "dz")
    assert terms_found(texts, "zebra") == ["file", "lock"]


def test_a_phrase_of_a_word_with_itself_is_none():
    assert terms_found(("zebra lock lock", "zebra lock lock then", "lock a", "lock b", "cz", "dz"), "zebra") == [
        "zebra"
    ]


def test_there_are_six_words_at_most(monkeypatch):
    words = [f"w{letter}" for letter in "abcdefgh"]
    texts = [f"zebra {' 1 '.join(words)}"] * 2 + [f"{word} {word}y" for word in words]
    assert terms_found(texts, "zebra") == words[:6]
    phrases = [f"w{letter} v{letter}" for letter in "abcd"]
    texts = [f"zebra {phrase}{' now' * i}" for i, phrase in enumerate(phrases)]
    texts += [word for phrase in phrases for word in phrase.split() for _ in range(12)]
    assert terms_found(texts, "zebra") == [f'"{phrase}"' for phrase in phrases[:3]]
    monkeypatch.setattr(feedback_module, "_WORDS", 3)
    assert terms_found(texts, "zebra") == ['"wa va"', "vb"]


def test_phrases_share_no_word():
    texts = ("zebra lock file", "zebra file name", *["lock", "name"] * 12, *["file"] * 40)
    assert terms_found(texts, "zebra") == ['"lock file"', "name"]


def test_the_likeliest_phrases_are_searched_for(monkeypatch):
    monkeypatch.setattr(feedback_module, "_PHRASES", 1)
    texts = (
        "zebra xz yz",
        "zebra other one",
        "zebra az bz then",
        "zebra az bz now now",
        *["xz", "yz", "az", "bz"] * 12,
    )
    # "xz yz" is in the first document, with the chance 0.45, and "az bz" in the third and fourth, 0.20 and 0.16.
    assert terms_found(texts, "zebra")[0] == '"xz yz"'


def test_only_words_that_are_candidates_make_phrases():
    words = [f"w{letter}z" for letter in "atbscrdqepfognhmiljk"]  # those from q to t are none
    texts = (f"zebra {' '.join(words)}", *words * 12)
    assert terms_found(texts, "zebra") == ['"wez wpz"']


def test_a_word_that_adds_nothing_to_another_is_left_out(feedback):
    assert feedback.terms("open the folder") == ["folder"]  # wherever it stands there is "mailbox"
    words = feedback.terms("put one item of 10 items into a queue")
    assert len({"item", "items", "queue"} & set(words)) == 1  # each finds the first two documents
    assert "10" not in words


def test_the_end_of_a_long_document_is_not_read():
    long = " ".join(f"x{i}y" for i in range(200))
    texts = ("queue", "other late", "other early")
    assert terms_found((f"queue early {long} late", *texts), "queue") == ["queue", "early"]
    assert set(terms_found((f"queue early {long[:20]} late", *texts), "queue")) == {"queue", "early", "late"}


def test_a_failure_of_the_engine_is_no_empty_list(feedback):
    feedback._index.close()
    with pytest.raises(EngineFailure, match="the search engine"):
        feedback.terms("folder")


def test_a_request_that_finds_nothing_gives_no_words(feedback):
    assert feedback.terms("zebras") == []
    assert feedback.terms("of the") == []


def test_quotes_and_operators_of_a_request_are_words(feedback):
    assert feedback.terms('"blocking AND (') == feedback.terms("blocking") == ["blocking", "threads"]


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
    rule = task.baselines()["first phrase or pair of words found"]
    assert rule(asked) == "blocking AND threads"
    assert rule(replace(asked, columns={"found": ['"mailbox lock"', "folder"]})) == '"mailbox lock"'
    assert rule(replace(asked, columns={"found": ["folder"]})) == "folder"
    assert rule(replace(asked, columns={"found": []})) == ""


def test_a_prompt_without_found_costs_no_feedback(tmp_path):
    write(tmp_path, {"r1": "a queue of letters", "r2": "show a message"})
    task = SearchTask(SearchTask.Settings(corpus=str(tmp_path)))
    assert task.problems("train")[0].prompt == "request: a queue of letters\nquery:"
    assert "first phrase or pair of words found" not in task.baselines()
    assert task.demonstration(task.problems("train")[0]) == "queue"  # the only word that the index has
