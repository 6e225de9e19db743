import json
import math

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.core.errors import ConfigError, DataError
from steadyrl.environments.search.index import EngineFailure
from steadyrl.environments.search.query import parse
from steadyrl.environments.search.task import SearchTask, measure, structure
from steadyrl.loop.rewards.combine import make_terms, score_texts
from steadyrl.loop.tasks.check import check_task

DOCUMENTS = {
    "d1": "red cats purr",
    "d2": "red dogs bark",
    "d3": "cats and dogs play",
    "d4": "green birds sing songs",
}
REWARDS = ("retrieval", "recall", "precision", "bits", "worth", "joint", "structure", "parseable")
MARKS = ("dead_part", "repeated_word", "no_operator", "two_help")


def made(corpus, **settings):
    return SearchTask(SearchTask.Settings(corpus=str(corpus), **settings))


@pytest.fixture
def beir(tmp_path):
    """Write a folder of four documents; return a function that adds the queries and makes the task of it."""

    def make(train="red cats here", relevant=("d1", "d3"), **settings):
        (tmp_path / "qrels").mkdir()
        rows = {
            "corpus.jsonl": [{"_id": id, "text": text} for id, text in DOCUMENTS.items()],
            "queries.jsonl": [{"_id": "q1", "text": train}, {"_id": "q2", "text": "What sings?"}],
        }
        for name, records in rows.items():
            (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
        header = "query-id\tcorpus-id\tscore\n"
        (tmp_path / "qrels" / "train.tsv").write_text(header + "".join(f"q1\t{id}\t1\n" for id in relevant))
        (tmp_path / "qrels" / "test.tsv").write_text(header + "q2\td4\t1\n")
        return made(tmp_path, **settings)

    return make


def answered(task, *texts):
    (problem,) = task.problems("train")
    return score_texts([(problem, text) for text in texts], make_terms(dict.fromkeys(REWARDS, 1.0), task))


def numbers(*values):
    return np.array(values, np.int32)


def test_measurements_of_a_result_set_by_hand():
    found = measure(numbers(1, 4, 5, 9), numbers(1, 2, 9), documents=300)
    assert found["recall"] == pytest.approx(2 / 3)
    assert found["precision"] == pytest.approx(2 / 4)
    assert found["f1"] == pytest.approx(4 / 7)  # 2 * 2 / (4 + 3)
    assert found["result_size"] == 4
    # One in two instead of one in a hundred: 50 times likelier, of 100 times at most.
    assert found["bits"] == pytest.approx(2 / 3 * math.log(50) / math.log(100))


def test_finding_exactly_what_is_relevant_is_one_everywhere():
    found = measure(numbers(3, 8), numbers(3, 8), documents=50)
    assert found == {"f1": 1.0, "recall": 1.0, "precision": 1.0, "bits": pytest.approx(1.0), "result_size": 2.0}


@pytest.mark.parametrize("found", [(), (4, 5)])
def test_finding_nothing_relevant_is_zero_everywhere(found):
    measured = measure(numbers(*found), numbers(1), documents=50)
    assert measured == {"f1": 0.0, "recall": 0.0, "precision": 0.0, "bits": 0.0, "result_size": float(len(found))}


def test_finding_every_document_saves_no_bits():
    measured = measure(numbers(*range(100)), numbers(1, 2), documents=100)
    assert (measured["recall"], measured["bits"]) == (1.0, 0.0)
    assert measured["f1"] == pytest.approx(4 / 102)


def test_worse_than_chance_saves_no_bits_and_a_corpus_of_relevant_documents_none_either():
    assert measure(numbers(*range(90)), numbers(0, *range(90, 99)), documents=100)["bits"] == 0.0
    assert measure(numbers(0, 1), numbers(0, 1), documents=2)["bits"] == 0.0


def test_a_query_is_judged_by_what_it_finds(beir):
    (found,) = answered(beir(), "cats OR bark")  # d1, d2, d3 for d1, d3
    assert found.parts == {
        "retrieval": pytest.approx(4 / 5),
        "recall": 1.0,
        "precision": pytest.approx(2 / 3),
        "bits": pytest.approx(math.log(2 / 3 * 4 / 2) / math.log(2)),
        "worth": pytest.approx(1 / 2 * 4 / 5),  # "cats" alone finds both, so "bark" does not help
        "joint": 0.0,
        "structure": 0.5,
        "parseable": 1.0,
        "dead_part": 0.0,
        "repeated_word": 0.0,
        "no_operator": 0.0,
        "two_help": 0.0,
        "result_size": 3.0,
    }
    assert found.note == "3 found: d1, d2, d3"


def test_recall_precision_and_size_are_logged_beside_retrieval_alone(beir):
    task = beir()
    (problem,) = task.problems("train")
    (found,) = score_texts([(problem, "purr")], make_terms({"retrieval": 1.0}, task))
    assert found.reward == found.parts["retrieval"] == pytest.approx(2 / 3)
    assert {name: found.parts[name] for name in ("recall", "precision", "result_size", "parseable")} == {
        "recall": 0.5,
        "precision": 1.0,
        "result_size": 1.0,
        "parseable": 1.0,
    }


def test_a_malformed_query_scores_zero_and_says_why(beir):
    for found in answered(beir(), "cats AND", "(cats", "", '"cats', "text: cats"):
        assert found.parts == dict.fromkeys(REWARDS + MARKS, 0.0)
        assert (found.reward, found.unscored) == (0.0, None)
        assert found.note.startswith("malformed: ")
        assert len(found.note) > len("malformed: ")


def test_a_query_that_finds_nothing_is_parseable_and_worth_nothing(beir):
    (found,) = answered(beir(), "unicorns")
    assert (found.parts["parseable"], found.parts["retrieval"], found.parts["result_size"]) == (1.0, 0.0, 0.0)


def test_an_engine_failure_leaves_the_rollout_unscored_not_bad(beir, monkeypatch):
    task = beir()

    def fail(tree):
        raise EngineFailure("the search engine gave no answer within 1.0 s or failed: interrupted")

    monkeypatch.setattr(task.index, "search", fail)
    broken, malformed = answered(task, "cats", "cats AND")
    assert (broken.reward, broken.parts) == (None, {})
    assert "the search engine gave no answer" in broken.unscored
    assert malformed.reward == 0.0  # what needs no engine is judged as ever


def test_a_failure_of_the_engine_is_forgotten_with_its_cause(beir, monkeypatch):
    task = beir()
    task.index.close()
    (broken,) = answered(task, "cats")
    assert broken.reward is None
    assert "the search engine" in broken.unscored


def test_requests_stand_in_the_prompt_in_lower_case_on_one_line(beir):
    task = beir(train="Red\n  CATS here", prompt='{"ask": "{request}"} ->')
    (problem,) = task.problems("train")
    assert problem.prompt == '{"ask": "red cats here"} ->'
    assert problem.columns == {"request": "Red\n  CATS here", "relevant": ["d1", "d3"]}
    assert [p.id for p in task.problems("heldout")] == ["q2"]


def test_a_users_own_words_become_a_problem(beir):
    assert beir().ask("Blue  Whales").prompt == "request: blue whales\nquery:"


@pytest.mark.parametrize("prompt", ["find it", "{}", "{ request }"])
def test_a_prompt_without_the_request_is_refused(prompt):
    settings = {"task": {"name": "search", "args": {"prompt": prompt}}, "rewards": {"retrieval": 1.0}}
    with pytest.raises(ConfigError, match=r"task\.args\.prompt: got .*; expected a text with \{request\} in it"):
        config.resolve(settings)


def test_a_corpus_that_is_not_there_is_refused_with_the_choices():
    with pytest.raises(DataError, match="'stdlb', and there is no such folder; expected 'stdlib', 'generated', or a"):
        made("stdlb")


def test_rules_without_a_model_by_hand(beir):
    # Documents with the word: red 2, cats 2, purr 1, sing 1; "here" is in none and the rarest words must occur.
    task = beir(train="Which red cats purr and sing here?", relevant=("d1",))
    (problem,) = task.problems("train")
    assert {name: rule(problem) for name, rule in task.baselines().items()} == {
        "AND of the first two words": "red AND cats",
        "AND of all words": "red AND cats AND purr AND sing AND here",
        "OR of all words": "red OR cats OR purr OR sing OR here",
        "(a OR b) AND (c OR d) of the first four": "( red OR cats ) AND ( purr OR sing )",
        "rarest word": "purr",
        "OR of the two rarest words": "purr OR sing",
        "AND of the two rarest words": "purr AND sing",
        "ranked search (BM25)": "( purr AND cats AND red )",  # one document, as the one training request asks for
    }


def test_a_ranked_search_takes_as_many_documents_as_suit_the_training_requests(beir):
    # BM25 ranks d1 (both words) before d2 (red, three words) before d3 (cats, four words). Of d1 and d3, the first one,
    # two and three documents have an F1 of 2/3, 1/2 and 4/5.
    task = beir(train="red cats here", relevant=("d1", "d3"))
    (problem,) = task.problems("train")
    query = task.baselines()["ranked search (BM25)"](problem)
    assert query == "( purr AND cats AND red ) OR ( bark AND dogs AND red ) OR ( play AND cats AND dogs )"
    (rollout,) = score_texts([(problem, query)], make_terms({"retrieval": 1.0}, task))
    assert rollout.reward == pytest.approx(4 / 5)


def test_a_ranked_search_of_held_out_requests_knows_only_the_training_requests(beir):
    task = beir(train="red cats here", relevant=("d1", "d3"))
    (problem,) = task.problems("heldout")  # "What sings?": one document has the word, and three could be taken
    assert task.baselines()["ranked search (BM25)"](problem) == "( birds AND green AND sing AND songs )"


def test_rules_are_worth_what_their_queries_find(beir):
    task = beir(train="Which red cats purr and sing here?", relevant=("d1",))
    (problem,) = task.problems("train")
    queries = [(problem, rule(problem)) for rule in task.baselines().values()]
    found = [rollout.reward for rollout in score_texts(queries, make_terms({"retrieval": 1.0}, task))]
    assert found == pytest.approx([1.0, 0.0, 2 / 5, 1.0, 1.0, 2 / 3, 0.0, 1.0])


@pytest.mark.parametrize("request_text", ["what is it", "???", "unicorn"])
def test_rules_have_an_answer_to_every_request(beir, request_text):
    task = beir(train=request_text)
    (problem,) = task.problems("train")
    for rule in task.baselines().values():
        assert rule(problem) in ("", "unicorn")


def test_words_of_every_language_are_words(beir):
    task = beir(train="Größe der Äpfel")
    (problem,) = task.problems("train")
    assert task.baselines()["OR of all words"](problem) == "größe OR der OR äpfel"


def test_what_a_query_finds_is_shown(beir):
    task = beir()
    assert task.show("cats") == ["2 found", "d1", "d3"]
    (line,) = task.show("cats AND")
    assert line.startswith("malformed: ")


def test_answers_known_to_be_good_are_good_on_both_corpora(stdlib_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(stdlib_cache))
    for corpus, least in (("generated", 1.0), ("stdlib", 0.8)):
        task = made(corpus)
        problems = [*task.problems("train"), *task.problems("heldout")][::64]
        found = score_texts([(p, task.gold(p)) for p in problems], make_terms({"retrieval": 1.0}, task))
        assert np.mean([rollout.reward for rollout in found]) >= least, corpus
        assert all(rollout.parts["parseable"] == 1.0 for rollout in found)


def test_judgements_are_kept_within_bounds(beir, monkeypatch):
    monkeypatch.setattr("steadyrl.environments.search.task._CACHE_SIZE", 3)
    task = beir()
    found = answered(task, "cats", "red", "dogs", "purr", "cats")
    assert found[0].parts["retrieval"] == found[-1].parts["retrieval"] == 1.0
    assert task._cached_score.cache_info().currsize == 3


@pytest.mark.parametrize(
    ("query", "earned"),
    [
        ("mime", 0.0),
        ("( mime OR Mime ) AND ( mime OR mime )", 0.0),  # one word, however often it is written
        ("a AND b", 0.5),
        ("a NOT b", 0.5),
        ("a OR b", 0.5),
        ("( a OR b ) AND ( b OR a )", 0.0),
        ("( zero OR mime ) AND mime", 0.0),  # finds what "mime" finds
        ("( a OR b ) AND ( c OR d )", 1.0),
        ("( a OR b ) NOT c", 1.0),
        ("( a OR b ) AND c", 1.0),
        ('"and or not"', 0.0),
    ],
)
def test_structure_pays_for_operators_between_different_words(query, earned):
    assert structure(parse(query).tree) == earned


@pytest.mark.parametrize("corpus", ["generated", pytest.param("stdlib", marks=pytest.mark.weekly)])
def test_both_corpora_of_the_search_task_are_sound(corpus, stdlib_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(stdlib_cache))
    settings = {"task": {"name": "search", "args": {"corpus": corpus}}, "rewards": {"retrieval": 1.0}}
    found = check_task(config.resolve(settings))
    assert [(c.check, c.state == "ok") for c in found] == [
        ("problems", True),
        ("gold answer", True),
        ("empty answer", True),
        ("empty forms", True),
        ("scoring repeats", True),
        ("hostile answers", True),
    ]
    assert "left unscored" not in found[1].message
