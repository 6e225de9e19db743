import json
import re

import pytest

from steadyrl.core.errors import DataError
from steadyrl.environments.search.beir import beir_corpus
from steadyrl.environments.search.corpus import Request
from steadyrl.environments.search.index import Document, SearchIndex
from steadyrl.environments.search.query import parse

HEADER = "query-id\tcorpus-id\tscore\n"


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def files(**changed):
    """Return a small whole folder, by file name, with some files replaced (None: removed)."""
    whole = {
        "corpus.jsonl": lines(
            {"_id": "d1", "title": "Cats", "text": "They purr.", "metadata": {}},
            {"_id": "d2", "text": "Dogs bark."},
            {"_id": "d3", "title": "Foxes", "text": ""},
        ),
        "queries.jsonl": lines({"_id": "q1", "text": "what purrs"}, {"_id": "q2", "text": "what barks"}),
        "qrels/train.tsv": HEADER + "q1\td1\t1\nq1\td2\t0\nq1\td3\t2\n",
        "qrels/test.tsv": HEADER + "q2\td2\t1\n",
    }
    return whole | changed


def folder(tmp_path, contents):
    root = tmp_path / "mine"
    (root / "qrels").mkdir(parents=True)
    for name, text in contents.items():
        if text is not None:
            (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def refusal(tmp_path, contents):
    root = folder(tmp_path, contents)
    with pytest.raises(DataError) as caught:
        beir_corpus(root)
    return str(caught.value).replace(f"{root}/", "")


def test_a_folder_becomes_documents_and_the_requests_of_both_splits(tmp_path):
    corpus = beir_corpus(folder(tmp_path, files()))
    assert corpus.name == "mine"
    assert corpus.documents == [
        Document("d1", "Cats They purr."),
        Document("d2", "Dogs bark."),
        Document("d3", "Foxes"),
    ]
    assert corpus.train == [Request("q1", "what purrs", ("d1", "d3"))]
    assert corpus.heldout == [Request("q2", "what barks", ("d2",))]


def test_a_title_can_be_searched_for(tmp_path):
    with SearchIndex.build(beir_corpus(str(folder(tmp_path, files()))).documents) as index:
        assert index.search(parse("cats AND purr").tree).tolist() == [0]


def test_blank_lines_are_allowed_everywhere(tmp_path):
    contents = {name: "\n" + text.replace("\n", "\r\n\r\n") for name, text in files().items()}
    assert len(beir_corpus(folder(tmp_path, contents)).documents) == 3


def test_dev_is_held_out_only_where_there_is_no_test(tmp_path):
    contents = files() | {"qrels/dev.tsv": HEADER + "q2\td3\t1\n"}
    assert beir_corpus(folder(tmp_path / "a", contents)).heldout[0].relevant == ("d2",)
    contents["qrels/test.tsv"] = None
    assert beir_corpus(folder(tmp_path / "b", contents)).heldout[0].relevant == ("d3",)


def many_queries():
    return {
        "corpus.jsonl": lines({"_id": "d", "text": "text"}),
        "queries.jsonl": lines(*({"_id": f"q{number}", "text": "words"} for number in range(50))),
        "qrels/all.tsv": HEADER + "".join(f"q{number}\td\t1\n" for number in range(50)),
    }


def test_a_single_file_of_judgements_is_split_with_a_fifth_held_out(tmp_path):
    root = folder(tmp_path, many_queries())
    corpus = beir_corpus(root)
    train, heldout = ({request.id for request in split} for split in (corpus.train, corpus.heldout))
    assert len(heldout) == 10
    assert train | heldout == {f"q{number}" for number in range(50)}
    assert not train & heldout
    assert beir_corpus(root) == corpus
    assert {request.id for request in beir_corpus(root, split_seed=1).heldout} != heldout


def test_the_split_does_not_depend_on_the_order_of_the_judgements(tmp_path):
    contents = many_queries()
    heldout = {request.id for request in beir_corpus(folder(tmp_path / "a", contents)).heldout}
    contents["qrels/all.tsv"] = HEADER + "".join(f"q{number}\td\t1\n" for number in reversed(range(50)))
    assert {request.id for request in beir_corpus(folder(tmp_path / "b", contents)).heldout} == heldout


def test_a_query_without_a_relevant_document_is_left_out(tmp_path):
    contents = files(**{"qrels/train.tsv": HEADER + "q1\td1\t1.0\nq2\td1\t-1\n"})
    assert [request.id for request in beir_corpus(folder(tmp_path, contents)).train] == ["q1"]


def test_held_out_requests_with_the_text_of_one_that_trains_are_counted(tmp_path, caplog):
    beir_corpus(folder(tmp_path / "a", files()))
    assert not caplog.text
    queries = lines({"_id": "q1", "text": "what purrs"}, {"_id": "q2", "text": "what purrs"})
    beir_corpus(folder(tmp_path / "b", files(**{"queries.jsonl": queries})))
    assert "1 held-out requests of" in caplog.text and "have the text of one that trains" in caplog.text


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DataError, match=f"^there is no folder {re.escape(str(tmp_path / 'no'))}; expected one with"):
        beir_corpus(tmp_path / "no")


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_a_missing_file_is_named(tmp_path, name):
    assert refusal(tmp_path, files(**{name: None})) == f"there is no file {name}; check the path"


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"qrels/train.tsv": None, "qrels/test.tsv": None}, "no .tsv file"),
        ({"qrels/train.tsv": None, "qrels/dev.tsv": HEADER}, "dev.tsv, test.tsv"),
        ({"qrels/test.tsv": None, "qrels/other.tsv": HEADER}, "other.tsv, train.tsv"),
    ],
)
def test_judgement_files_that_name_no_split_are_refused(tmp_path, changed, found):
    message = refusal(tmp_path, files(**changed))
    assert message == f"qrels has {found}; expected train.tsv with test.tsv or dev.tsv, or a single file"


