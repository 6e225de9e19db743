import json

import pytest

from steadyrl.core import config
from steadyrl.environments.search.baselines import empty_forms, honest_core
from steadyrl.environments.search.generated import generated_corpus
from steadyrl.environments.search.index import Document, SearchIndex
from steadyrl.environments.search.query import parse
from steadyrl.environments.search.task import SearchTask
from steadyrl.loop.tasks.check import check_task

HONEST = {"worth": 1.0, "joint": 1.0, "parseable": 0.1}


def folder_of(corpus, path, requests):
    """Write a corpus as a BEIR folder."""
    (path / "qrels").mkdir()
    some = corpus.train[:requests]
    rows = {
        "corpus.jsonl": [{"_id": d.id, "title": d.id, "text": d.text} for d in corpus.documents],
        "queries.jsonl": [{"_id": r.id, "text": r.text} for r in some],
    }
    for name, records in rows.items():
        (path / name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    judged = "".join(f"{r.id}\t{id}\t1\n" for r in some for id in r.relevant)
    (path / "qrels" / "all.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged, encoding="utf-8")
    return str(path)


@pytest.fixture(params=["folder", *(pytest.param(name, marks=pytest.mark.weekly) for name in ("generated", "stdlib"))])
def corpus(request, tmp_path, monkeypatch):
    if request.param == "folder":
        return folder_of(generated_corpus(documents=400, seed=5)[0], tmp_path, 20)
    monkeypatch.setenv("XDG_CACHE_HOME", str(request.getfixturevalue("stdlib_cache")))
    return request.param


def checked(corpus, rewards):
    found = check_task(config.resolve({"task": {"name": "search", "args": {"corpus": corpus}}, "rewards": rewards}))
    return next(finding for finding in found if finding.check == "empty forms")


def test_what_parts_are_worth_pays_no_empty_form_more_than_its_core(corpus):
    found = checked(corpus, HONEST)
    assert found.state == "ok", found.message
    assert found.message.startswith("13 of 13 ")


@pytest.mark.parametrize(
    ("rewards", "named"),
    [
        ({"retrieval": 1.0, "structure": 0.1, "parseable": 0.1}, "qzxvwj"),  # a clause that finds nothing
        ({"boolean_format": 1.0}, "'( w OR w ) AND ( w OR w )' 1.000"),
    ],
)
def test_rewards_for_the_form_are_found_out(rewards, named, tmp_path):
    found = checked(folder_of(generated_corpus(documents=400, seed=5)[0], tmp_path, 20), rewards)
    assert found.state == "found"
    assert named in found.message


def test_forms_are_queries_around_the_rarest_word_of_the_request():
    index = SearchIndex.build([Document("a", "red cats"), Document("b", "red dogs"), Document("c", "blue cats red")])
    assert honest_core("the red cats and blue dogs", index) == "blue"
    forms = empty_forms("the red cats and blue dogs", index)
    assert forms["w OR w"] == "blue OR blue"
    assert forms["w AND ( w OR v )"] == "blue AND ( blue OR dogs )"
    assert len(forms) >= 10
    assert all(parse(query).tree for query in forms.values())


def test_a_request_without_any_word_has_forms_too():
    index = SearchIndex.build([Document("a", "red cats")])
    assert honest_core("of the", index) == "the"
    assert empty_forms("of the", index)["w AND w"] == "the AND the"


def test_a_task_gives_the_forms_of_a_problem():
    task = SearchTask(SearchTask.Settings(corpus="generated"))
    problem = task.problems("train")[0]
    core = task.honest_core(problem)
    assert core in problem.prompt
    assert task.empty_forms(problem)["w AND w"] == f"{core} AND {core}"