FIRST = '{"_id": "d1", "text": "x"}\n'


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("{_id}\n", "line 2: not valid JSON"),
        ('{"_id": "d2", "te', "line 2: not valid JSON"),
        (b'{"_id": "\xff"}\n', "line 2: not valid UTF-8 at byte 10 of the line"),
        ('["d2", "text"]\n', "line 2: got a list; expected a JSON object"),
        ('{"text": "x"}\n', "line 2: '_id' is missing; the line has text"),
        ('{"_id": "", "text": "x"}\n', "line 2: '_id' is empty"),
        ('{"_id": 2, "text": "x"}\n', "line 2: '_id' is a number; expected text in quotes"),
        ('{"_id": "d2"}\n', "line 2: 'text' is missing; the line has _id"),
        ('{"_id": "d2", "text": null}\n', "line 2: 'text' is null; expected text in quotes"),
        ('{"_id": "d2", "text": "\\ud800"}\n', "line 2: 'text' is not valid Unicode at character 1"),
        ('\n{"_id": "d1", "text": "x"}\n', "line 3: '_id' is 'd1' like on line 1"),
    ],
)
def test_a_defect_of_documents_or_queries_is_named_by_file_and_line(tmp_path, name, second, message):
    second = second if isinstance(second, bytes) else second.encode()
    assert refusal(tmp_path, files(**{name: FIRST.encode() + second})).startswith(f"{name}, {message}")


@pytest.mark.parametrize(
    ("name", "second", "message"),
    [
        ("corpus.jsonl", '{"_id": "d2", "title": " ", "text": ""}\n', "document 'd2' has neither title nor text"),
        ("corpus.jsonl", '{"_id": "d2", "title": [], "text": "x"}\n', "'title' is a list; expected text in quotes"),
        ("queries.jsonl", '{"_id": "d2", "text": " "}\n', "'text' is empty"),
    ],
)
def test_an_empty_text_or_a_wrong_title_is_named_by_file_and_line(tmp_path, name, second, message):
    assert refusal(tmp_path, files(**{name: FIRST + second})).startswith(f"{name}, line 2: {message}")


def test_a_corpus_without_documents_is_refused(tmp_path):
    assert refusal(tmp_path, files(**{"corpus.jsonl": "\n"})).startswith("corpus.jsonl has no document; expected")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", ", line 1: got the header ''; expected 'query-id\\tcorpus-id\\tscore'"),
        ("q1\td1\t1\n", ", line 1: got the header 'q1\\td1\\t1'; expected"),
        (HEADER + "q1\td1\n", ", line 2: got 2 columns between tabs; expected query-id, corpus-id, score"),
        (HEADER + "q1 d1 1\n", ", line 2: got 1 columns between tabs"),
        (HEADER + "q1\td1\t1\nq1\td2\t", ", line 3: the score is ''; expected a number"),
        (HEADER + "q1\td1\tyes\n", ", line 2: the score is 'yes'; expected a number"),
        (HEADER + "q1\td1\tnan\n", ", line 2: the score is 'nan'; expected a number"),
        (HEADER + "q9\td1\t1\n", ", line 2: no query of queries.jsonl has the id 'q9'"),
        (HEADER + "\nq1\td9\t0\n", ", line 3: no document of corpus.jsonl has the id 'd9'"),
        (HEADER + "q1\td1\t1\nq1\td1\t0\n", ", line 3: 'q1' and 'd1' were judged on line 2; keep one"),
        (HEADER + "q1\td1\t0\nq1\td2\t-1\n", " has no positive judgement; expected a score above 0"),
        (HEADER, " has no positive judgement; expected a score above 0"),
        (HEADER.encode() + b"q\xc3\n", ", line 2: not valid UTF-8 at byte 2 of the line"),
    ],
)
def test_a_defect_of_the_judgements_is_named_by_file_and_line(tmp_path, rows, message):
    assert refusal(tmp_path, files(**{"qrels/train.tsv": rows})).startswith(f"qrels/train.tsv{message}")


def test_a_held_out_query_that_is_also_trained_on_is_refused(tmp_path):
    message = refusal(tmp_path, files(**{"qrels/test.tsv": HEADER + "q2\td2\t1\nq1\td2\t1\n"}))
    assert message.startswith("qrels/test.tsv, line 3: query 'q1' is also in train.tsv")


def test_one_judged_query_in_one_file_cannot_be_split(tmp_path):
    message = refusal(tmp_path, files(**{"qrels/test.tsv": None}))
    assert message.startswith("qrels/train.tsv has one query with a relevant document; expected two or more")
